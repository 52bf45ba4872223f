"""Exact laws over two turns: the second continues on the caches of the first, after tokens that the caller added.

A first turn of no tokens is a warm start: all that it leaves is caches that hold a context.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

from reference.errors import InvalidSetting
from specproof.engine import Case, ExactSession
from specproof.exact import SequenceLaw, Tokens, target_law
from specproof.oracle import oracle_of


@dataclass(frozen=True)
class TwoTurnCase(Case):
    """A case whose `max_tokens` are those of the first turn.

    Attributes:
        added: what the caller adds to the history between the turns; at least one token.
        second: the most tokens of the second turn.
    """

    added: Tokens = (0,)
    second: int = 1


@runtime_checkable
class ExtendableSession(ExactSession, Protocol):
    """An exact session whose ended turn can be continued."""

    def extend(self, tokens: Sequence[int], max_tokens: int) -> ExactSession:
        """The next turn, of at most `max_tokens`, after the history and `tokens`. This session is used up."""
        ...


@dataclass
class TwoTurns:
    """Both turns as one `ExactSession`: the step behind the end of the first turn begins the second.

    Attributes:
        case: what the turns are.
        turn: the turn in progress.
        first: what the first turn emitted, once it has ended.
    """

    case: TwoTurnCase
    turn: ExactSession
    first: Tokens | None = None

    @property
    def emitted(self) -> Tokens:
        """Tokens of both turns; not those added."""
        return (*(self.first or ()), *self.turn.emitted)

    @property
    def finished(self) -> bool:
        """Whether the second turn ended."""
        return self.first is not None and self.turn.finished

    def step(self) -> None:
        """One step of a turn, or the beginning of the second.

        Raises:
            InvalidSetting: the engine's sessions cannot be continued.
        """
        if self.first is not None or not self.turn.finished:
            self.turn.step()
            return
        if not isinstance(self.turn, ExtendableSession):
            raise InvalidSetting(
                f"{type(self.turn).__name__} has no extend(tokens, max_tokens); add it for a second turn"
            )
        self.first = tuple(self.turn.emitted)
        self.turn = self.turn.extend(self.case.added, self.case.second)

    def copy(self) -> TwoTurns | None:
        """None where the turn in progress cannot be copied."""
        turn = self.turn.copy()
        return None if turn is None else replace(self, turn=turn)

    def key(self) -> bytes:
        """That of the turn in progress, and what the first one emitted."""
        return repr(self.first).encode() + self.turn.key()


def two_turn_law(case: TwoTurnCase) -> SequenceLaw:
    """The law of both turns by the oracle: the second is a fresh decode of the whole history."""
    oracle = oracle_of(case.target)
    found: dict[Tokens, float] = {}
    for first, weight in target_law(oracle, case.prompt, case.sampling, case.max_tokens, case.stop_tokens).items():
        history = (*case.prompt, *first, *case.added)
        for second, mass in target_law(oracle, history, case.sampling, case.second, case.stop_tokens).items():
            found[first + second] = found.get(first + second, 0.0) + weight * mass
    return found
