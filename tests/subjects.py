"""Which engines the suite audits, their runs, and how a violation fails a test: shared by the fixtures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pytest

from specproof.engine import Case, Engine, Session
from specproof.invariants import RUN_INVARIANTS
from specproof.registry import installed_engines, load_engine
from specproof.results import Violation
from specproof.runner import Run, continued, run_turn

SUBJECTS = pytest.StashKey["Subjects"]()
"""Where pytest's configuration keeps the engines under audit."""

SEED = 0


@dataclass(frozen=True)
class Subjects:
    """The engines under test, by the names they were asked for by, and why others are missing."""

    engines: Mapping[str, Engine]
    missing: Mapping[str, str]

    @classmethod
    def named(cls, names: Sequence[str]) -> Subjects:
        """The engines of these names; without names, all that come with the package and are installed.

        Raises:
            UnknownEngine, MissingExtra: an engine that was asked for by name cannot be had.
        """
        if names:
            return cls({name: load_engine(name) for name in names}, {})
        return cls(*installed_engines())

    def header(self) -> list[str]:
        """What pytest prints above everything."""
        found = [f"{name} {engine.version}" for name, engine in self.engines.items()]
        return [
            f"specproof: auditing {', '.join(found) or 'nothing'}",
            *(f"specproof: not auditing {name}: {why}" for name, why in self.missing.items()),
        ]


class Runs:
    """Runs of cases, each made once and then shared by all tests that look at it (a case's id says all about it)."""

    def __init__(self) -> None:
        # An engine by what it is: two may have one name.
        self._turns: dict[tuple[int, str], tuple[Run, Session | None]] = {}
        self._continued: dict[tuple[int, str], Run] = {}
        self._engines: list[Engine] = []  # kept, so that no other gets the id of one

    def of(self, engine: Engine, case: Case) -> Run:
        """The run of a case of the audit, without a further turn."""
        key = (id(engine), case.id)
        if key not in self._turns:
            self._engines.append(engine)
            self._turns[key] = run_turn(engine, case)
        return self._turns[key][0]

    def continued(self, engine: Engine, case: Case) -> Run:
        """The run with its further turn."""
        key = (id(engine), case.id)
        if key not in self._continued:
            run = self.of(engine, case)
            self._continued[key] = continued(engine, run, self._turns[key][1])
        return self._continued[key]


class Broken(AssertionError):
    """An invariant does not hold.

    Attributes:
        violations: all that were found.
        run: that of the first one.
    """

    def __init__(self, message: str, violations: tuple[Violation, ...], run: Run | None = None) -> None:
        super().__init__(message)
        self.violations = violations
        self.run = run


def assert_holds(name: str, *runs: Run) -> None:
    """Fail with every violation of an invariant in some runs, the first one in full.

    Raises:
        Broken: there is one; `again` says how to see it again.
    """
    found = [(run, violation) for run in runs for violation in RUN_INVARIANTS[name].check(run)]
    if found:
        raise Broken(_message(name, found), tuple(violation for _, violation in found), found[0][0])


def _message(name: str, found: Sequence[tuple[Run, Violation]]) -> str:
    run, first = found[0]
    others = [f"  {violation.case_id}: {violation.message}" for _, violation in found[1:6]]
    more = [f"  and {len(found) - 6} more"] if len(found) > 6 else []
    return "\n".join([f"{run.engine} breaks {name}: {first.message}", f"case: {run.case}", *others, *more])
