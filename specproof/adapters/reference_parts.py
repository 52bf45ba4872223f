"""The oracle with parts that a plain Llama does not have, as engines: sliding windows, recurrent states, and so on.

The decode loop, drafters and rules are those of `reference`; models, caches and automata those of `reference.parts`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

import numpy as np

from reference.cache import KVCache
from reference.decoder import Decoder
from reference.drafters import Drafter, DraftModel
from reference.parts.batch import BatchTransformer, RowCache
from reference.parts.batch_decoder import BatchDecoder, BatchRow
from reference.parts.grammar import grammar_mask
from reference.parts.matcher import MatcherDecoder
from reference.parts.prefix import PublishingTarget, begin_inside
from reference.parts.recurrent import RecurrentTarget
from reference.parts.rotating import WindowedTarget
from reference.randomness import Randomness, SeededRandomness
from reference.sampling import LogitsProcessor
from reference.transformer import Activations
from specproof.adapters.decoder_sessions import OnRound, Processors, observed
from specproof.adapters.reference import ReferenceEngine
from specproof.adapters.reference_sessions import ReferenceSession, WrappedModel, running
from specproof.engine import Capabilities, Case, ModelSpec

WINDOWED = ReferenceEngine("reference-windowed", architecture="windowed", target_class=running(WindowedTarget))
RECURRENT = ReferenceEngine("reference-recurrent", architecture="recurrent", target_class=running(RecurrentTarget))
QUANTISED = ReferenceEngine("reference-quantised", architecture="quantised")
PUBLISHING = running(PublishingTarget)
PAGED = ReferenceEngine("reference-paged", architecture="paged")


@dataclass(frozen=True)
class PrefixEngine(ReferenceEngine):
    """The oracle with recurrent states, whose further turns begin at a state that was published on the way."""

    name: str = "reference-prefix"
    architecture: str = "recurrent"
    target_class: type[WrappedModel] = PUBLISHING

    def _session(
        self, case: Case, history: Sequence[int], target_cache: KVCache | None, draft_cache: KVCache | None,
        randomness: Randomness,
    ) -> ReferenceSession:  # fmt: skip
        if target_cache is not None:
            begin_inside(target_cache, len(history) - 1)
        return super()._session(case, history, target_cache, draft_cache, randomness)


@dataclass(frozen=True)
class GrammarEngine(ReferenceEngine):
    """The oracle under the grammar of `reference.parts.grammar`: target and drafter are masked by the context.

    Attributes:
        target_mask, draft_mask: what masks the two.
    """

    name: str = "reference-grammar"
    architecture: str = "grammar"
    target_mask: LogitsProcessor = grammar_mask
    draft_mask: LogitsProcessor = grammar_mask

    def _decoder(
        self, case: Case, randomness: Randomness, decoder_class: type[Decoder], processors: Processors
    ) -> Decoder:
        return super()._decoder(case, randomness, decoder_class, [*processors, self.target_mask])

    def _drafter(self, case: Case, randomness: Randomness, cache: KVCache | None) -> Drafter:
        drafter = super()._drafter(case, randomness, cache)
        if isinstance(drafter, DraftModel):
            drafter.processors = (self.draft_mask,)
        return drafter


@dataclass(frozen=True)
class MatcherEngine(GrammarEngine):
    """As `GrammarEngine`, its target masked by an automaton that advances and rolls back."""

    name: str = "reference-matcher"
    decoder_class: type[Decoder] = MatcherDecoder

    @property
    def capabilities(self) -> Capabilities:
        """Its automaton is outside the states that an exact law copies."""
        return replace(super().capabilities, injectable_choices=False)

    def _decoder(
        self, case: Case, randomness: Randomness, decoder_class: type[Decoder], processors: Processors
    ) -> Decoder:
        return ReferenceEngine._decoder(self, case, randomness, decoder_class, processors)


class WrappedBatchModel(WrappedModel):
    """As `WrappedModel`, for a target that also verifies several rows at once. A fault counts such a pass as one."""

    model_class = BatchTransformer

    def new_batch(self, num_rows: int, capacity: int) -> list[RowCache]:
        """The rows of an empty batch."""
        return self._batch_model.new_batch(num_rows, capacity)

    def forward_rows(self, tokens: Sequence[Sequence[int]], caches: Sequence[RowCache]) -> list[Activations]:
        """As `BatchTransformer.forward_rows`, the logits of each row transformed by its own positions.

        Raises:
            InjectedFault: this is the forward that the spec's fault names.
        """
        first = [cache.offset for cache in caches]
        self._raise_if("before")
        verified = self._batch_model.forward_rows(tokens, caches)
        self._raise_if("after")
        self._calls += 1
        return [self._transformed(start, activations) for start, activations in zip(first, verified, strict=True)]

    @property
    def _batch_model(self) -> BatchTransformer:
        return cast(BatchTransformer, self._model)

    def _transformed(self, first: int, activations: Activations) -> Activations:
        if self._transform is None:
            return activations
        positions = np.arange(first, first + len(activations.logits))
        return Activations(self._transform(activations.logits, positions), activations.hidden)


@dataclass(frozen=True)
class BatchEngine(ReferenceEngine):
    """The oracle on the last row of a batch, behind companions of other lengths. It must be as if it were alone.

    Attributes:
        companions: how many rows are before it.
    """

    name: str = "reference-batch"
    architecture: str = "batch"
    target_class: type[WrappedModel] = WrappedBatchModel
    decoder_class: type[Decoder] = BatchDecoder
    companions: int = 2

    @property
    def capabilities(self) -> Capabilities:
        """A row cannot be copied without its batch, so there is no exact law."""
        return replace(super().capabilities, injectable_choices=False)

    def _session(
        self, case: Case, history: Sequence[int], target_cache: KVCache | None, draft_cache: KVCache | None,
        randomness: Randomness,
    ) -> ReferenceSession:  # fmt: skip
        caches = self._rows(case, history, target_cache)
        companions = [self._companion(case, history, row, cache) for row, cache in enumerate(caches[:-1])]

        def make_decoder(on_round: OnRound, processors: Processors) -> Decoder:
            decoder = self._decoder(case, randomness, observed(self.decoder_class, on_round), processors)
            return _joined(decoder, companions)

        drafter = self._drafter(case, randomness, draft_cache)
        return ReferenceSession(make_decoder, drafter, caches[-1], history, case.max_tokens, shows_contexts=True)

    def _rows(self, case: Case, history: Sequence[int], target_cache: KVCache | None) -> list[RowCache]:
        """The rows of a new batch; or those of the batch of `target_cache`, all but that one emptied for others."""
        num_rows = self.companions + 1
        if target_cache is None:
            capacity = len(history) + case.max_tokens + 2 * case.num_draft_tokens + 24
            return cast(WrappedBatchModel, self.target_class(case.target)).new_batch(num_rows, capacity)
        held = cast(RowCache, target_cache)
        caches = [held if row == held.row else RowCache(held.batch, row) for row in range(num_rows)]
        for cache in caches:
            if cache is not held:
                cache.trim_to(0)
        return caches

    def _companion(self, case: Case, history: Sequence[int], row: int, cache: RowCache) -> BatchRow:
        """Another sequence: other tokens, another length, another budget, another seed; no faults, no stops."""
        case = replace(case, target=_faultless(case.target), draft=case.draft and _faultless(case.draft),
                       stop_tokens=frozenset(), seed=case.seed + 1 + row)  # fmt: skip
        model = self.target_class(case.target)
        prompt = [(token + 1 + row) % model.vocab_size for token in (*history[-6:], *range(row))]
        randomness = SeededRandomness(case.seed)
        decoder = _joined(self._decoder(case, randomness, self.decoder_class, []), [])
        budget = max(case.max_tokens + (-1, 1)[row % 2], 0)
        state = decoder.prefill(prompt, self._drafter(case, randomness, None), budget, cache)
        return BatchRow(decoder, state, cache)


def _joined(decoder: Decoder, companions: list[BatchRow]) -> BatchDecoder:
    """A batch decoder that verifies with its own target, and the rows that step with it."""
    assert isinstance(decoder, BatchDecoder)
    model = cast(WrappedBatchModel, decoder.target)
    return replace(decoder, batch_model=model, companions=companions)


def _faultless(spec: ModelSpec) -> ModelSpec:
    return replace(spec, fault=None)


@dataclass(frozen=True)
class BatchGrammarEngine(GrammarEngine, BatchEngine):
    """As `BatchEngine`, every row under the grammar."""

    name: str = "reference-batch-grammar"
    target_class: type[WrappedModel] = WrappedBatchModel
    decoder_class: type[Decoder] = BatchDecoder


PREFIX = PrefixEngine()
GRAMMAR = GrammarEngine()
MATCHER = MatcherEngine()
BATCH = BatchEngine()
BATCH_GRAMMAR = BatchGrammarEngine()
PARTS = (WINDOWED, RECURRENT, PREFIX, QUANTISED, PAGED, GRAMMAR, MATCHER, BATCH, BATCH_GRAMMAR)
"""Every right engine of this module."""
