"""Decoders and drafters that are wrong on purpose: the oracle's own, with one thing changed each.

Every invariant has some of these that it must see, and some that it must not. The identifiers are those of the defect
catalogue; where a mutant has none, it is a plain mistake.
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
from reference.sampling import next_distribution
from reference.transformer import Activations, advance
from reference.values import DraftBlock, DraftDistribution, GeneratedToken, Round
from specproof.adapters.reference import ReferenceEngine

Floats = NDArray[np.float64]


# ----------------------------------------------------------------------------------------- drafter bookkeeping


class FeedsPendingOnly(DraftModel):
    """A drafter as most engines have it: it forwards the pending token and its own proposals, and nothing else.

    Unlike the oracle's it never looks at how much of the history its cache holds, so rows that are lost stay lost.
    Subclasses say how many rows to trim after a round.
    """

    _proposed: int | None = None
    _length = 0

    def rows_to_trim(self, proposed: int, accepted: int) -> int:
        raise NotImplementedError

    def propose(self, history: Sequence[int], target_hidden: Floats | None, budget: int) -> DraftBlock:
        tokens: list[int] = []
        distributions: list[DraftDistribution] = []
        for _ in range(budget):
            context = [*history, *tokens]
            logits = advance(self.model, context[-1:], self.cache).logits[-1]
            q = next_distribution(logits, context, self.sampling, self.processors, self.model.name)
            tokens.append(self._draw(q, len(context)))
            distributions.append(DraftDistribution.from_dense(q))
        self._proposed, self._length = len(tokens), len(history)
        return DraftBlock(tuple(tokens), tuple(distributions))

    def commit(self, history: Sequence[int]) -> None:
        if self._proposed is not None:
            accepted = len(history) - self._length - 1
            self.cache.trim(self.rows_to_trim(self._proposed, accepted))
            self._proposed = None

    def settle(self, history: Sequence[int]) -> None:
        """After prefill it forwards the prompt, like any engine; at an end it does what it does after any round."""
        if self._length == 0:
            super().settle(history)
        else:
            self.commit(history)


class TrimsRejectedPlusOne(FeedsPendingOnly):
    """D01: rejected + 1, capped at k, where rejected - 1 is right."""

    def rows_to_trim(self, proposed: int, accepted: int) -> int:
        return min(proposed - accepted + 1, proposed)


class NeverCatchesUp(FeedsPendingOnly):
    """D02: the right trim, but after a full acceptance the last proposal is not forwarded."""

    def rows_to_trim(self, proposed: int, accepted: int) -> int:
        return max(proposed - accepted - 1, 0)


class NeverTrims(FeedsPendingOnly):
    """D04: rejected proposals stay in the cache."""

    def rows_to_trim(self, proposed: int, accepted: int) -> int:
        return 0


# ------------------------------------------------------------------------------------------ target bookkeeping


class NeverChecks(Decoder):
    """A decode loop that goes on whatever its caches hold, as most do; the oracle's refuses to."""

    def prefill(self, *arguments: Any, **named: Any) -> DecoderState:
        state = super().prefill(*arguments, **named)
        state.check_boundary = lambda: None
        return state


class KeepsRejectedRows(NeverChecks):
    """D23: nothing is trimmed from the target's cache after a round."""

    def _commit(self, state: DecoderState, round_: Round) -> None:
        state.drafter.settle([*state.history, *round_.emitted])


class TrimsFirstLayerOnly(Decoder):
    """D17: rejected rows leave one layer only."""

    def _commit(self, state: DecoderState, round_: Round) -> None:
        others = state.target_cache.layers[1:]
        super()._commit(state, round_)
        state.target_cache.layers[1:] = others


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


class TestsLastTokenForStop(Decoder):
    """D59: only the last token of a block is tested against the stop tokens."""

    __test__ = False

    def _until_stop(self, tokens: Sequence[int]) -> Sequence[int]:
        return tokens


class IgnoresBudget(Decoder):
    """D62: the block is not limited to what remains of the budget."""

    def _propose(self, state: DecoderState) -> DraftBlock:
        return state.drafter.propose(state.history, state.target_hidden, self.num_draft_tokens)


class DropsBonus(Decoder):
    """After a full acceptance nothing is added."""

    def _report(
        self, state: DecoderState, block: DraftBlock, p: list[Floats], q: list[Floats], verdict: Verdict
    ) -> Round:
        done = super()._report(state, block, p, q, verdict)
        full = len(block) > 0 and len(done.emitted) == len(block) + 1
        return replace(done, emitted=done.emitted[:-1]) if full else done


