"""Several sequences of unequal length, verified in one forward.

Rows of the batch differ in how much of a block they accept, so they have offsets of their own, positions of their own,
and a mask that shows each row its own tokens up to its own length. Every row must come out as if it were alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self, cast

import numpy as np
from numpy.typing import NDArray

from reference.cache import KVCache, LayerCache
from reference.errors import CacheLengthError
from reference.transformer import Activations, Transformer, rotary_angles

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]


class BatchCache:
    """The rows of B sequences, padded to a common capacity.

    Attributes:
        keys, values: [layers, n_kv_heads, B, capacity, head_dim].
        lengths: int64 [layers, B]: the rows of a sequence that count. What is stored behind them is never seen.
    """

    def __init__(self, num_layers: int, num_kv_heads: int, head_dim: int, num_rows: int, capacity: int) -> None:
        self.keys = np.zeros((num_layers, num_kv_heads, num_rows, capacity, head_dim))
        self.values = np.zeros_like(self.keys)
        self.lengths = np.zeros((num_layers, num_rows), dtype=np.int64)

    def append(self, layer: int, rows: Ints, slots: Ints, keys: Floats, values: Floats) -> None:
        """Store N keys and values [n_kv_heads, N, head_dim] of a layer: token i in slot `slots[i]` of row `rows[i]`.

        Raises:
            CacheLengthError: a slot is behind the capacity.
        """
        if slots.max() >= self.keys.shape[3]:
            raise CacheLengthError(f"slot {slots.max()} is behind the capacity of {self.keys.shape[3]}; make it larger")
        self.keys[layer][:, rows, slots] = keys
        self.values[layer][:, rows, slots] = values
        np.maximum.at(self.lengths[layer], rows, slots + 1)

    def trim_to(self, row: int, length: int) -> None:
        """Cut one sequence to at most `length` rows; the others keep theirs."""
        self.lengths[:, row] = min(length, *self.lengths[:, row].tolist())

    def visible(self, layer: int, rows: Ints, positions: Ints) -> Bools:
        """What each of N tokens sees: [N, B * capacity]. Its own sequence, up to its own position and no further."""
        num_rows, capacity = self.keys.shape[2:4]
        own = np.arange(num_rows)[None, :, None] == rows[:, None, None]  # [N, B, 1]
        past = np.arange(capacity)[None, None, :] <= positions[:, None, None]  # [N, 1, capacity]
        seen: Bools = (own & past).reshape(len(rows), -1)
        return seen

    def flat(self, layer: int) -> tuple[Floats, Floats]:
        """Keys and values of a layer, all sequences side by side: [n_kv_heads, B * capacity, head_dim]."""
        shape = (self.keys.shape[1], -1, self.keys.shape[4])
        return self.keys[layer].reshape(shape), self.values[layer].reshape(shape)


@dataclass(frozen=True)
class RowLayer:
    """One layer of one row of a batch."""

    cache: BatchCache
    index: int
    row: int

    @property
    def offset(self) -> int:
        """How many rows the sequence holds."""
        return int(self.cache.lengths[self.index, self.row])

    @property
    def keys(self) -> Floats:
        """They: [n_kv_heads, offset, head_dim]."""
        return self.cache.keys[self.index, :, self.row, : self.offset].copy()

    @property
    def values(self) -> Floats:
        """As `keys`."""
        return self.cache.values[self.index, :, self.row, : self.offset].copy()


class RowCache(KVCache):
    """One row of a batch, to a decoder that knows nothing of the others. It cannot be copied by itself."""

    def __init__(self, batch: BatchCache, row: int) -> None:
        self.batch = batch
        self.row = row
        super().__init__(cast(list[LayerCache], [RowLayer(batch, index, row) for index in range(len(batch.keys))]))

    def trim_to(self, length: int) -> None:
        """As `KVCache.trim_to`.

        Raises:
            CacheLengthError: `length` is negative.
        """
        if length < 0:
            raise CacheLengthError(f"cannot trim a cache to {length} rows; give a length >= 0")
        self.batch.trim_to(self.row, length)

    def copy(self) -> Self:
        """Refused.

        Raises:
            CacheLengthError: always; the batch is one piece of storage.
        """
        raise CacheLengthError("a row of a batch cannot be copied by itself; copy the whole batch")


class BatchTransformer(Transformer):
    """A Llama that forwards several sequences at once. One sequence alone is a batch of one."""

    cache_class: type[BatchCache] = BatchCache
    """What `new_batch` makes."""

    def new_batch(self, num_rows: int, capacity: int) -> list[RowCache]:
        """An empty batch, as its rows."""
        c = self.config
        batch = self.cache_class(c.num_layers, c.num_kv_heads, c.head_dim, num_rows, capacity)
        return [RowCache(batch, row) for row in range(num_rows)]

    def forward(self, tokens: Sequence[int], cache: KVCache) -> Activations:
        """As `Transformer.forward`: of a row of a batch, or with a cache of its own."""
        return (
            self.forward_rows([tokens], [cache])[0] if isinstance(cache, RowCache) else super().forward(tokens, cache)
        )

    def forward_rows(self, tokens: Sequence[Sequence[int]], caches: Sequence[RowCache]) -> list[Activations]:
        """Run T_r tokens of each of some rows of one batch, all at once: per row logits [T_r, V], hidden [T_r, D].

        The tokens of all rows are laid end to end, N = sum of T_r; only attention knows where a row begins.

        Raises:
            EmptyPrompt, TokenOutOfRange, CacheLengthError: as `forward`.
        """
        batch = caches[0].batch
        x = np.concatenate([self._embed(row) for row in tokens])  # [N, D]
        rows = np.repeat([cache.row for cache in caches], [len(row) for row in tokens])  # [N]
        positions = np.concatenate([c.offset + np.arange(len(t)) for c, t in zip(caches, tokens, strict=True)])  # [N]
        self._check_positions(np.sort(positions))
        angles = rotary_angles(positions, self.config)  # [N, d/2]
        for index, layer in enumerate(self.layers):
            queries, keys, values = self._project(layer, x, angles)
            batch.append(index, rows, positions, keys, values)
            held = batch.flat(index)  # [n_kv, B * capacity, d] each
            x = self._mix(layer, x, queries, *held, batch.visible(index, rows, positions))  # [N, D]
        done = self._finish(x)
        ends = np.cumsum([len(row) for row in tokens])[:-1]
        return [
            Activations(*parts) for parts in zip(np.split(done.logits, ends), np.split(done.hidden, ends), strict=True)
        ]
