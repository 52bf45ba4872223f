"""A campaign: engines and searches in turn until the time is up, and all that they found.

Every batch of single runs is followed by a few bets on the law of the output. What was found once, an invariant of an
engine or its law, is not looked for again. Nothing here prints.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from random import Random

from specproof.engine import Case, Engine
from specproof.fuzzing.bets import BetJudge, Levels, LostBet
from specproof.fuzzing.hunt import Hunt, Wrong
from specproof.fuzzing.runs import BrokenRun, RunJudge, broken_invariants
from specproof.fuzzing.strategies import cases, law_cases
from specproof.invariants import RUN_INVARIANTS
from specproof.invariants.signatures import Known
from specproof.law_cases import sampling_rules
from specproof.output_distribution import NAME as OUTPUT_LAW
from specproof.pairs import tiny, toy
from specproof.results import Violation
from specproof.runner import Run

RUNS = 100
"""Cases of a batch."""
BETS = 3
"""Bets after it."""
EVIDENCE = 50
"""Cases that are drawn, once something is broken, to tell which defect breaks it."""
EVIDENCE_SECONDS = 20.0
"""The most time for that."""


@dataclass(frozen=True)
class Finding:
    """Something that an engine breaks.

    Attributes:
        engine: by the name it was asked for by.
        violation: what is broken, in the smallest case that was found.
        case: that case.
        examples: cases (for a law: bets) of the engine until it was found.
        seconds: the same, of the campaign.
        attempts: further cases that were tried to make it smaller.
        shrunk: whether that came to its end.
        run: the run of the case; None for a law, which takes many.
        known: the defects of the catalogue that have such offsets.
        also: the other invariants that the run breaks.
        level: of the bet; None for an invariant.
    """

    engine: str
    violation: Violation
    case: Case
    examples: int
    seconds: float
    attempts: int
    shrunk: bool
    run: Run | None = None
    known: tuple[Known, ...] = ()
    also: tuple[str, ...] = ()
    level: float | None = None


@dataclass
class Effort:
    """What was spent on one engine so far, and the checks it is known to break."""

    examples: int = 0
    bets: int = 0
    draws: int = 0
    broken: set[str] = field(default_factory=set)


@dataclass
class Campaign:
    """Fuzzing of some engines.

    Args:
        engines: by the names to report them under.
        seed: everything is drawn from it.
        is_over: whether no further case is to be begun, given what was spent so far: how much is drawn may depend on
            the clock. What was caught by then is still made smaller.
        on_progress: called with an engine's name and what was spent on it, after every case and some draws.
    """

    engines: Mapping[str, Engine]
    seed: int
    is_over: Callable[[Mapping[str, Effort]], bool]
    on_progress: Callable[[str, Effort], None] = lambda name, effort: None
    efforts: dict[str, Effort] = field(init=False)
    interrupted: bool = False
    _levels: Levels = field(default_factory=Levels)
    _began: float = 0.0

    def __post_init__(self) -> None:
        self.efforts = {name: Effort() for name in self.engines}

    def findings(self) -> Iterator[Finding]:
        """Everything that is found, as it is found. Ends with the time, or when there is nothing left to look for.

        An interrupt (Ctrl-C) ends it too, after what had been found by then.
        """
        self._began = time.monotonic()
        for batch in count():
            open_ = [name for name, engine in self.engines.items() if self._looks_for(name, engine)]
            if not open_ or self._is_over():
                return
            for name in open_:
                yield from self._batch(name, batch)
                if self.interrupted:
                    return

    def _batch(self, name: str, batch: int) -> Iterator[Finding]:
        for search, what in ((self._search_runs, "runs"), (self._search_laws, "laws")):
            if not (self._is_over() or self.interrupted):
                finding = search(name, Random(f"{self.seed}/{name}/{what}/{batch}"))
                if finding is not None:
                    self.efforts[name].broken.add(finding.violation.invariant)
                    yield finding

    def _looks_for(self, name: str, engine: Engine) -> bool:
        """Whether there is a check left that the engine is not known to break."""
        return bool(self._invariants(name, engine)) or self._has_law(name, engine)

    def _invariants(self, name: str, engine: Engine) -> list[str]:
        broken = self.efforts[name].broken
        return [n for n, check in RUN_INVARIANTS.items() if check.observable(engine.capabilities) and n not in broken]

    def _has_law(self, name: str, engine: Engine) -> bool:
        samples = bool(sampling_rules(engine.capabilities)) and not engine.capabilities.lossy
        return samples and OUTPUT_LAW not in self.efforts[name].broken

    def _is_over(self) -> bool:
        return self.is_over(self.efforts)

    def _search_runs(self, name: str, random: Random) -> Finding | None:
        engine, effort = self.engines[name], self.efforts[name]
        judge, before = RunJudge(engine, self._invariants(name, engine)), effort.examples

        def on_case(hunt: Hunt[BrokenRun]) -> None:
            effort.examples = before + hunt.examples
            self.on_progress(name, effort)

        hunt = Hunt(cases(engine.capabilities, toy()), judge, self._is_over, on_case)
        self._pursue(hunt, RUNS, random)
        if hunt.caught is None:
            return None
        hunt = self._with_better_example(hunt, judge, random)
        assert hunt.caught is not None
        run, violation = hunt.caught.wrong.run, hunt.caught.wrong.violation
        also = tuple(other for other in broken_invariants(run) if other != violation.invariant)
        found = self._finding(name, hunt, violation, effort.examples)
        return replace(found, run=run, known=judge.known_defects(run), also=also)

    def _with_better_example(self, hunt: Hunt[BrokenRun], judge: RunJudge, random: Random) -> Hunt[BrokenRun]:
        """The hunt; or, where more wrong runs tell another defect than what it caught, one that shows that defect."""
        assert hunt.caught is not None
        if not judge.suspects:
            return hunt
        out_of_time = partial(_is_past, time.monotonic() + EVIDENCE_SECONDS)

        def collect(case: Case) -> None:
            judge.note(case)

        self._pursue(Hunt(hunt.strategy, collect, out_of_time), EVIDENCE, random)
        if judge.is_example(hunt.caught.wrong.run):
            return hunt
        again = Hunt(hunt.strategy, judge, out_of_time)
        self._pursue(again, RUNS, random)
        if again.caught is None:
            return hunt
        return replace(again, caught_at=hunt.caught_at, attempts=hunt.attempts + again.examples + again.attempts)

    def _search_laws(self, name: str, random: Random) -> Finding | None:
        engine, effort = self.engines[name], self.efforts[name]
        if not self._has_law(name, engine):
            return None
        judge, before = BetJudge(engine, self._levels, self._is_over), (effort.bets, effort.draws)

        def on_case(hunt: Hunt[LostBet]) -> None:
            effort.bets, effort.draws = before[0] + hunt.examples, before[1] + judge.draws
            self.on_progress(name, effort)

        hunt = Hunt(law_cases(engine.capabilities, tiny()), judge, self._is_over, on_case)
        self._pursue(hunt, BETS, random)
        if hunt.caught is None:
            return None
        lost = hunt.caught.wrong
        return replace(self._finding(name, hunt, lost.violation, effort.bets), level=lost.level)

    def _pursue(self, hunt: Hunt[Wrong], examples: int, random: Random) -> None:
        if self.interrupted:
            return
        try:
            hunt.search(examples, random)
        except KeyboardInterrupt:
            self.interrupted = True

    def _finding(self, name: str, hunt: Hunt[Wrong], violation: Violation, examples: int) -> Finding:
        assert hunt.caught is not None
        return Finding(
            engine=name,
            violation=violation,
            case=hunt.caught.case,
            examples=examples,
            seconds=hunt.caught_at - self._began,
            attempts=hunt.attempts,
            shrunk=hunt.shrunk,
        )


def _is_past(deadline: float) -> bool:
    return time.monotonic() > deadline
