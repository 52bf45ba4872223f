"""The KV cache: one pair of arrays per layer, and the three things decoding does to it.

It knows rows and counts. Whether a row is the right one for a token is the business of whoever appends
and trims; the rule they all keep is that between rounds a cache holds exactly the committed tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from reference.errors import CacheLengthError
from reference.values import Floats


@dataclass(frozen=True)
class LayerCache:
    """The rows of one layer: keys and values, float64 [n_kv_heads, offset, head_dim], rotary positions applied.

    The arrays are never written to after they are made, so copies of a cache may share them.
    """

    keys: Floats
    values: Floats

    @property
    def offset(self) -> int:
        """How many rows it holds: the position of the next one."""
        return int(self.keys.shape[1])

    def with_rows(self, keys: Floats, values: Floats) -> LayerCache:
        """Itself followed by T new rows [n_kv_heads, T, head_dim]."""
        return LayerCache(np.concatenate([self.keys, keys], axis=1), np.concatenate([self.values, values], axis=1))

    def first_rows(self, length: int) -> LayerCache:
        """Its first `length` rows; itself where it holds no more."""
        return LayerCache(self.keys[:, :length], self.values[:, :length])


class KVCache:
    """The rows of all layers: one `LayerCache` per layer, replaced as rows come and go."""

    def __init__(self, layers: Sequence[LayerCache]) -> None:
        self.layers = list(layers)

    @property
    def offsets(self) -> tuple[int, ...]:
        """Rows per layer. They differ only inside a forward, or after one that failed half-way."""
        return tuple(layer.offset for layer in self.layers)

    @property
    def offset(self) -> int:
        """Rows in every layer; CacheLengthError where the layers disagree."""
        if len(set(self.offsets)) > 1:
            raise CacheLengthError(f"the layers hold {self.offsets} rows; a forward failed half-way: call trim_to")
        return self.offsets[0]

    def append(self, layer: int, keys: Floats, values: Floats) -> LayerCache:
        """Add T rows [n_kv_heads, T, head_dim] to one layer, and return all its rows."""
        self.layers[layer] = self.layers[layer].with_rows(keys, values)
        return self.layers[layer]

    def trim(self, n: int) -> int:
        """Drop the last n rows of every layer, and return n: never fewer, else CacheLengthError."""
        if not 0 <= n <= self.offset:
            raise CacheLengthError(f"cannot trim {n} rows off a cache of {self.offset}; check the caller's count")
        self.trim_to(self.offset - n)
        return n

    def trim_to(self, length: int) -> None:
        """Cut every layer to `length` >= 0 rows, or to as many as the shortest layer holds.

        This is how a failed forward is undone: whatever layer it stopped at, the layers agree afterwards.
        """
        if length < 0:
            raise CacheLengthError(f"cannot trim a cache to {length} rows; give a length >= 0")
        keep = min(length, *self.offsets)
        self.layers = [layer.first_rows(keep) for layer in self.layers]

    def copy(self) -> KVCache:
        """An independent cache with the same rows."""
        return KVCache(self.layers)
