"""Models on MLX whose forwards are remembered: an audit runs the same rounds again and again.

An enumeration runs a round once for each of its outcomes, and regimes run the same prompts under every rule. A
forward is a function of its tokens and of the rows in its cache, so a repetition is looked up. What it wrote is
written again, into the caller's own cache, so that caches hold what they would hold.

Looked up by the rows themselves, not by the history that they should stand for: a cache with wrong rows is
forwarded with its wrong rows. Caches of any other type than the plain one are never looked up, nor are rows in
another precision than float32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

REMEMBERED = 200_000_000
"""Bytes of logits and rows that are kept of a model; beyond it all are forgotten and the memory begins anew."""

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
        self._known: dict[bytes, tuple[mx.array, list[Rows]]] = {}
        self._bytes = 0

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
        if not self._can_be_looked_up(cache):
            logits: mx.array = self.inner(inputs, cache=cache)
            return logits
        mx.eval(inputs, [part for layer in cache for part in (layer.keys, layer.values) if part is not None])
        key = _digest(inputs, cache)
        if key in self._known:
            logits, added = self._known[key]
            for layer, (keys, values) in zip(cache, added, strict=True):
                layer.update_and_fetch(keys, values)
        else:
            first = [layer.offset for layer in cache]
            logits = self.inner(inputs, cache=cache)
            if not self._can_be_looked_up(cache):
                return logits
            mx.eval(logits, [(layer.keys, layer.values) for layer in cache])
            added = [
                (mx.array(_rows(layer.keys, start, layer.offset)), mx.array(_rows(layer.values, start, layer.offset)))
                for layer, start in zip(cache, first, strict=True)
            ]
            size = logits.nbytes + sum(keys.nbytes + values.nbytes for keys, values in added)
            if self._bytes + size > REMEMBERED:
                self._known.clear()
                self._bytes = 0
            self._known[key] = logits, added
            self._bytes += size
        return mx.array(logits)  # another object: processors write into what they are given

    def _can_be_looked_up(self, cache: Sequence[Any]) -> bool:
        return all(type(layer) is self._plain and _is_single(layer) for layer in cache)


class Models:
    """The models of folders, each loaded once as long as its weights do not change.

    Args:
        load: folder -> model.
        plain: as for `RememberedModel`.
    """

    def __init__(self, load: Callable[[Path], Any], plain: type) -> None:
        self._loaded = lru_cache(maxsize=8)(lambda folder, written: load(folder))
        self._memories = lru_cache(maxsize=8)(lambda folder, written: RememberedModel(self.plain(folder), plain))

    def plain(self, folder: Path) -> Any:
        """The model itself. Raises whatever `load` raises."""
        return self._loaded(folder, weights_written(folder))

    def remembered(self, folder: Path) -> RememberedModel:
        """The model with a memory of its forwards, which serves all runs of the process."""
        return self._memories(folder, weights_written(folder))


def weights_written(folder: Path) -> tuple[int, ...]:
    """When each weight file of a folder was last written, in ns: tells whether a model loaded before is still its."""
    return tuple(file.stat().st_mtime_ns for file in sorted(folder.glob("*.safetensors")))


def _is_single(layer: Any) -> bool:
    """Whether a layer's rows are float32, or there are none yet."""
    return layer.keys is None or bool(layer.keys.dtype == layer.values.dtype == mx.float32)


def _digest(inputs: mx.array, cache: Sequence[Any]) -> bytes:
    """Of all that a forward depends on: its tokens and the rows in its caches, with their shapes and types."""
    digest = blake2b(f"{inputs.shape} {inputs.dtype}".encode())
    digest.update(np.array(inputs).tobytes())
    for layer in cache:
        digest.update(f"{layer.offset} {None if layer.keys is None else layer.keys.shape[1::2]}".encode())
        if layer.keys is not None:
            digest.update(_rows(layer.keys, 0, layer.offset).tobytes())
            digest.update(_rows(layer.values, 0, layer.offset).tobytes())
    return digest.digest()


def _rows(buffer: mx.array, start: int, end: int) -> Any:
    """Some rows of a buffer that is evaluated, read where they are. To be copied at once: MLX writes into buffers."""
    return np.asarray(buffer)[..., start:end, :]
