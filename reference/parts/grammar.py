"""A grammar as an automaton over token ids, and the mask that follows from a context.

The language: text, in which a marker opens a formula and a marker closes it; inside a formula brackets balance, to a
depth of two at most. A token's id modulo 4 says what it is, so that every vocabulary of three tokens or more has it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from reference.transformer import Transformer

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

OPEN, CLOSE, MARKER, PLAIN = range(4)
DEEPEST = 2


@dataclass(frozen=True)
class Grammar:
    """A state of the automaton. Every state allows some token, and every token leads to a state.

    Attributes:
        inside: whether a formula is open.
        depth: brackets open in it.
    """

    inside: bool = False
    depth: int = 0

    def after(self, token: int) -> Grammar:
        """The state behind one more token; one that is not allowed (a prompt may hold some) changes nothing."""
        kind = token % 4
        if not self.allows(kind):
            return self
        if kind == MARKER:
            return Grammar(not self.inside)
        if not self.inside:
            return self
        return Grammar(True, self.depth + (kind == OPEN) - (kind == CLOSE))

    def allows(self, kind: int) -> bool:
        """Whether a token of this kind may follow."""
        if not self.inside:
            return True
        return {OPEN: self.depth < DEEPEST, CLOSE: self.depth > 0, MARKER: self.depth == 0, PLAIN: True}[kind]

    def allowed(self, vocab_size: int) -> Bools:
        """Which tokens may follow, [V]."""
        return np.array([self.allows(token % 4) for token in range(vocab_size)])


def state_after(tokens: Iterable[int]) -> Grammar:
    """The state of the automaton behind a whole sequence."""
    state = Grammar()
    for token in tokens:
        state = state.after(token)
    return state


def masked(state: Grammar, logits: Floats) -> Floats:
    """Logits [V] with -inf for every token that may not follow."""
    return np.where(state.allowed(len(logits)), logits, -np.inf)


def grammar_mask(context: Sequence[int], logits: Floats) -> Floats:
    """The grammar as a `LogitsProcessor`: a function of the context, with no state to get wrong. [V] -> [V]."""
    return masked(state_after(context), logits)


class GrammarTransformer(Transformer):
    """A Llama that is to be decoded under the grammar. Its forward is the plain one: the decoder masks."""

    def constrained(self, tokens: Sequence[int], logits: Floats) -> Floats:
        """Logits [T, V], row i masked for what may follow the first i + 1 tokens."""
        rows, state = [], Grammar()
        for token, row in zip(tokens, logits, strict=True):
            state = state.after(token)
            rows.append(masked(state, row))
        return np.array(rows).reshape(logits.shape)
