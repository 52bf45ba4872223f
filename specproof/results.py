"""What a check reports: one vocabulary for the invariants of runs and the laws of engines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

Status = Literal["holds", "fails", "not_observable"]
Number = int | float


@dataclass(frozen=True)
class Violation:
    """One place where an engine broke an invariant or a law.

    Attributes:
        invariant: the name of what was broken.
        case_id: the case that shows it.
        round: the first violating round, from 0; None where the violation belongs to no single round.
        message: a full sentence: what was found, what was expected, by which formula.
        numbers: the numbers of that sentence, by name.
    """

    invariant: str
    case_id: str
    round: int | None
    message: str
    numbers: Mapping[str, Number] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "numbers", MappingProxyType(dict(self.numbers)))


@dataclass(frozen=True)
class CheckResult:
    """The outcome of one check on one engine.

    Attributes:
        status: `not_observable` where the engine cannot show what the check looks at: never a pass.
        cases: how many cases were judged.
        violations: all of them, the first one first; empty unless the status is `fails`.
        hidden: parts of what the check looks at that no run showed, though one could: it holds for the others only.
        note: what a reader must know to weigh the outcome: sizes, what could have been detected, what was left out.
    """

    status: Status
    cases: int = 0
    violations: tuple[Violation, ...] = ()
    note: str = ""
    hidden: tuple[str, ...] = ()

    @classmethod
    def judged(
        cls, cases: int, violations: Sequence[Violation], note: str = "", hidden: tuple[str, ...] = ()
    ) -> CheckResult:
        """`holds` without violations, else `fails`."""
        return cls("fails" if violations else "holds", cases, tuple(violations), note, hidden)

    @classmethod
    def measured(cls, cases: int, errors: Sequence[Violation], note: str) -> CheckResult:
        """Of an engine that declares itself lossy: what it raised is a failure, what it draws is only measured."""
        return cls.judged(cases, errors, note) if errors else cls.not_observable(note)

    @classmethod
    def not_observable(cls, why: str) -> CheckResult:
        """The engine does not show what the check looks at."""
        return cls("not_observable", note=why)
