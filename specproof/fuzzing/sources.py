"""What a campaign goes through in turn: single runs, and every part of every law.

A source has a kind, by which its cases are counted, and so many of them in a turn that all sources cost about the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from hypothesis.strategies import SearchStrategy

from specproof.engine import Case, Engine
from specproof.fuzzing.bets import Levels
from specproof.fuzzing.hunt import Clock, Hunt, Wrong
from specproof.fuzzing.law_searches import LAW_SEARCHES, LawJudge, LawSearch
from specproof.fuzzing.runs import RunJudge, broken_invariants
from specproof.fuzzing.strategies import cases
from specproof.invariants import RUN_INVARIANTS
from specproof.invariants.signatures import Known
from specproof.pairs import toy

RUNS = 40
"""Cases in a turn of single runs."""
EVIDENCE = 50
"""Cases that are drawn, once something is broken, to tell which defect breaks it."""
EVIDENCE_SECONDS = 20.0
"""The most time for that."""

Pursue = Callable[[Hunt, int], None]
"""(hunt, cases): search, as long as nobody interrupts."""


@dataclass(frozen=True)
class Bounty:
    """What a search goes by.

    Attributes:
        names: the checks that the engine is not known to break.
        levels: for bets.
        clock: when to end.
        spent: what is counted beside cases.
        on_case: called after every case.
        judged: cases of this source that are known to be right.
    """

    names: Container[str]
    levels: Levels
    clock: Clock
    spent: Counter[str]
    on_case: Callable[[Hunt], None]
    judged: set[int]


@dataclass(frozen=True)
class Result:
    """What came of a search.

    Attributes:
        hunt: the one that caught something.
        known: the defects of the catalogue that it looks like.
        also: the other invariants that the run breaks.
    """

    hunt: Hunt
    known: tuple[Known, ...] = ()
    also: tuple[str, ...] = ()


class Source(Protocol):
    """One kind of search."""

    @property
    def regime(self) -> str:
        """Its name among the sources."""
        ...

    @property
    def kind(self) -> str:
        """What its cases are called where they are counted."""
        ...

    def checks(self, engine: Engine) -> Sequence[str]:
        """The checks that it may find broken in this engine."""
        ...

    def search(self, engine: Engine, bounty: Bounty, pursue: Pursue) -> Result:
        """One turn."""
        ...


@dataclass(frozen=True)
class RunSource:
    """Single runs, each held against every invariant."""

    regime: str = "runs"
    kind: str = "case"

    def checks(self, engine: Engine) -> Sequence[str]:
        """Those that the engine shows enough for."""
        return [name for name, check in RUN_INVARIANTS.items() if check.observable(engine.capabilities)]

    def search(self, engine: Engine, bounty: Bounty, pursue: Pursue) -> Result:
        """`RUNS` cases. What is caught is compared with what many more runs say of the defect."""
        names = [name for name in self.checks(engine) if name in bounty.names]
        judge = RunJudge(engine, names)
        hunt = Hunt(self.draw(engine), judge, bounty.clock, bounty.on_case, bounty.judged)
        pursue(hunt, RUNS)
        if hunt.caught is None:
            return Result(hunt)
        hunt = self._with_better_example(hunt, judge, pursue)
        assert hunt.caught is not None
        wrong = hunt.caught.wrong
        assert wrong.run is not None, "what is wrong in a single run has a run"
        also = tuple(other for other in broken_invariants(wrong.run) if other != wrong.violation.invariant)
        return Result(hunt, judge.known_defects(wrong.run), also)

    def draw(self, engine: Engine) -> SearchStrategy[Case]:
        """Cases of any regime, on the toy pair."""
        return cases(engine.capabilities, toy())

    def _with_better_example(self, hunt: Hunt, judge: RunJudge, pursue: Pursue) -> Hunt:
        """The hunt; or, where more wrong runs tell another defect than what it caught, one that shows that defect."""
        assert hunt.caught is not None
        if not judge.suspects:
            return hunt
        clock = Clock.of(EVIDENCE_SECONDS)

        def collect(case: Case) -> Wrong | None:
            judge.note(case)
            return None

        pursue(Hunt(hunt.strategy, collect, clock), EVIDENCE)
        if judge.is_example(hunt.caught.wrong.run):
            return hunt
        again = Hunt(hunt.strategy, judge, clock)
        pursue(again, RUNS)
        if again.caught is None:
            return hunt
        attempts = hunt.attempts + again.examples + again.attempts
        return replace(again, examples=hunt.examples, attempts=attempts)


@dataclass(frozen=True)
class LawSource:
    """A part of a law, in a small dose."""

    part: LawSearch

    @property
    def regime(self) -> str:
        """That of its cases."""
        return self.part.regime

    @property
    def kind(self) -> str:
        """As `LawSearch.kind`."""
        return self.part.kind

    def checks(self, engine: Engine) -> Sequence[str]:
        """The law, where the engine shows enough of it."""
        return [self.part.law] if self.part.applies(engine) else []

    def search(self, engine: Engine, bounty: Bounty, pursue: Pursue) -> Result:
        """`LawSearch.cases` cases."""
        judge = LawJudge(self.part, engine, bounty.levels, bounty.clock, bounty.spent)
        hunt = Hunt(self.part.draw(engine, self.part.regime), judge, bounty.clock, bounty.on_case, bounty.judged)
        pursue(hunt, self.part.cases)
        return Result(hunt)


SOURCES: tuple[Source, ...] = (RunSource(), *map(LawSource, LAW_SEARCHES.values()))
"""In the order of their turns."""
