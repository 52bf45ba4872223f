"""Rounds of several sequences in step: each proposes, one forward verifies all, each accepts and trims for itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from reference.decoder import Decoder, DecoderState
from reference.parts.batch import RowCache
from reference.transformer import Activations, LanguageModel
from reference.values import DraftBlock, Round

Floats = NDArray[np.float64]
Context = list[int]


class BatchModel(LanguageModel, Protocol):
    """A target that verifies several rows at once."""

    def forward_rows(self, tokens: Sequence[Sequence[int]], caches: Sequence[RowCache]) -> list[Activations]:
        """As `BatchTransformer.forward_rows`."""
        ...


@dataclass(eq=False)
class BatchRow:
    """A sequence of the batch: who decides about it, and how far it is."""

    decoder: BatchDecoder
    state: DecoderState
    cache: RowCache


@dataclass(frozen=True)
class BatchDecoder(Decoder):
    """A decoder of one sequence of a batch. Its `step` is a round of the whole batch.

    Attributes:
        batch_model: the target; the same for all sequences of the batch.
        companions: the sequences in the rows before this one. Each steps as long as its turn lasts.
    """

    batch_model: BatchModel | None = None
    companions: list[BatchRow] = field(default_factory=list)

    def step(self, state: DecoderState) -> Round:
        """As `Decoder.step`, for every sequence whose turn goes on. After an exception all are at a boundary.

        Raises:
            As `Decoder.step`.
        """
        assert isinstance(state.target_cache, RowCache)
        own = BatchRow(self, state, state.target_cache)
        rows = [row for row in (*self.companions, own) if row is own or row.state.finish is None]
        for row in rows:
            row.state.check_boundary()
        try:
            rounds = self._round_of_all(rows)
        except BaseException:
            for row in rows:
                row.state.roll_back()
            raise
        return rounds[rows.index(own)]

    def _round_of_all(self, rows: Sequence[BatchRow]) -> list[Round]:
        blocks = [row.decoder._propose(row.state) for row in rows]
        assert self.batch_model is not None
        tokens = [[row.state.history[-1], *block.tokens] for row, block in zip(rows, blocks, strict=True)]
        verified = self.batch_model.forward_rows(tokens, [row.cache for row in rows])
        contexts = self._contexts(rows, blocks)
        q = self._draft_distributions(blocks)
        return [
            row.decoder.decide(row.state, block, activations, seen, ours)
            for row, block, activations, seen, ours in zip(rows, blocks, verified, contexts, q, strict=True)
        ]

    def _contexts(self, rows: Sequence[BatchRow], blocks: Sequence[DraftBlock]) -> list[list[Context]]:
        """For every row and each of its k + 1 places, the tokens before it: what masks and penalties follow from."""
        return [
            [[*row.state.history, *block.tokens[:i]] for i in range(len(block) + 1)]
            for row, block in zip(rows, blocks, strict=True)
        ]

    def _draft_distributions(self, blocks: Sequence[DraftBlock]) -> list[list[Floats]]:
        """For every row, the q of each of its proposals, [V]."""
        return [[distribution.dense() for distribution in block.distributions] for block in blocks]

    def decide(self, state: DecoderState, block: DraftBlock, activations: Activations, contexts: list[Context],
               q: list[Floats]) -> Round:  # fmt: skip
        """What follows the verification, for one sequence: accept, report, trim."""
        p = [self._distribution(activations, i, context) for i, context in enumerate(contexts)]
        verdict = self.acceptance.decide(p, q, block.tokens, self.randomness, len(state.history))
        round_ = self._report(state, block, p, q, verdict)
        self._commit(state, round_)
        state.record(round_, block, activations.hidden)
        return round_
