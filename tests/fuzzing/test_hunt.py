"""A search ends when it is told to."""

from random import Random

from specproof.engine import Case
from specproof.fuzzing import hunt
from specproof.fuzzing.hunt import Clock, Hunt, Wrong
from specproof.fuzzing.strategies import prompts
from specproof.law_cases import GREEDY
from specproof.pairs import toy
from specproof.results import Violation

VOCAB_SIZE = 32
WRONG = Wrong(Violation("draft_cache_offset", "drawn", None, "wrong"))


class Search:
    """A search in which every prompt of three tokens is wrong; counts what is drawn, and how much until the catch."""

    def __init__(self, clock: Clock, judged: set[int] | None = None) -> None:
        self.drawn = self.first = 0
        strategy = prompts(VOCAB_SIZE).map(self._case)
        self.hunt = Hunt(strategy, self._judge, clock, judged=judged or set())
        self.hunt.search(100, Random(0))

    def _judge(self, case: Case) -> Wrong | None:
        if len(case.prompt) != 3:
            return None
        self.first = self.first or self.drawn
        return WRONG

    def _case(self, prompt: tuple[int, ...]) -> Case:
        self.drawn += 1
        return Case("drawn", "plain", toy().target_spec(), None, prompt, "greedy", GREEDY, 1, 3)


def never() -> bool:
    return False


def test_what_is_caught_is_made_as_small_as_can_be() -> None:
    found = Search(Clock(never)).hunt
    assert found.shrunk
    assert found.examples > 1
    assert found.caught is not None
    assert len(found.caught.case.prompt) == 3


def test_when_the_time_for_that_is_up_nothing_more_is_drawn(monkeypatch) -> None:
    monkeypatch.setattr(hunt, "SHRINKING_SECONDS", -1.0)
    search = Search(Clock(never))
    assert not search.hunt.shrunk
    assert search.hunt.caught is not None
    assert search.hunt.attempts == 0
    assert search.drawn - search.first <= 2


def test_when_the_time_is_up_nothing_is_judged() -> None:
    search = Search(Clock(lambda: True))
    assert search.hunt.caught is None
    assert (search.hunt.examples, search.drawn) == (0, 1)


def test_a_deadline_holds_whatever_is_caught() -> None:
    clock = Clock.of(-1.0)
    clock.catch()
    assert clock.is_over()
    assert Search(clock).hunt.caught is None


def test_what_was_judged_in_an_earlier_search_is_not_judged_again() -> None:
    first = Search(Clock(never)).hunt
    again = Search(Clock(never), judged=first.judged).hunt
    assert 0 < again.examples < first.examples
