"""The grammar as engines run it: an automaton that is advanced by tokens and rolled back by a count.

A block advances it through proposals that may be rejected, so that every verification must end with a rollback of as
many tokens, and every commit with an advance by exactly those that were emitted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from reference.cache import KVCache
from reference.decoder import Decoder, DecoderState
from reference.drafters import Drafter
from reference.errors import InvalidSetting
from reference.parts.grammar import Grammar, masked
from reference.sampling import next_distribution
from reference.transformer import Activations, advance
from reference.values import DraftBlock, Round

Floats = NDArray[np.float64]


class Matcher:
    """An automaton with a way back.

    Attributes:
        accepted: every token it was advanced by and not rolled back from.
    """

    def __init__(self) -> None:
        self.accepted: list[int] = []
        self._states = [Grammar()]

    @property
    def state(self) -> Grammar:
        """Where it is."""
        return self._states[-1]

    def accept(self, token: int) -> None:
        """Advance by one token."""
        self.accepted.append(token)
        self._states.append(self.state.after(token))

    def rollback(self, count: int) -> None:
        """Undo the last `count` advances.

        Raises:
            InvalidSetting: there were fewer.
        """
        if not 0 <= count <= len(self.accepted):
            raise InvalidSetting(f"cannot roll back {count} of {len(self.accepted)} tokens; check the caller's count")
        keep = len(self.accepted) - count
        del self.accepted[keep:], self._states[keep + 1 :]


@dataclass(frozen=True)
class MatcherDecoder(Decoder):
    """A decoder whose target is masked by an automaton of its own. For one turn of one sequence.

    Processors are shown the tokens that the automaton has accepted, which must be the context.

    Attributes:
        matcher: between rounds it has accepted the history.
    """

    matcher: Matcher = field(default_factory=Matcher)

    def prefill(self, prompt: Sequence[int], drafter: Drafter, max_tokens: int,
                target_cache: KVCache | None = None) -> DecoderState:  # fmt: skip
        """As `Decoder.prefill`; the automaton is advanced by the prompt and the first token."""
        self.accept(prompt)
        state = super().prefill(prompt, drafter, max_tokens, target_cache)
        self.accept(state.emitted)
        return state

    def accept(self, tokens: Sequence[int]) -> None:
        """Advance the automaton by all of them."""
        for token in tokens:
            self.matcher.accept(token)

    def _verify(self, state: DecoderState, block: DraftBlock) -> tuple[list[Floats], Activations]:
        """As `Decoder._verify`; the automaton goes through the block, one proposal before each mask, and back."""
        self._forget_after(state.history)
        activations = advance(self.target, [state.history[-1], *block.tokens], state.target_cache)  # [k + 1, V]
        p = [self._distribution(activations, 0, state.history)]
        for row, token in enumerate(block.tokens, 1):
            self.matcher.accept(token)
            p.append(self._distribution(activations, row, [*state.history, *block.tokens[:row]]))
        self.matcher.rollback(len(block))
        return p, activations

    def _forget_after(self, history: Sequence[int]) -> None:
        """Undo what a close or an exception took out of the history."""
        self.matcher.rollback(max(len(self.matcher.accepted) - len(history), 0))

    def _commit(self, state: DecoderState, round_: Round) -> None:
        super()._commit(state, round_)
        self.accept(round_.emitted)

    def _distribution(self, activations: Activations, row: int, context: Sequence[int]) -> Floats:
        """As `Decoder._distribution`, by what the automaton has accepted in place of the context."""

        def mask(_: Sequence[int], logits: Floats) -> Floats:
            return masked(self.matcher.state, logits)

        accepted = tuple(self.matcher.accepted)
        processors = (*self.processors, mask)
        return next_distribution(activations.logits[row], accepted, self.sampling, processors, self.target.name)
