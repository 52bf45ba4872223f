"""A cache that keeps its rows in eight bits: groups of entries share a scale and an offset.

Each row is quantised by itself, so dropping the last rows never touches the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from reference.cache import KVCache
from reference.parts.rows import cache_of
from reference.transformer import Transformer, WholePass, rotary_angles

Floats = NDArray[np.float64]

GROUP = 4
"""Entries of a row that share a scale."""
LEVELS = 255


@dataclass(frozen=True)
class Packed:
    """Rows in eight bits.

    Attributes:
        codes: uint8 [n_kv_heads, T, head_dim].
        scales, lows: float64 [n_kv_heads, T, head_dim / GROUP]; an entry is `low + scale * code`.
    """

    codes: NDArray[np.uint8]
    scales: Floats
    lows: Floats

    @classmethod
    def of(cls, rows: Floats) -> Self:
        """Quantise rows [n_kv_heads, T, head_dim]."""
        groups = rows.reshape(*rows.shape[:2], rows.shape[-1] // GROUP, GROUP)  # [n_kv, T, groups, GROUP]
        lows, highs = groups.min(axis=-1), groups.max(axis=-1)  # [n_kv, T, groups]
        scales = np.where(highs > lows, (highs - lows) / LEVELS, 1.0)
        codes = np.rint((groups - lows[..., None]) / scales[..., None]).astype(np.uint8)
        return cls(codes.reshape(rows.shape), scales, lows)

    def rows(self) -> Floats:
        """The rows that the codes stand for, [n_kv_heads, T, head_dim]."""
        groups = self.codes.reshape(*self.lows.shape, GROUP)
        return (self.lows[..., None] + self.scales[..., None] * groups).reshape(self.codes.shape)

    def followed_by(self, other: Packed) -> Packed:
        """Its rows, then the other's."""
        parts = zip(self._parts(), other._parts(), strict=True)
        return Packed(*(np.concatenate(pair, axis=1) for pair in parts))

    def first(self, length: int) -> Packed:
        """Its first rows: codes, scales and lows alike."""
        return Packed(self.codes[:, :length], self.scales[:, :length], self.lows[:, :length])

    def _parts(self) -> tuple[NDArray[np.generic], ...]:
        return self.codes, self.scales, self.lows


@dataclass(frozen=True)
class QuantisedLayer:
    """The rows of one layer, in eight bits."""

    packed_keys: Packed
    packed_values: Packed
    first: int = 0

    @property
    def keys(self) -> Floats:
        """The rows as attention reads them, [n_kv_heads, offset, head_dim]."""
        return self.packed_keys.rows()

    @property
    def values(self) -> Floats:
        """As `keys`."""
        return self.packed_values.rows()

    @property
    def offset(self) -> int:
        """How many rows it holds."""
        return int(self.packed_keys.codes.shape[1])

    def with_rows(self, keys: Floats, values: Floats) -> QuantisedLayer:
        """Itself followed by T rows [n_kv_heads, T, head_dim], quantised."""
        return QuantisedLayer(
            self.packed_keys.followed_by(Packed.of(keys)), self.packed_values.followed_by(Packed.of(values))
        )

    def first_rows(self, length: int) -> QuantisedLayer:
        """Its first `length` rows."""
        return QuantisedLayer(self.packed_keys.first(length), self.packed_values.first(length))


class QuantisedTransformer(Transformer):
    """A Llama that attends to quantised keys and values, those of the token itself included."""

    def new_cache(self) -> KVCache:
        """A quantised cache without rows."""
        nothing = Packed.of(np.zeros((self.config.num_kv_heads, 0, self.config.head_dim)))
        return cache_of([QuantisedLayer(nothing, nothing) for _ in range(self.config.num_layers)])

    def forward_without_cache(self, tokens: Sequence[int]) -> WholePass:
        """As `Transformer.forward_without_cache`; every layer attends to the rows as eight bits give them back."""
        x = self._embed(tokens)  # [T] -> [T, D]
        causal = np.tri(len(x), dtype=np.bool_)  # [T, T]
        angles = rotary_angles(np.arange(len(x)), self.config)  # [T, d/2]
        rows = []
        for layer in self.layers:
            queries, keys, values = self._project(layer, x, angles)
            keys, values = rounded(keys), rounded(values)
            rows.append((keys, values))
            x = self._mix(layer, x, queries, keys, values, causal)  # [T, D]
        return WholePass(self._finish(x).logits, tuple(rows))


def rounded(rows: Floats) -> Floats:
    """What is left of rows [n_kv_heads, T, head_dim] in eight bits, computed entry by entry."""
    kept = np.empty_like(rows)
    for start in range(0, rows.shape[-1], GROUP):
        part = rows[..., start : start + GROUP]
        low = part.min(axis=-1, keepdims=True)
        step = (part.max(axis=-1, keepdims=True) - low) / LEVELS
        step = np.where(step > 0, step, 1.0)
        kept[..., start : start + GROUP] = low + step * np.rint((part - low) / step)
    return kept
