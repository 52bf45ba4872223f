"""Defects of grammars: an automaton that is advanced too often, too early, by the wrong token, or never taken back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from reference.decoder import DecoderState
from reference.parts.grammar import Grammar, grammar_mask, masked
from reference.parts.matcher import Matcher, MatcherDecoder
from reference.transformer import Activations, advance
from reference.values import DraftBlock, Round
from specproof.adapters.reference_parts import GRAMMAR, MATCHER, GrammarEngine
from specproof.defects.parts import part_defect

Floats = NDArray[np.float64]


def lacks_last(context: Sequence[int], logits: Floats) -> Floats:
    """D98: the mask of a context to which the token just sampled is added too late. [V] -> [V]."""
    return grammar_mask(context[:-1], logits)


@dataclass
class CountsCalls:
    """D99: a processor that advances by one token whenever it is called, by whomever."""

    state: Grammar = field(default_factory=Grammar)

    def __call__(self, context: Sequence[int], logits: Floats) -> Floats:
        """Logits [V] -> [V], masked for what it thinks the context is."""
        self.state = self.state.after(context[-1])
        return masked(self.state, logits)


class LeavesFlag(Matcher):
    """D108: a rollback undoes everything but whether a formula is open."""

    def rollback(self, count: int) -> None:
        """As the right one, and then the flag of before."""
        inside = self.state.inside
        super().rollback(count)
        if self.state.inside != inside:
            self._states[-1] = Grammar(inside)


@dataclass(frozen=True)
class MasksOncePerBlock(MatcherDecoder):
    """D107: the mask is made once for a block, though a marker inside it turns the grammar on or off."""

    def _verify(self, state: DecoderState, block: DraftBlock) -> tuple[list[Floats], Activations]:
        """One state of the automaton for all places."""
        self._forget_after(state.history)
        activations = advance(self.target, [state.history[-1], *block.tokens], state.target_cache)
        return [self._distribution(activations, i, state.history) for i in range(len(block) + 1)], activations


@dataclass(frozen=True)
class AcceptsBonusTwice(MatcherDecoder):
    """D109: the round's own token advances the automaton a second time."""

    def _commit(self, state: DecoderState, round_: Round) -> None:
        super()._commit(state, round_)
        self.accept(round_.emitted[-1:])

    def _forget_after(self, history: Sequence[int]) -> None:
        """Nobody knows that there is something to forget."""


@dataclass(frozen=True)
class LeavesFlagDecoder(MatcherDecoder):
    """D108: with such an automaton."""

    matcher: Matcher = field(default_factory=LeavesFlag)


def _shares_counter(name: str) -> GrammarEngine:
    """D99: target and drafter call one such processor."""
    shared = CountsCalls()
    return GrammarEngine(name, target_mask=shared, draft_mask=shared)


DRAFTER = "target_cache_offset draft_cache_offset cache_content honest_q bad_input"
"""What a target with wrong masks leaves right."""

DEFECTS = (
    part_defect(
        GRAMMAR, "D98", "processors", "mlx-lm", "ml-explore/mlx-lm#1175",
        "The drafter's processors see a history without the token that was just sampled.",
        expected="honest_q",
        silent="target_cache_offset draft_cache_offset cache_content greedy_parity processor_history exact_law",
        draft_mask=lacks_last,
    ),
    part_defect(
        GRAMMAR, "D99", "processors", "mlx-engine", "lmstudio-ai/mlx-engine#112",
        "A processor for structured output keeps a running count, and both drafting and verification call it.",
        expected="greedy_parity honest_q", silent="target_cache_offset draft_cache_offset cache_content",
        make=_shares_counter,
    ),
    part_defect(
        MATCHER, "D107", "processors", "vLLM", "vllm-project/vllm#36138",
        "Whether the grammar is on is decided once per block, and a marker inside the block turns it on or off.",
        expected="greedy_parity processor_history", silent=DRAFTER, decoder_class=MasksOncePerBlock,
    ),
    part_defect(
        MATCHER, "D108", "processors", "vLLM", "vllm-project/vllm#46272",
        "Rolling the automaton back leaves a flag that an undone token had set.",
        expected="counters log_probabilities", silent=f"{DRAFTER} processor_history", decoder_class=LeavesFlagDecoder,
    ),
    part_defect(
        MATCHER, "D109", "processors", "SGLang", "sgl-project/sglang#29110",
        "The round's own token is accepted by the grammar twice.",
        expected="processor_history", silent=DRAFTER, decoder_class=AcceptsBonusTwice,
    ),
)  # fmt: skip
"""In the order of their ids."""
