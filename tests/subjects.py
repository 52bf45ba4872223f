"""Which engines the suite audits, and which of their cases: shared by the fixtures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import pytest

from specproof.engine import Case, Engine, Session
from specproof.grid import BASE_LABELS, BLOCK_SIZES
from specproof.invariants import RUN_INVARIANTS
from specproof.pairs import toy
from specproof.regimes import REGIMES
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


@dataclass(frozen=True)
class Point:
    """One engine under one regime, with one rule and k: what tests are parametrised with.

    Attributes:
        engine: the name it was asked for by.
        path: `regime/rule/k`, and for a variant of the sampling parameters its label: what known failures are named by.
        case: the case that is run for it.
    """

    engine: str
    path: str
    case: Case = field(repr=False)


@lru_cache(maxsize=8)
def points_of(name: str, engine: Engine) -> tuple[Point, ...]:
    """Every point of an engine, each with one case of those that the full audit has for it.

    For every k it is another one of the list. The audit runs all of them, and Hypothesis draws others.
    """
    found: dict[str, list[Case]] = {}
    for regime in REGIMES.values():
        for case in regime.cases(toy(), engine.capabilities, SEED, quick=False):
            path, label = f"{case.regime}/{case.rule}/k{case.num_draft_tokens}", case.id.split("/")[3]
            if label in BASE_LABELS:
                found.setdefault(path, []).append(case)
            elif case.regime == "plain":
                found.setdefault(f"{path}/{label}", []).append(case)
    return tuple(Point(name, path, _one(cases)) for path, cases in found.items())


def _one(cases: Sequence[Case]) -> Case:
    """One of the cases, at another place of the list for every k."""
    return cases[cases[0].num_draft_tokens * len(cases) // (max(BLOCK_SIZES) + 1)]


class Runs:
    """Runs of cases, each made once and then shared by all tests that look at it (a case's id says all about it)."""

    def __init__(self) -> None:
        self._turns: dict[tuple[str, str], tuple[Run, Session | None]] = {}
        self._continued: dict[tuple[str, str], Run] = {}

    def of(self, engine: Engine, case: Case) -> Run:
        """The run of a case of the audit, without a further turn."""
        key = (engine.name, case.id)
        if key not in self._turns:
            self._turns[key] = run_turn(engine, case)
        return self._turns[key][0]

    def continued(self, engine: Engine, case: Case) -> Run:
        """The run with its further turn."""
        key = (engine.name, case.id)
        if key not in self._continued:
            run = self.of(engine, case)
            self._continued[key] = continued(engine, run, self._turns[key][1])
        return self._continued[key]


def assert_holds(name: str, *runs: Run) -> None:
    """Fail with every violation of an invariant in some runs, the first one in full.

    Raises:
        AssertionError: there is one; the message says how to see it again.
    """
    found = [(run, violation) for run in runs for violation in RUN_INVARIANTS[name].check(run)]
    if found:
        raise AssertionError(_message(name, found))


def _message(name: str, found: Sequence[tuple[Run, Violation]]) -> str:
    run, first = found[0]
    others = [f"  {violation.case_id}: {violation.message}" for _, violation in found[1:6]]
    more = [f"  and {len(found) - 6} more"] if len(found) > 6 else []
    return "\n".join(
        [
            f"{run.engine} breaks {name}: {first.message}",
            f"case: {run.case}",
            f"again: specproof audit {run.engine} --case '{first.case_id}'",
            *others,
            *more,
        ]
    )
