"""Models whose forwards are remembered, for the enumeration of an exact law.

The enumeration runs the same round once for each of its outcomes, and rounds of the same history in every case. A
forward is a function of its tokens and of the rows in its cache, so a repetition is looked up. What it wrote is
written again, into the caller's own cache, so that caches hold what they would hold.

Looked up by the rows themselves, not by the history that they should stand for: a cache with wrong rows is
forwarded with its wrong rows. Caches of any other type than the plain one are never looked up.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import mlx.core as mx
import numpy as np

REMEMBERED = 20_000
"""Forwards that are kept; beyond it all are forgotten and the memory begins anew."""

Rows = tuple[mx.array, mx.array]
"""The keys and values that a forward of T tokens added to a layer: [1, n_kv_heads, T, head_dim] each."""


class RememberedModel:
    """An MLX model, called as mlx-lm calls its models.

    Args:
        inner: the model; its weights must not change.
        plain: the type of a layer's cache whose forwards are remembered, by mlx-lm's protocol.
    """

    def __init__(self, inner: Any, plain: type) -> None:
        self.inner = inner
        self._plain = plain
        self._known: dict[Hashable, tuple[mx.array, list[Rows]]] = {}

    @property
    def layers(self) -> Sequence[Any]:
        """The inner model's."""
        layers: Sequence[Any] = self.inner.layers
        return layers

    @property
    def args(self) -> Any:
        """The inner model's."""
        return self.inner.args

    def __call__(self, inputs: mx.array, cache: Sequence[Any]) -> mx.array:
        """Tokens [1, T] -> logits [1, T, V]; appends T rows to every layer of `cache`. Waits for the device."""
        if any(type(layer) is not self._plain for layer in cache):
            logits: mx.array = self.inner(inputs, cache=cache)
            return logits
        key = (np.array(inputs).tobytes(), tuple(_content(layer) for layer in cache))
        if key in self._known:
            logits, added = self._known[key]
            for layer, (keys, values) in zip(cache, added, strict=True):
                layer.update_and_fetch(keys, values)
        else:
            first = [layer.offset for layer in cache]
            logits = self.inner(inputs, cache=cache)
            added = [_rows_from(layer, start) for layer, start in zip(cache, first, strict=True)]
            mx.eval(logits, added)
            if len(self._known) >= REMEMBERED:
                self._known.clear()
            self._known[key] = logits, added
        return mx.array(logits)  # another object: processors write into what they are given


def _content(layer: Any) -> tuple[int, bytes]:
    """What of a layer's cache a forward depends on."""
    if layer.keys is None:
        return layer.offset, b""
    keys, values = _rows_from(layer, 0)
    return layer.offset, np.array(mx.stack([keys, values])).tobytes()


def _rows_from(layer: Any, start: int) -> Rows:
    """Copies of the live rows from `start` on."""
    return layer.keys[..., start : layer.offset, :], layer.values[..., start : layer.offset, :]
