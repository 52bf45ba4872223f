"""Decoders and drafters that are wrong on purpose: the oracle's own, with one thing changed each.

Plain mistakes, which no public engine is known to have made; those that one made are in `specproof.defects`. Every
invariant has some of either that it must see, and some that it must not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reference.acceptance import AcceptanceRule, Verdict
from reference.cache import LayerCache
from reference.decoder import Decoder, DecoderState
from reference.drafters import DraftModel
from reference.transformer import Activations, advance
from reference.values import DraftBlock, DraftDistribution, GeneratedToken, Round
from specproof.defects.mutations import NeverChecks

Floats = NDArray[np.float64]


# ------------------------------------------------------------------------------------------------- bookkeeping


class DropsTheWrongRows(NeverChecks):
    """The right number of rows is dropped from the wrong place: rejected rows stay, accepted ones go."""

    def _commit(self, state: DecoderState, round_: Round) -> None:
        before = len(state.history) - 1
        layers = state.target_cache.layers
        super()._commit(state, round_)
        kept = state.target_cache.offset - before
        state.target_cache.layers = [
            LayerCache(_first_and_last(layer.keys, before, kept), _first_and_last(layer.values, before, kept))
            for layer in layers
        ]


def _first_and_last(rows: Floats, first: int, last: int) -> Floats:
    """[n_kv_heads, T, head_dim] -> its first rows followed by its last ones."""
    return np.concatenate([rows[:, :first], rows[:, rows.shape[1] - last :]], axis=1)


class SpoilsOneRow(DraftModel):
    """The drafter's cache has the right length, and one accepted row is not what the token gives."""

    def commit(self, history: Sequence[int]) -> None:
        super().commit(history)
        layer = self.cache.layers[-1]
        keys = layer.keys.copy()
        keys[:, -1] += 1e-3
        self.cache.layers[-1] = LayerCache(keys, layer.values)


# ----------------------------------------------------------------------------------------------- what is emitted


class DropsBonus(Decoder):
    """After a full acceptance nothing is added."""

    def _report(
        self, state: DecoderState, block: DraftBlock, p: list[Floats], q: list[Floats], verdict: Verdict
    ) -> Round:
        done = super()._report(state, block, p, q, verdict)
        full = len(block) > 0 and len(done.emitted) == len(block) + 1
        kept = {"emitted": done.emitted[:-1], "log_probabilities": done.log_probabilities[:-1]}
        return replace(done, **kept) if full else done


class AcceptsEverything(Decoder):
    """Every proposal is accepted, whatever the target says."""

    @property
    def acceptance(self) -> AcceptanceRule:
        return replace(
            super().acceptance,
            decision=lambda p, q, drafted, randomness, position: Verdict(len(drafted), int(np.argmax(p[-1]))),
        )


# -------------------------------------------------------------------------------------------------- what q says


class ReportsUnnormalisedQ(DraftModel):
    """What is reported does not sum to 1."""

    def propose(self, history: Sequence[int], target_hidden: Floats | None, budget: int) -> DraftBlock:
        block = super().propose(history, target_hidden, budget)
        return DraftBlock(block.tokens, tuple(DraftDistribution.from_dense(q.dense() * 2) for q in block.distributions))


# --------------------------------------------------------------------------------------------------- how it ends


class ForgetsCloseCleanUp(Decoder):
    """A stream that is closed inside a block leaves the whole block in the caches."""

    def generate(self, state: DecoderState) -> Iterator[GeneratedToken]:
        while state.delivered < len(state.tokens) or state.finish is None:
            if state.delivered == len(state.tokens):
                self.step(state)
            state.delivered += 1
            yield state.tokens[state.delivered - 1]


class ForgetsRollback(Decoder):
    """After an exception in a round, its rows stay."""

    def prefill(self, *arguments: Any, **named: Any) -> DecoderState:
        state = super().prefill(*arguments, **named)
        state.roll_back = lambda: None
        return state


# ------------------------------------------------------------------------------------------ what processors see


class HidesProposals(Decoder):
    """Processors see the history without the proposals before a position."""

    def _verify(self, state: DecoderState, block: DraftBlock) -> tuple[list[Floats], Activations]:
        activations = advance(self.target, [state.history[-1], *block.tokens], state.target_cache)
        rows = range(len(block) + 1)
        return [self._distribution(activations, i, state.history) for i in rows], activations


# ------------------------------------------------------------------------------------------------- what is counted


class ReadsPOneRowLate(Decoder):
    """The p reported of a proposal is that of the position behind it."""

    def _report(
        self, state: DecoderState, block: DraftBlock, p: list[Floats], q: list[Floats], verdict: Verdict
    ) -> Round:
        done = super()._report(state, block, p, q, verdict)
        late = tuple(float(row[token]) for row, token in zip(p[1:], done.drafted, strict=True))
        return replace(done, p=late)
