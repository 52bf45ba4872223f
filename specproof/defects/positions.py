"""Defects of positions and of kernels: the right tokens at the wrong place, or rows that are not their own."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from reference.cache import KVCache
from reference.transformer import Activations, Layer, rotary_angles
from specproof.adapters.reference_sessions import WrappedModel
from specproof.defects.mutations import oracle_defect
from specproof.engine import ModelSpec

Floats = NDArray[np.float64]


class ShiftsPositions(WrappedModel):
    """A model whose rotary positions are not where its cache is. Subclasses say how far they are off."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__(spec)
        self._shift = 0
        self._model = copy.copy(self._model)
        vars(self._model)["_project"] = self._project

    def _project(self, layer: Layer, x: Floats, angles: Floats) -> tuple[Floats, Floats, Floats]:
        further = rotary_angles(np.array([self._shift]), self._model.config)  # [1, d/2]
        return type(self._model)._project(self._model, layer, x, angles + further)

    def shift(self, offset: int, count: int) -> int:
        """How far off a forward of `count` tokens after `offset` rows is."""
        raise NotImplementedError

    def forward(self, tokens: Sequence[int], cache: KVCache) -> Activations:
        """The model's forward at those positions."""
        self._shift = self.shift(cache.offset, len(tokens))
        return super().forward(tokens, cache)


class StartsOneAhead(ShiftsPositions):
    """D34: after its first forward, every one begins a position beyond what the cache holds."""

    def shift(self, offset: int, count: int) -> int:
        """One, but for the first forward."""
        return int(self._calls > 0)


class CountsForwarded(ShiftsPositions):
    """D112: the next position is behind everything that was forwarded, rejected or not."""

    _next = 0

    def shift(self, offset: int, count: int) -> int:
        """What was rejected so far."""
        ahead = max(self._next - offset, 0)
        self._next = offset + ahead + count
        return ahead


class TakesTargetsPositions(ShiftsPositions):
    """D113: the drafter is given position ids that were made for another sequence, here two ahead of its own."""

    def shift(self, offset: int, count: int) -> int:
        """Always the same: attention, which is relative, does not notice."""
        return 2


class AddsTwoPerProposal(ShiftsPositions):
    """D114: while proposing, every step advances the position by two."""

    _chain = 0
    _end = -1

    def shift(self, offset: int, count: int) -> int:
        """One more with every forward that follows directly on the one before."""
        self._chain = self._chain + 1 if (offset, count) == (self._end, 1) and self._calls > 1 else 0
        self._end = offset + count
        return self._chain


class RepeatsFirstRow(WrappedModel):
    """D115: a kernel gives every row the first one's result where the number of rows is not a power of two."""

    def forward(self, tokens: Sequence[int], cache: KVCache) -> Activations:
        """The model's forward; prompts go another way."""
        verifies = cache.offset > 0
        done = super().forward(tokens, cache)
        rows = len(done.logits)
        if not verifies or rows & (rows - 1) == 0:
            return done
        return Activations(np.repeat(done.logits[:1], rows, axis=0), done.hidden)


OUTPUT = (
    "target_cache_offset draft_cache_offset emitted_block greedy_parity processor_history log_probabilities exact_law "
    "output_distribution bad_input"
)
"""What a drafter at wrong positions leaves right."""

DEFECTS = (
    oracle_defect(
        "D34", "positions", "llama.cpp", "ggml-org/llama.cpp#26478",
        "The drafter is asked to start one position beyond what its cache holds.",
        expected="cache_content honest_q acceptance_rate", silent=OUTPUT, draft_class=StartsOneAhead,
    ),
    oracle_defect(
        "D112", "positions", "transformers", "huggingface/transformers#30042",
        "After a partial acceptance the next position is that behind the whole block.",
        expected="cache_content greedy_parity counters log_probabilities exact_law",
        silent="target_cache_offset draft_cache_offset emitted_block honest_q processor_history bad_input",
        target_class=CountsForwarded,
    ),
    oracle_defect(
        "D113", "positions", "transformers", "huggingface/transformers#46936",
        "The drafter inherits position ids that were made for the target's sequence.",
        expected="cache_content", silent=f"{OUTPUT} honest_q acceptance_rate", draft_class=TakesTargetsPositions,
    ),
    oracle_defect(
        "D114", "positions", "LMDeploy", "InternLM/lmdeploy#4517",
        "The position is advanced twice with every proposal.",
        expected="cache_content honest_q acceptance_rate", silent=OUTPUT, draft_class=AddsTwoPerProposal,
    ),
    oracle_defect(
        "D115", "positions", "AITER", "ROCm/aiter#2720",
        "The verify kernel gives every row the first one's result where their number is not a power of two.",
        expected="greedy_parity counters log_probabilities exact_law",
        silent="target_cache_offset draft_cache_offset cache_content emitted_block honest_q processor_history",
        target_class=RepeatsFirstRow,
    ),
)  # fmt: skip
"""In the order of their ids."""
