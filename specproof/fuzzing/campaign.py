"""A campaign: engines and sources of findings in turn until the time is up, and all that they found.

What was found once, a check that an engine breaks, is not looked for again. Nothing here prints. A right engine is
accused with a chance of at most `statistics.FAMILY_LEVEL`, however long the campaign (`bets`).
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from random import Random

from specproof.engine import Case, Engine
from specproof.fuzzing.bets import Levels
from specproof.fuzzing.hunt import Clock, Hunt
from specproof.fuzzing.sources import SOURCES, Bounty, Result, Source
from specproof.invariants.signatures import Known
from specproof.results import Violation
from specproof.runner import Run


@dataclass(frozen=True)
class Finding:
    """Something that an engine breaks.

    Attributes:
        engine: by the name it was asked for by.
        violation: what is broken, in the smallest case that was found.
        case: that case.
        kind: what the source calls its cases.
        examples: cases of that kind, of the engine, until it was found.
        seconds: the same, of the campaign, by its clock.
        attempts: further cases that were tried to make it smaller.
        shrunk: whether that came to its end.
        run: the run of the case; None for a law.
        known: the defects of the catalogue that have such offsets.
        also: the other invariants that the run breaks.
        level: of the bet that was lost; None where nothing was left to chance.
    """

    engine: str
    violation: Violation
    case: Case
    kind: str
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
    """What was spent on one engine so far (cases by kind, draws of bets), and the checks it is known to break."""

    spent: Counter[str] = field(default_factory=Counter)
    broken: set[str] = field(default_factory=set)

    def __str__(self) -> str:
        return ", ".join(f"{number} {kind}{'s' * (number != 1)}" for kind, number in self.spent.items()) or "nothing"


@dataclass
class Campaign:
    """Fuzzing of some engines.

    Args:
        engines: by the names to report them under.
        seed: everything is drawn from it.
        is_over: whether no further case is to be begun, given what was spent so far: how much is drawn may depend on
            the clock. What was caught by then is still made smaller.
        on_progress: called with an engine's name and what was spent on it, after every case.
        sources: what is looked for.
        now: the clock that findings are timed by.
    """

    engines: Mapping[str, Engine]
    seed: int
    is_over: Callable[[Mapping[str, Effort]], bool]
    on_progress: Callable[[str, Effort], None] = lambda name, effort: None
    sources: Sequence[Source] = SOURCES
    now: Callable[[], float] = time.monotonic
    efforts: dict[str, Effort] = field(init=False)
    interrupted: bool = False
    _levels: Levels = field(default_factory=Levels)
    _judged: defaultdict[tuple[str, str], set[int]] = field(default_factory=partial(defaultdict, set))
    _began: float = 0.0

    def __post_init__(self) -> None:
        self.efforts = {name: Effort() for name in self.engines}

    def findings(self) -> Iterator[Finding]:
        """Everything that is found, as it is found. Ends with the time, or when there is nothing left to look for.

        An interrupt (Ctrl-C) ends it too, after what had been found by then.
        """
        self._began = self.now()
        for turn in count():
            open_ = [
                (name, source) for name in self.engines for source in self.sources if self._looks_for(name, source)
            ]
            if not open_:
                return
            for name, source in open_:
                if self.is_over(self.efforts) or self.interrupted:
                    return
                if self._looks_for(name, source):
                    yield from self._search(name, source, turn)

    def _looks_for(self, name: str, source: Source) -> set[str]:
        """The checks of a source that the engine is not known to break."""
        return set(source.checks(self.engines[name])) - self.efforts[name].broken

    def _search(self, name: str, source: Source, turn: int) -> Iterator[Finding]:
        """One turn of a source, and what it found."""
        effort, random = self.efforts[name], Random(f"{self.seed}/{name}/{source.regime}/{turn}")
        before, caught_at = effort.spent[source.kind], self.now()

        def on_case(hunt: Hunt) -> None:
            nonlocal caught_at
            if hunt.attempts == 0:
                effort.spent[source.kind], caught_at = before + hunt.examples, self.now()
            self.on_progress(name, effort)

        def pursue(hunt: Hunt, cases: int) -> None:
            if not self.interrupted:
                try:
                    hunt.search(cases, random)
                except KeyboardInterrupt:
                    self.interrupted = True

        clock = Clock(lambda: self.is_over(self.efforts))
        bounty = Bounty(
            self._looks_for(name, source), self._levels, clock, effort.spent, on_case, self._judged[name, source.regime]
        )
        result = source.search(self.engines[name], bounty, pursue)
        if result.hunt.caught is not None:
            effort.broken.add(result.hunt.caught.wrong.violation.invariant)
            yield self._finding(name, source.kind, before, caught_at, result)

    def _finding(self, name: str, kind: str, before: int, caught_at: float, result: Result) -> Finding:
        hunt = result.hunt
        assert hunt.caught is not None
        wrong = hunt.caught.wrong
        return Finding(
            engine=name,
            violation=wrong.violation,
            case=hunt.caught.case,
            kind=kind,
            examples=before + hunt.examples,
            seconds=caught_at - self._began,
            attempts=hunt.attempts,
            shrunk=hunt.shrunk,
            run=wrong.run,
            known=result.known,
            also=result.also,
            level=wrong.level,
        )
