"""One search with Hypothesis: for a case in which something is wrong, and then for a smaller one with the same wrong.

Every case is judged once and its outcome remembered: an engine with a clock or a generator of its own may answer
otherwise the second time, and Hypothesis would not know what to make of that.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Generic, TypeVar

from hypothesis import Phase, find, settings
from hypothesis.errors import NoSuchExample
from hypothesis.strategies import SearchStrategy

from specproof.engine import Case

Wrong = TypeVar("Wrong")

SHRINKING_SECONDS = 60.0
"""The most time that is spent on making one case smaller."""


@dataclass(frozen=True)
class Catch(Generic[Wrong]):
    """A case, and what is wrong in it."""

    case: Case
    wrong: Wrong


@dataclass
class Hunt(Generic[Wrong]):
    """A search.

    Attributes:
        strategy: what is drawn.
        judge: what is wrong in a case; None if nothing is. While a case is made smaller it must go on looking for what
            it found first.
        out_of_time: whether no further case is to be begun. Once something was found, `SHRINKING_SECONDS` decide.
        on_case: called after every case that was judged.
        examples: cases judged until the first catch, that one included.
        attempts: cases judged after it.
        caught: the smallest so far.
        caught_at: when the first catch was made, by the monotonic clock.
        shrunk: whether nothing smaller was left to try.
    """

    strategy: SearchStrategy[Case]
    judge: Callable[[Case], Wrong | None]
    out_of_time: Callable[[], bool]
    on_case: Callable[[Hunt[Wrong]], None] = lambda hunt: None
    examples: int = 0
    attempts: int = 0
    caught: Catch[Wrong] | None = None
    caught_at: float = 0.0
    shrunk: bool = False
    _outcomes: dict[str, Wrong | None] = field(default_factory=dict)

    def search(self, examples: int, random: Random) -> None:
        """Draw up to `examples` cases; after a catch, make it as small as can be."""
        settings_ = settings(max_examples=examples, database=None, deadline=None, phases=(Phase.generate, Phase.shrink))
        try:
            case = find(self.strategy, self._is_wrong, settings=settings_, random=random)
        except NoSuchExample:
            return
        wrong = self._outcomes[repr(case)]
        assert wrong is not None
        self.caught, self.shrunk = Catch(case, wrong), not self._is_over()

    def _is_wrong(self, case: Case) -> bool:
        key = repr(case)
        if key not in self._outcomes:
            self._outcomes[key] = None if self._is_over() else self._judge(case)
        return self._outcomes[key] is not None

    def _judge(self, case: Case) -> Wrong | None:
        wrong = self.judge(case)
        if self.caught is None:
            self.examples += 1
            self.caught_at = time.monotonic()
        else:
            self.attempts += 1
        if wrong is not None:
            self.caught = Catch(case, wrong)
        self.on_case(self)
        return wrong

    def _is_over(self) -> bool:
        if self.caught is None:
            return self.out_of_time()
        return time.monotonic() - self.caught_at > SHRINKING_SECONDS
