"""Key-value caches on MLX: mlx-lm's protocol, and checked operations on lists of them.

A model's cache is a list with one entry for each layer. The functions below need of an entry only what mlx-lm's
plain caches offer (`offset`, `is_trimmable()`, `trim(n) -> n`), so they work on those as well as on `KVCache`.

Every trim's return value is checked: a trim that silently does nothing is the most common cause of corrupt
caches in speculative decoders (mlx-lm#1423 is an example).
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, Protocol, TypeVar, cast

import mlx.core as mx
from mlx.utils import tree_map

from reference.errors import CacheLengthError, InvalidSetting

State = tuple[mx.array | None, mx.array | None, int]


class TrimmableCache(Protocol):
    """What the decoder needs of a layer's cache; mlx-lm's `KVCache` and `QuantizedKVCache` have it."""

    offset: int

    @property
    def state(self) -> Any:
        """Its arrays, for MLX to evaluate."""
        ...

    def is_trimmable(self) -> bool:
        """Whether rows can be dropped from the end."""
        ...

    def trim(self, n: int) -> int:
        """Drop up to n rows from the end; return how many were dropped."""
        ...


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


Cache = Sequence[TrimmableCache]
SomeCache = TypeVar("SomeCache", bound=Cache)


def make_cache(model: Any) -> Cache:
    """A fresh cache for a model: its own `make_cache()`, or a `KVCache` for each of its layers.

    Raises:
        InvalidSetting: the model asks for caches that cannot be rolled back (see `check_plain`).
    """
    cache = model.make_cache() if hasattr(model, "make_cache") else [KVCache() for _ in model.layers]
    check_plain(cache)
    return cast(Cache, cache)


def check_plain(cache: Cache) -> None:
    """Refuse caches that cannot drop rows at any time: recurrent, rotating, batched or composite ones.

    A rotating cache is trimmable until its window is full, so asking `is_trimmable()` once is not enough.

    Raises:
        InvalidSetting: naming the first such layer.
    """
    for index, layer in enumerate(cache):
        offset = getattr(layer, "offset", None)
        if not isinstance(offset, int) or not layer.is_trimmable() or getattr(layer, "max_size", None) is not None:
            raise InvalidSetting(
                f"layer {index} has a {type(layer).__name__}, which cannot be rolled back at any time; "
                "use a model whose layers all have plain key-value caches"
            )


def offsets(cache: Cache) -> tuple[int, ...]:
    """Rows that each layer holds."""
    return tuple(layer.offset for layer in cache)


def common_offset(cache: Cache) -> int:
    """Rows that every layer holds; 0 for a cache without layers.

    Raises:
        CacheLengthError: the layers disagree.
    """
    lengths = set(offsets(cache))
    if len(lengths) > 1:
        raise CacheLengthError(f"layers hold {offsets(cache)} rows; give a cache whose layers hold the same tokens")
    return lengths.pop() if lengths else 0


def trim_to(cache: Cache, length: int) -> None:
    """Cut every layer to `length` rows: layers may differ before, as after a forward that failed half-way.

    Raises:
        CacheLengthError: a layer holds fewer rows, or dropped another number of rows than it was asked to.
    """
    for index, layer in enumerate(cache):
        excess = layer.offset - length
        if excess < 0:
            raise CacheLengthError(
                f"layer {index} holds {layer.offset} rows, fewer than the {length} to be kept; refill it"
            )
        trimmed = layer.trim(excess) if excess else 0
        if trimmed != excess or layer.offset != length:
            raise CacheLengthError(
                f"layer {index} ({type(layer).__name__}) was to drop {excess} rows, said {trimmed} and holds "
                f"{layer.offset}, not {length}; use a cache that can be trimmed"
            )


def trim_to_at_most(cache: Cache, length: int) -> None:
    """Cut the layers that hold more than `length` rows; leave the others. For rolling back.

    Raises:
        CacheLengthError: as `trim_to`.
    """
    trim_to([layer for layer in cache if layer.offset > length], length)


def copy_cache(cache: SomeCache) -> SomeCache:
    """An independent copy: writing to either leaves the other as it is.

    `mx.array(a)` shares the data but is another object: an assignment to a slice makes its own data then.
    """
    return cast(SomeCache, [_copy_layer(layer) for layer in cache])


def _copy_layer(layer: TrimmableCache) -> TrimmableCache:
    twin = copy.copy(layer)
    for name, value in vars(layer).items():
        setattr(twin, name, tree_map(lambda leaf: mx.array(leaf) if isinstance(leaf, mx.array) else leaf, value))
    return twin
