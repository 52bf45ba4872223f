"""The oracle's decoder under the harness's eyes: wrapped models, observed steps, and the two kinds of session.

Models are wrapped to transform logits and to raise; `step` is observed to note each round boundary; a logits processor
that changes nothing notes what processors are shown. Which decoder and drafter to run is decided in `reference`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import cast

import numpy as np

from reference.cache import KVCache
from reference.decoder import Decoder, DecoderState
from reference.drafters import Drafter
from reference.sampling import LogitsProcessor
from reference.transformer import Activations, Transformer, load
from reference.values import Round
from specproof.engine import Boundary, CacheRows, Floats, ModelSpec, Observation
from specproof.errors import InjectedFault

OnRound = Callable[[DecoderState, Round], None]
MakeDecoder = Callable[[OnRound, Sequence[LogitsProcessor]], Decoder]


class WrappedModel:
    """A model with a transform of its logits, and a fault at one of its forwards: a `LanguageModel`."""

    def __init__(self, spec: ModelSpec) -> None:
        self._model = load_model(spec.folder)
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
        activations = self._model.forward(tokens, cache)
        self._raise_if("after")
        self._calls += 1
        if self._transform is None:
            return activations
        positions = np.arange(first, first + len(tokens))
        return Activations(self._transform(activations.logits, positions), activations.hidden)

    def _raise_if(self, when: str) -> None:
        if self._fault is not None and (self._fault.call, self._fault.when) == (self._calls, when):
            raise InjectedFault(f"injected fault: forward {self._calls} of {self.name}, {when} it ran")


@lru_cache(maxsize=16)
def load_model(folder: Path) -> Transformer:
    """The model of a folder, which must not change while the process runs."""
    return load(folder)


def observe(target_cache: KVCache | None, draft_cache: KVCache | None) -> Observation:
    """What two caches hold. Their arrays are never written to again, so they are not copied."""
    return Observation(
        target_offsets=target_cache.offsets if target_cache else None,
        draft_offsets=draft_cache.offsets if draft_cache else None,
        target_rows=_rows(target_cache) if target_cache else None,
        draft_rows=_rows(draft_cache) if draft_cache else None,
    )


def _rows(cache: KVCache) -> tuple[CacheRows, ...]:
    return tuple(CacheRows(layer.keys, layer.values) for layer in cache.layers)


class ReferenceSession:
    """One decode of the oracle; prefill runs with the first token asked for.

    Args:
        make_decoder: makes the decoder, given what to call after each of its steps, and its logits processors.
        drafter: with its cache.
        target_cache: empty, or with the rows of a prefix of the prompt.
        prompt: the whole history before this turn's first token.
        max_tokens: budget of this turn.
    """

    def __init__(
        self,
        make_decoder: MakeDecoder,
        drafter: Drafter,
        target_cache: KVCache,
        prompt: Sequence[int],
        max_tokens: int,
    ) -> None:
        self.boundaries: list[Boundary] = []
        self.drafter = drafter
        self.target_cache = target_cache
        self._contexts: list[tuple[int, ...]] = []
        self._decoder = make_decoder(self._note_boundary, [self._note_context])
        self._tokens = self._run(prompt, max_tokens)

    def __iter__(self) -> Iterator[int]:
        """The tokens, as the decoder's `generate` hands them out."""
        return self._tokens

    def close(self) -> None:
        """Close the decoder's iterator."""
        self._tokens.close()

    def observe(self) -> Observation:
        """The caches as they are now."""
        return observe(self.target_cache, self.drafter.cache)

    def _run(self, prompt: Sequence[int], max_tokens: int) -> Generator[int]:
        state = self._decoder.prefill(prompt, self.drafter, max_tokens, self.target_cache)
        self._note_boundary(state, None)
        tokens = self._decoder.generate(state)
        try:
            for generated in tokens:
                yield generated.token
        finally:
            cast(Generator[object], tokens).close()

    def _note_context(self, context: Sequence[int], logits: Floats) -> Floats:
        self._contexts.append(tuple(context))
        return logits

    def _note_boundary(self, state: DecoderState, done: Round | None) -> None:
        contexts, self._contexts = tuple(self._contexts), []
        self.boundaries.append(
            Boundary(
                emitted=tuple(state.emitted),
                round=done,
                observation=observe(state.target_cache, state.drafter.cache),
                draft_distributions=None if done is None else state.block.distributions,
                contexts=contexts,
            )
        )


class ReferenceExactSession:
    """A decode of the oracle whose choices the harness makes: an `ExactSession`."""

    def __init__(self, decoder: Decoder, state: DecoderState) -> None:
        self._decoder = decoder
        self._state = state

    @property
    def emitted(self) -> tuple[int, ...]:
        """Tokens of this turn so far."""
        return tuple(self._state.emitted)

    @property
    def finished(self) -> bool:
        """Whether the turn ended."""
        return self._state.finish is not None

    def step(self) -> None:
        """One round."""
        self._decoder.step(self._state)

    def copy(self) -> ReferenceExactSession:
        """The same decode in a copied state; models and choices are shared."""
        return ReferenceExactSession(self._decoder, self._state.copy())

    def key(self) -> bytes:
        """History, ending and all cache rows to nine decimals."""
        caches = (self._state.target_cache, self._state.drafter.cache)
        arrays = [a for cache in caches if cache for layer in cache.layers for a in (layer.keys, layer.values)]
        # Adding zero turns -0.0, which rounds of tiny negative numbers leave, into 0.0.
        rows = b"".join((np.round(array, 9) + 0.0).tobytes() for array in arrays)
        return repr((self._state.history, self._state.finish)).encode() + rows


def observed(decoder_class: type[Decoder], on_round: OnRound) -> type[Decoder]:
    """`decoder_class`, calling `on_round` with the state that each step leaves."""

    class Observed(decoder_class):  # type: ignore[misc, valid-type]  # a base class known only now
        def step(self, state: DecoderState) -> Round:
            done: Round = super().step(state)
            on_round(state, done)
            return done

    return Observed
