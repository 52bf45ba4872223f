"""The oracle under the harness's eyes: its models wrapped, its caches read, and the two kinds of session.

Models are wrapped to transform logits and to raise. Which decoder and drafter to run is decided in `reference`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import is_dataclass
from functools import lru_cache
from hashlib import blake2b

import numpy as np

from reference.cache import KVCache, LayerCache
from reference.decoder import DecoderState
from reference.parts.paged import BLOCK_SIZE, PagedCache
from reference.transformer import Activations, LanguageModel, Transformer
from reference.values import DraftDistribution
from specproof.adapters.decoder_sessions import DecoderExactSession, DecoderSession
from specproof.architectures import architecture, load_model
from specproof.engine import BlockTable, CacheRows, ModelSpec, Observation
from specproof.errors import InjectedFault


class WrappedModel:
    """A model with a transform of its logits, and a fault at one of its forwards: a `LanguageModel`.

    Attributes:
        model_class: what is made of the weights; None takes what the spec says.
    """

    model_class: type[Transformer] | None = None

    def __init__(self, spec: ModelSpec) -> None:
        self._model = self._loaded = load_model(spec.folder, self.model_class or architecture(spec.architecture))
        # A model that is wrong on purpose may depend on more than tokens and cache: it is run every time.
        right = type(self._loaded).__module__.startswith("reference.")
        self._memory = _remembered(self._loaded) if right else None
        self._transform = spec.transform
        self._fault = spec.fault
        self._calls = 0

    @property
    def name(self) -> str:
        """The model's own name."""
        return self._model.name

    @property
    def vocab_size(self) -> int:
        """V."""
        return self._model.vocab_size

    @property
    def tokens(self) -> Mapping[str, int] | None:
        """The tokenizer's vocabulary."""
        return self._model.tokens

    def new_cache(self) -> KVCache:
        """The model's own cache."""
        return self._model.new_cache()

    def forward(self, tokens: Sequence[int], cache: KVCache) -> Activations:
        """The model's forward, its rows really written; logits [T, V] transformed.

        Raises:
            InjectedFault: this is the forward that the spec's fault names.
        """
        first = cache.offset
        self._raise_if("before")
        memory = self._memory if self._model is self._loaded else None
        activations = (memory or self._model).forward(tokens, cache)
        self._raise_if("after")
        self._calls += 1
        if self._transform is None:
            return activations
        positions = np.arange(first, first + len(tokens))
        return Activations(self._transform(activations.logits, positions), activations.hidden)

    def _raise_if(self, when: str) -> None:
        if self._fault is not None and (self._fault.call, self._fault.when) == (self._calls, when):
            raise InjectedFault(f"injected fault: forward {self._calls} of {self.name}, {when} it ran")


def running(made_of: type[Transformer]) -> type[WrappedModel]:
    """A wrapped model of this class, whatever the case says."""

    class Running(WrappedModel):
        model_class = made_of

    return Running


REMEMBERED = 8_000
"""Forwards of a model that are kept; beyond it all are forgotten and the memory begins anew."""


class RememberedModel:
    """A model whose forwards are looked up where they are repeated: a `LanguageModel`.

    Laws and regimes run the same rounds again and again. A forward is a function of its tokens and of what is in its
    cache (the rows themselves, right or wrong, not the history that they should stand for). Only `KVCache` itself is
    looked up, whose layers are values that are never written to; any other type is forwarded with.
    """

    def __init__(self, inner: LanguageModel) -> None:
        self.inner = inner
        self._known: dict[Hashable, tuple[Activations, list[LayerCache]]] = {}

    @property
    def name(self) -> str:
        """The inner model's."""
        return self.inner.name

    @property
    def vocab_size(self) -> int:
        """V."""
        return self.inner.vocab_size

    def new_cache(self) -> KVCache:
        """The inner model's."""
        return self.inner.new_cache()

    def forward(self, tokens: Sequence[int], cache: KVCache) -> Activations:
        """The inner model's forward, or what it gave before; the cache is left as that left it."""
        if type(cache) is not KVCache:
            return self.inner.forward(tokens, cache)
        content = blake2b(digest_size=16)
        for layer in cache.layers:
            _digest(layer, content.update)
        key = (tuple(tokens), content.digest())
        if key in self._known:
            activations, cache.layers = self._known[key][0], list(self._known[key][1])
        else:
            activations = self.inner.forward(tokens, cache)
            if len(self._known) >= REMEMBERED:
                self._known.clear()
            self._known[key] = activations, list(cache.layers)
        return Activations(activations.logits.copy(), activations.hidden)  # processors may write into what they get


def _digest(value: object, update: Callable[[bytes], object]) -> None:
    """All of a layer, its type included: arrays, numbers, and what consists of them."""
    if isinstance(value, np.ndarray):
        update(repr(value.shape).encode())
        update(value.tobytes())
    elif is_dataclass(value):
        update(type(value).__qualname__.encode())
        for part in vars(value).values():
            _digest(part, update)
    elif isinstance(value, tuple):
        update(b"(")
        for part in value:
            _digest(part, update)
    else:
        update(repr(value).encode())


@lru_cache(maxsize=64)
def _remembered(model: LanguageModel) -> RememberedModel:
    """The model with its memory, which serves all runs of the process."""
    return RememberedModel(model)


def observe(target_cache: KVCache | None, draft_cache: KVCache | None) -> Observation:
    """What two caches hold. Their arrays are never written to again, so they are not copied."""
    return Observation(
        target_offsets=target_cache.offsets if target_cache else None,
        draft_offsets=draft_cache.offsets if draft_cache else None,
        target_rows=_rows(target_cache) if target_cache else None,
        draft_rows=_rows(draft_cache) if draft_cache else None,
        target_blocks=_blocks(target_cache),
        draft_blocks=_blocks(draft_cache),
    )


def _rows(cache: KVCache) -> tuple[CacheRows, ...]:
    """A layer of `reference.parts` may have forgotten its first rows, and then says so."""
    return tuple(CacheRows(layer.keys, layer.values, getattr(layer, "first", 0)) for layer in cache.layers)


def _blocks(cache: KVCache | None) -> BlockTable | None:
    return BlockTable(tuple(cache.table), BLOCK_SIZE, cache.pool.in_use) if isinstance(cache, PagedCache) else None


class ReferenceSession(DecoderSession):
    """One turn of the oracle."""

    def observe(self) -> Observation:
        """The caches as they are now."""
        return observe(self.target_cache, self.drafter.cache)

    def distributions(self, state: DecoderState) -> tuple[DraftDistribution, ...]:
        """The q of the last round's proposals."""
        return state.block.distributions


class LeanReferenceSession(ReferenceSession):
    """A turn whose boundaries keep no rows: those of a long one take much memory."""

    def observe(self) -> Observation:
        """The offsets alone."""
        draft_cache = self.drafter.cache
        return Observation(self.target_cache.offsets, draft_cache.offsets if draft_cache else None)


class ReferenceExactSession(DecoderExactSession):
    """A decode of the oracle whose choices the harness makes."""

    def key(self) -> bytes:
        """History, ending and all cache rows to nine decimals."""
        caches = (self._state.target_cache, self._state.drafter.cache)
        arrays = [a for cache in caches if cache for layer in cache.layers for a in (layer.keys, layer.values)]
        # Adding zero turns -0.0, which rounds of tiny negative numbers leave, into 0.0.
        rows = b"".join((np.round(array, 9) + 0.0).tobytes() for array in arrays)
        return repr((self._state.history, self._state.finish)).encode() + rows
