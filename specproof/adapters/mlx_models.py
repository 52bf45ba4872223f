"""What the two MLX adapters share: an observed model, and readings of MLX key-value caches.

Knows the calling convention of mlx-lm's models (`model(inputs, cache=cache) -> logits`) and of its plain caches
(`offset`, `keys`, `values`), which `mlx_impl` follows too. Loading a folder is left to the adapters, and so is
everything about decoding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from mlx_impl.cache import offsets
from mlx_impl.layers import leaves
from specproof.engine import CacheRows, Fault, Floats, LogitTransform, ModelSpec, Observation
from specproof.errors import InjectedFault


class LayerCache(Protocol):
    """A layer's cache by mlx-lm's protocol, as far as it is read here.

    `keys` and `values` are [1, n_kv_heads, rows held or reserved, head_dim], or None before the first forward;
    the first `offset` rows are live.
    """

    offset: int
    keys: mx.array | None
    values: mx.array | None


PromptCache = Sequence[LayerCache]
"""One cache a layer."""


class ObservedModel:
    """An MLX model that does what a `ModelSpec` says: transformed logits, and an exception at one forward.

    The inner model always runs on the caller's own cache, so that rows are really written. Forwards are counted
    from 0 for every instance: make a new one for every turn.

    Args:
        inner: the model, of type mlx-lm `Model` or `mlx_impl.transformer.Transformer`.
        name: used in the message of an injected fault.
        spec: the transform and the fault; its folder is not read here.
        before_forward: called at the start of every forward, before any fault.
    """

    def __init__(
        self, inner: Any, name: str, spec: ModelSpec, before_forward: Callable[[], None] = lambda: None
    ) -> None:
        self.inner = inner
        self.name = name
        self._transform: LogitTransform | None = spec.transform
        self._fault: Fault | None = spec.fault
        self._before_forward = before_forward
        self._calls = 0

    @property
    def layers(self) -> Sequence[Any]:
        """The inner model's layers (mlx-lm takes their number to split a prompt cache)."""
        layers: Sequence[Any] = self.inner.layers
        return layers

    @property
    def args(self) -> Any:
        """The inner model's configuration (`mlx_impl` takes the size of the vocabulary from it)."""
        return self.inner.args

    def __call__(self, inputs: mx.array, cache: PromptCache) -> mx.array:
        """Tokens [1, T] -> logits [1, T, V]; appends T rows to every layer of `cache`.

        Raises:
            InjectedFault: at the forward that the fault names, before or after the inner model ran.
        """
        call, self._calls = self._calls, self._calls + 1
        self._before_forward()
        self._raise_fault(call, "before")
        first = _held(cache)
        logits: mx.array = self.inner(inputs, cache=cache)
        self._raise_fault(call, "after")
        if self._transform is None:
            return logits
        return _transformed(logits, self._transform, first)

    def _raise_fault(self, call: int, when: str) -> None:
        if self._fault is not None and (self._fault.call, self._fault.when) == (call, when):
            raise InjectedFault(f"injected fault: {self.name} forward {call}, {when} it ran")


def _held(cache: PromptCache) -> int:
    """Tokens that a cache holds: by its first part, a cache of rows (`offset`) or of states that counts (`tokens`)."""
    first: Any = next(leaves(cache))
    held: int = first.offset if hasattr(first, "offset") else first.tokens
    return held


def _transformed(logits: mx.array, transform: LogitTransform, first: int) -> mx.array:
    """`transform` of logits [1, T, V] whose first row is at position `first`, computed in float64 on the host."""
    positions = np.arange(first, first + logits.shape[1], dtype=np.int64)
    dense = _on_host(logits)[0].astype(np.float64)  # [1, T, V] -> [T, V]
    changed = mx.array(transform(dense, positions).astype(np.float32)[None])  # [T, V] -> [1, T, V]
    return changed.astype(logits.dtype)


def rows(cache: PromptCache) -> tuple[CacheRows, ...]:
    """The live rows of every layer; [0, 0, 0] for a layer that no forward has reached."""
    mx.eval([part for layer in cache for part in (layer.keys, layer.values) if part is not None])  # one wait for all
    return tuple(CacheRows(_live(layer.keys, layer.offset), _live(layer.values, layer.offset)) for layer in cache)


def _live(buffer: mx.array | None, offset: int) -> Floats:
    """The first rows of a buffer: [1, n_kv_heads, reserved, head_dim] -> [n_kv_heads, offset, head_dim].

    Copied on the host, where the buffer is: slices on the device cost as much as a forward of a toy.
    """
    if buffer is None:
        return np.zeros((0, 0, 0))
    return _on_host(buffer)[0, :, :offset].astype(np.float64)


def _on_host(array: mx.array) -> NDArray[np.float32]:
    """As it is in MLX's own memory, to be copied at once: no operation, and no wait where it was computed already."""
    return np.asarray(array if array.dtype == mx.float32 else array.astype(mx.float32))


def observation(target_cache: PromptCache, draft_cache: PromptCache | None) -> Observation:
    """Offsets and rows of both caches as they are now; the drafter's are None where it has no cache."""
    if draft_cache is None:
        return Observation(target_offsets=offsets(target_cache), target_rows=rows(target_cache))
    return Observation(offsets(target_cache), offsets(draft_cache), rows(target_cache), rows(draft_cache))


def state_key(tokens: Sequence[int], seen: Observation, decimals: int = 4) -> bytes:
    """Equal for equal tokens and equal caches, after rounding float32 noise away."""
    layers = (seen.target_rows or ()) + (seen.draft_rows or ())
    rounded = (np.round(part, decimals) + 0.0 for layer in layers for part in (layer.keys, layer.values))  # no -0.0
    return repr((tuple(tokens), seen.target_offsets, seen.draft_offsets)).encode() + b"".join(
        part.tobytes() for part in rounded
    )