class AcceptsEverything(Decoder):
    """Every proposal is accepted, whatever the target says."""

    @property
    def acceptance(self) -> AcceptanceRule:
        return replace(
            super().acceptance,
            decision=lambda p, q, drafted, randomness, position: Verdict(len(drafted), int(np.argmax(p[-1]))),
        )


# -------------------------------------------------------------------------------------------------- what q says


class ReportsUntemperedQ(DraftModel):
    """D72: proposals are drawn from the processed logits, and the plain softmax is reported."""

    def propose(self, history: Sequence[int], target_hidden: Floats | None, budget: int) -> DraftBlock:
        block = super().propose(history, target_hidden, budget)
        flatter = [np.sqrt(q.dense()) for q in block.distributions]
        return DraftBlock(block.tokens, tuple(DraftDistribution.from_dense(q / q.sum()) for q in flatter))


class ReportsUnnormalisedQ(DraftModel):
    """What is reported does not sum to 1."""

    def propose(self, history: Sequence[int], target_hidden: Floats | None, budget: int) -> DraftBlock:
        block = super().propose(history, target_hidden, budget)
        return DraftBlock(block.tokens, tuple(DraftDistribution.from_dense(q.dense() * 2) for q in block.distributions))


class DrawsArgmax(DraftModel):
    """D73: proposals are argmaxes, and the softmax they were not drawn from is reported."""

    def _draw(self, q: Floats, position: int) -> int:
        return int(np.argmax(q))


# --------------------------------------------------------------------------------------------------- how it ends


class ForgetsCloseCleanUp(Decoder):
    """A stream that is closed inside a block leaves the whole block in the caches."""

    def _deliver(self, state: DecoderState) -> Iterator[GeneratedToken]:
        while state.delivered < len(state.tokens):
            state.delivered += 1
            yield state.tokens[state.delivered - 1]


class ForgetsRollback(Decoder):
    """After an exception in a round, its rows stay."""

    def prefill(self, *arguments: Any, **named: Any) -> DecoderState:
        state = super().prefill(*arguments, **named)
        state.roll_back = lambda: None
        return state


class EndsByItsLastToken(Decoder):
    """D52: a turn that ends with an accepted proposal leaves that proposal's row in the target's cache."""

    def _commit(self, state: DecoderState, round_: Round) -> None:
        layers = state.target_cache.layers
        super()._commit(state, round_)
        if round_.finish is not None and len(round_.emitted) <= round_.num_accepted:
            kept = state.target_cache.offset + 1
            state.target_cache.layers = [layer.first_rows(kept) for layer in layers]


class NeverCommitsStop(Decoder):
    """D53: the turn ends one row early if it ends with a stop token."""

    def _commit(self, state: DecoderState, round_: Round) -> None:
        super()._commit(state, round_)
        if round_.finish == "stop":
            state.target_cache.trim(1)


# ------------------------------------------------------------------------------------------ what processors see


class ShowsLastTokenOnly(Decoder):
    """D95: the history that processors see begins at the last token."""

    def _distribution(self, activations: Activations, row: int, context: Sequence[int]) -> Floats:
        return super()._distribution(activations, row, context[-1:])


class HidesProposals(Decoder):
    """Processors see the history without the proposals before a position."""

    def _verify(self, state: DecoderState, block: DraftBlock) -> tuple[list[Floats], Activations]:
        activations = advance(self.target, [state.history[-1], *block.tokens], state.target_cache)
        rows = range(len(block) + 1)
        return [self._distribution(activations, i, state.history) for i in rows], activations


# ------------------------------------------------------------------------------------------------- what is counted


class CountsOneMore(Decoder):
    """D136: one proposal too many is reported."""

    def _report(
        self, state: DecoderState, block: DraftBlock, p: list[Floats], q: list[Floats], verdict: Verdict
    ) -> Round:
        done = super()._report(state, block, p, q, verdict)
        return replace(done, p=(*done.p, 0.5))


class ReadsPOneRowLate(Decoder):
    """The p reported of a proposal is that of the position behind it."""

    def _report(
        self, state: DecoderState, block: DraftBlock, p: list[Floats], q: list[Floats], verdict: Verdict
    ) -> Round:
        done = super()._report(state, block, p, q, verdict)
        late = tuple(float(row[token]) for row, token in zip(p[1:], done.drafted, strict=True))
        return replace(done, p=late)


def with_drafter(drafter_class: type[DraftModel]) -> ReferenceEngine:
    """The oracle with another drafter."""
    return ReferenceEngine(drafter_class.__name__, drafter_class=drafter_class)


def with_decoder(decoder_class: type[Decoder]) -> ReferenceEngine:
    """The oracle with another decode loop."""
    return ReferenceEngine(decoder_class.__name__, decoder_class=decoder_class)
