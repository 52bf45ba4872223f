"""A sliding window: every second layer sees the last W positions only, and keeps its rows in a ring.

A ring of W slots cannot give back a row that a newer one has overwritten, and a rejected proposal must not cost a row.
So new rows are *staged* beside the ring, and enter it only when they are too old to be taken back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from reference.cache import KVCache, LayerCache
from reference.errors import CacheLengthError
from reference.parts.rows import Rows, cache_of
from reference.transformer import Layer, Transformer, WholePass, rotary_angles

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

WINDOW = 4
"""W: a position sees itself and W - 1 before it."""
ROOM = 8
"""Rows that stay staged, and so can be dropped again, besides all those of the last forward: what a drafter
needs, whose block is several forwards."""


@dataclass(frozen=True)
class RingLayer:
    """The rows of a sliding layer: a ring, and what is staged.

    Attributes:
        ring_keys, ring_values: [n_kv_heads, W, head_dim]; position p is in slot p mod W.
        folded: positions before this one are in the ring, or forgotten.
        staged_keys, staged_values: [n_kv_heads, S, head_dim], positions `folded` .. `folded + S - 1`.
        room: rows that stay staged when others come.
    """

    ring_keys: Floats
    ring_values: Floats
    folded: int
    staged_keys: Floats
    staged_values: Floats
    room: int

    @classmethod
    def empty(cls, num_kv_heads: int, head_dim: int, room: int = ROOM) -> Self:
        """A layer without rows."""
        ring, nothing = np.zeros((num_kv_heads, WINDOW, head_dim)), np.zeros((num_kv_heads, 0, head_dim))
        return cls(ring, ring, 0, nothing, nothing, room)

    @property
    def offset(self) -> int:
        """How many tokens it has seen."""
        return self.folded + int(self.staged_keys.shape[1])

    @property
    def first(self) -> int:
        """The oldest position that it still holds."""
        return max(self.folded - WINDOW, 0)

    @property
    def keys(self) -> Floats:
        """The rows it holds, oldest first: [n_kv_heads, offset - first, head_dim]."""
        return np.concatenate([self.ring_keys[:, self._slots()], self.staged_keys], axis=1)

    @property
    def values(self) -> Floats:
        """As `keys`."""
        return np.concatenate([self.ring_values[:, self._slots()], self.staged_values], axis=1)

    def _slots(self) -> NDArray[np.int64]:
        """The slots of the ring in the order of their positions."""
        return np.arange(self.first, self.folded) % WINDOW

    def with_rows(self, keys: Floats, values: Floats) -> Self:
        """Itself after T more rows [n_kv_heads, T, head_dim], all of them staged."""
        settled = self.fold(int(self.staged_keys.shape[1]) - self.room)
        return replace(
            settled,
            staged_keys=np.concatenate([settled.staged_keys, keys], axis=1),
            staged_values=np.concatenate([settled.staged_values, values], axis=1),
        )

    def fold(self, count: int) -> Self:
        """Move the `count` oldest staged rows into the ring, over the oldest there; nothing for a count below 1."""
        if count < 1:
            return self
        ring_keys, ring_values = self.ring_keys.copy(), self.ring_values.copy()
        for row in range(count):
            slot = (self.folded + row) % WINDOW
            ring_keys[:, slot], ring_values[:, slot] = self.staged_keys[:, row], self.staged_values[:, row]
        staged = self.staged_keys[:, count:], self.staged_values[:, count:]
        return replace(self, ring_keys=ring_keys, ring_values=ring_values, folded=self.folded + count,
                       staged_keys=staged[0], staged_values=staged[1])  # fmt: skip

    def first_rows(self, length: int) -> Self:
        """Itself as it was after `length` tokens: staged rows are dropped, the ring is not touched.

        Raises:
            CacheLengthError: rows that the ring has overwritten would be needed.
        """
        if length == 0:
            return self.empty(len(self.ring_keys), self.ring_keys.shape[-1], self.room)
        keep = length - self.folded
        if keep < 0:
            raise CacheLengthError(
                f"a sliding layer of {self.offset} rows cannot go back to {length}: only the last "
                f"{self.staged_keys.shape[1]} are staged; trim to 0 and forward the tokens again"
            )
        return replace(self, staged_keys=self.staged_keys[:, :keep], staged_values=self.staged_values[:, :keep])


class WindowedTransformer(Transformer):
    """A Llama whose layers 0, 2, .. have a sliding window; the others see everything."""

    ring_class: type[RingLayer] = RingLayer
    """What a sliding layer keeps its rows in."""
    room: int = ROOM
    """Rows that such a layer keeps staged."""

    def is_sliding(self, index: int) -> bool:
        """Whether a layer has a window."""
        return index % 2 == 0

    def new_cache(self) -> KVCache:
        """Rings for the sliding layers, plain rows for the others."""
        shape = (self.config.num_kv_heads, self.config.head_dim)
        nothing = np.zeros((shape[0], 0, shape[1]))
        layers: list[Rows | LayerCache] = [
            self.ring_class.empty(*shape, self.room) if self.is_sliding(index) else LayerCache(nothing, nothing)
            for index in range(self.config.num_layers)
        ]
        return cache_of(layers)

    def _read(self, index: int, layer: Layer, x: Floats, queries: Floats, held: LayerCache,
              positions: NDArray[np.int64]) -> Floats:  # fmt: skip
        """As `Transformer._read`, within the window where the layer has one."""
        rows = held.keys.shape[1]  # S <= offset
        visible = self.visible(index, positions, held.offset - rows, rows)  # [T, S]
        return self._mix(layer, x, queries, held.keys, held.values, visible)

    def visible(self, index: int, positions: NDArray[np.int64], first: int, count: int) -> Bools:
        """Which of `count` rows, from position `first` on, each of T positions sees in a layer: [T, count]."""
        distance = positions[:, None] - np.arange(first, first + count)  # [T, count]
        seen: Bools = (distance >= 0) & (distance < (WINDOW if self.is_sliding(index) else np.inf))
        return seen

    def forward_without_cache(self, tokens: Sequence[int]) -> WholePass:
        """As `Transformer.forward_without_cache`; rows are those of all T tokens."""
        x = self._embed(tokens)  # [T] -> [T, D]
        causal = np.tri(len(x), dtype=np.bool_)  # [T, T]
        band = causal & ~np.tri(len(x), k=-WINDOW, dtype=np.bool_)
        angles = rotary_angles(np.arange(len(x)), self.config)  # [T, d/2]
        rows = []
        for index, layer in enumerate(self.layers):
            queries, keys, values = self._project(layer, x, angles)
            rows.append((keys, values))
            x = self._mix(layer, x, queries, keys, values, band if self.is_sliding(index) else causal)  # [T, D]
        return WholePass(self._finish(x).logits, tuple(rows))


class WindowedTarget(WindowedTransformer):
    """As a target, whose block is one forward: a row is in the ring as soon as the next block comes."""

    room = 0
