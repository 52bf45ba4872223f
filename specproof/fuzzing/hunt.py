"""One search with Hypothesis: for a case in which something is wrong, and then for a smaller one with the same wrong.

Every case is judged once and its outcome remembered: an engine with a clock or a generator of its own may answer
otherwise the second time, and Hypothesis would not know what to make of that. When the time is up the search is broken
off: Hypothesis by itself would go on drawing cases that nobody judges, for a minute and more.

Hypothesis begins every search with the simplest cases. Those that an earlier search has judged are passed over.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from hypothesis import Phase, find, settings
from hypothesis.errors import NoSuchExample
from hypothesis.strategies import SearchStrategy

from specproof.engine import Case
from specproof.results import Violation
from specproof.runner import Run

SHRINKING_SECONDS = 40.0
"""The most time that is spent on making one case smaller."""
FEWEST_DRAWN = 20
"""Hypothesis draws so many for every search at least: the first ones are likely to be known."""


@dataclass(frozen=True)
class Wrong:
    """What is wrong in a case.

    Attributes:
        violation: what is broken.
        run: the run of the case; None for a law.
        level: of the bet that was lost; None where nothing was left to chance.
    """

    violation: Violation
    run: Run | None = None
    level: float | None = None


@dataclass(frozen=True)
class Catch:
    """A case, and what is wrong in it."""

    case: Case
    wrong: Wrong


@dataclass
class Clock:
    """Whether no further case, and no further draw of a bet, is to be begun.

    Attributes:
        out_of_time: decides until something is caught.
        deadline: decides from then on, by the monotonic clock.
    """

    out_of_time: Callable[[], bool]
    deadline: float | None = None

    @classmethod
    def of(cls, seconds: float) -> Clock:
        """One that runs for so long, whatever is caught."""
        return cls(lambda: False, time.monotonic() + seconds)

    def catch(self) -> None:
        """Something was caught: `SHRINKING_SECONDS` are left."""
        if self.deadline is None:
            self.deadline = time.monotonic() + SHRINKING_SECONDS

    def is_over(self) -> bool:
        """Whether the time is up."""
        return self.out_of_time() if self.deadline is None else time.monotonic() > self.deadline


class _Enough(BaseException):
    """Leaves Hypothesis at once; it takes an `Exception` for one more thing that is wrong with the case."""


@dataclass
class Hunt:
    """A search.

    Attributes:
        strategy: what is drawn.
        judge: what is wrong in a case; None if nothing is. While a case is made smaller it must go on looking for what
            it found first.
        clock: when to end.
        on_case: called after every case that was judged.
        judged: what is known to be right, by hash: earlier searches may have filled it.
        examples: cases judged until the first catch, that one included.
        attempts: cases judged after it.
        caught: the smallest so far.
        shrunk: whether nothing smaller was left to try.
    """

    strategy: SearchStrategy[Case]
    judge: Callable[[Case], Wrong | None]
    clock: Clock
    on_case: Callable[[Hunt], None] = lambda hunt: None
    judged: set[int] = field(default_factory=set)
    examples: int = 0
    attempts: int = 0
    caught: Catch | None = None
    shrunk: bool = False
    _wrong: dict[int, Wrong] = field(default_factory=dict)
    _most: int = 0

    def search(self, examples: int, random: Random) -> None:
        """Judge up to `examples` cases; after a catch, make it as small as can be."""
        self._most = examples
        settings_ = settings(
            max_examples=FEWEST_DRAWN + 2 * examples,
            database=None,
            deadline=None,
            phases=(Phase.generate, Phase.shrink),
            report_multiple_bugs=False,  # or it goes on drawing larger cases after the first catch
        )
        try:
            case = find(self.strategy, self._is_wrong, settings=settings_, random=random)
        except (NoSuchExample, _Enough):
            return
        self.caught, self.shrunk = Catch(case, self._wrong[_key(case)]), True

    def _is_wrong(self, case: Case) -> bool:
        key = _key(case)
        if key not in self.judged and key not in self._wrong:
            if self.clock.is_over() or (self.caught is None and self.examples >= self._most):
                raise _Enough
            self._judge(case, key)
        return key in self._wrong

    def _judge(self, case: Case, key: int) -> None:
        wrong = self.judge(case)
        if self.caught is None:
            self.examples += 1
        else:
            self.attempts += 1
        if wrong is None:
            self.judged.add(key)
        else:
            self._wrong[key] = wrong
            self.caught = Catch(case, wrong)
            self.clock.catch()
        self.on_case(self)


def _key(case: Case) -> int:
    return hash(repr(case))
