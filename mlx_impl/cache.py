"""Key-value caches on MLX, by mlx-lm's protocol: our own for full attention, and fresh ones for any model.

A model's cache is a list with one entry for each layer. How rows are taken back is known to `layers` and `model_cache`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx

from reference.errors import CacheLengthError, InvalidSetting
from reference.values import checked_integer

State = tuple[mx.array | None, mx.array | None, int]
KEPT = 4
"""First rows that a cache of bounded size never gives up, as in mlx-lm."""


class KVCache:
    """Keys and values of one layer, in storage that grows by `step` rows at a time.

    Attributes:
        keys, values: storage [B, n_kv_heads, capacity, head_dim]; None until the first rows come.
        offset: rows that count. Storage beyond it is left over and never read.
    """

    step = 256

    def __init__(self) -> None:
        self.keys: mx.array | None = None
        self.values: mx.array | None = None
        self.offset = 0

    @property
    def capacity(self) -> int:
        """Rows that fit without growing."""
        return 0 if self.keys is None else self.keys.shape[2]

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Append T rows [B, n_kv_heads, T, head_dim]; return all rows [B, n_kv_heads, offset, head_dim]."""
        end = self.offset + keys.shape[2]
        all_keys, all_values = _grown(self.keys, keys, end, self.step), _grown(self.values, values, end, self.step)
        all_keys[..., self.offset : end, :] = keys
        all_values[..., self.offset : end, :] = values
        self.keys, self.values, self.offset = all_keys, all_values, end
        return all_keys[..., :end, :], all_values[..., :end, :]

    def trim(self, n: int) -> int:
        """Drop the last n rows; return n.

        Raises:
            CacheLengthError: n is negative or more than the cache holds.
        """
        if not 0 <= n <= self.offset:
            raise CacheLengthError(
                f"cannot trim {n} rows off a cache of {self.offset}; give a count in 0..{self.offset}"
            )
        self.offset -= n
        return n

    def is_trimmable(self) -> bool:
        """Always: rows are independent of those after them."""
        return True

    def size(self) -> int:
        """Rows that count."""
        return self.offset

    def empty(self) -> bool:
        """Whether no row was ever written."""
        return self.keys is None

    @property
    def nbytes(self) -> int:
        """Bytes of storage."""
        return 0 if self.keys is None or self.values is None else self.keys.nbytes + self.values.nbytes

    @property
    def state(self) -> State:
        """(keys, values, offset), the arrays cut to the rows that count."""
        if self.keys is None or self.values is None:
            return None, None, 0
        return self.keys[..., : self.offset, :], self.values[..., : self.offset, :], self.offset

    @state.setter
    def state(self, state: State) -> None:
        keys, values, offset = state
        rows = 0 if keys is None else keys.shape[2]
        if not 0 <= offset <= rows:
            raise CacheLengthError(f"a state of {rows} rows cannot have offset {offset}; give an offset in 0..{rows}")
        # New array objects: storage is written in place, and the caller's arrays must not change.
        self.keys = None if keys is None else mx.array(keys)
        self.values = None if values is None else mx.array(values)
        self.offset = offset

    def make_mask(self, length: int, return_array: bool = False, window_size: int | None = None) -> Any:
        """The mask for `length` new rows, in the form mlx-lm's models ask for it.

        Raises:
            InvalidSetting: a sliding window, which this cache does not serve.
        """
        if window_size is not None:
            raise InvalidSetting(
                f"window_size is {window_size}; this cache keeps all rows: use the model's own make_cache()"
            )
        if return_array:
            return mx.arange(self.offset, self.offset + length)[:, None] >= mx.arange(self.offset + length)[None]
        return "causal" if length > 1 else None


def _grown(storage: mx.array | None, rows: mx.array, end: int, step: int) -> mx.array:
    """Storage for at least `end` rows: the same object if it is large enough, else a longer copy."""
    if storage is not None and end <= storage.shape[2]:
        return storage
    held = 0 if storage is None else storage.shape[2]
    batch, heads, _, size = rows.shape
    more = mx.zeros((batch, heads, -(-end // step) * step - held, size), rows.dtype)
    return more if storage is None else mx.concatenate([storage, more], axis=2)


def make_cache(model: Any, max_kv_size: int | None = None) -> list[Any]:
    """A fresh cache for a model: its own `make_cache()`, or a cache for each of its layers.

    Args:
        model: called as mlx-lm calls its models.
        max_kv_size: rows that a layer keeps, the first four among them, as in mlx-lm's `make_prompt_cache`; None: all.
            It says nothing to a model that needs other caches than full ones in some layer. (mlx-lm itself passes over
            it for every model that makes its own caches, which llamas do by now.) Takes mlx-lm.

    Raises:
        InvalidSetting: a size with no room for another row than those first four.
    """
    if max_kv_size is not None:
        max_kv_size = checked_integer("max_kv_size", max_kv_size, KEPT + 1, f"; the first {KEPT} rows are always kept")
    layers = list(model.make_cache()) if hasattr(model, "make_cache") else [KVCache() for _ in model.layers]
    if max_kv_size is None or any(type(layer).__name__ != KVCache.__name__ for layer in layers):
        return layers
    from mlx_impl.rotating import RotatingKVCache  # behind an extra

    return [RotatingKVCache(max_size=max_kv_size, keep=KEPT) for _ in layers]  # type: ignore[no-untyped-call]


def offsets(cache: Sequence[Any]) -> tuple[int, ...]:
    """Rows that each layer holds."""
    return tuple(layer.offset for layer in cache)
