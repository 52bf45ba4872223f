"""A piece of a decoder's life as a `Run`, and all invariants on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
from hypothesis.stateful import RuleBasedStateMachine, invariant
from life.drivers import Driver

from specproof.engine import Boundary, Capabilities, Case, Observation
from specproof.invariants import RUN_INVARIANTS
from specproof.results import Violation
from specproof.runner import CONTINUED_TOKENS, OVERRUN, Continuation, Ending, Run


def violations(run: Run) -> list[Violation]:
    """What all invariants that can be seen find in a run."""
    return [
        violation
        for invariant in RUN_INVARIANTS.values()
        if invariant.observable(run.capabilities) and invariant.applies(run)
        for violation in invariant.check(run)
    ]


def assert_all_hold(run: Run, excused: Callable[[Violation], bool] = lambda violation: False) -> None:
    """Fail with every violation in a run.

    Raises:
        AssertionError: there is one that is not excused.
    """
    found = [violation for violation in violations(run) if not excused(violation)]
    if found:
        lines = [f"{violation.invariant}: {violation.message}" for violation in found]
        raise AssertionError("\n".join([f"{run.engine} breaks {lines[0]}", f"in: {run.case}", *lines[1:6]]))


class Life(RuleBasedStateMachine):
    """What no life does without: no event of it goes unjudged."""

    _judged = False

    def _assert_all_hold(self, run: Run, excused: Callable[[Violation], bool] = lambda violation: False) -> None:
        """As the function, and noted."""
        assert_all_hold(run, excused)
        self._judged = True

    @invariant()
    def every_event_is_judged(self):
        """Hypothesis asks after every rule, that of the beginning too."""
        assert self._judged, "an event of this life was not judged; end its rule by judging"
        self._judged = False


class JudgedLife(Life):
    """A life without events: it notes the rounds of its decoder, and judges what was done since it began to.

    Attributes:
        driver: what is driven.
        case: the settings as they are now; its prompt and budget are those of the life's beginning.
        state: the decoder's own.
        randomness: the decoder's and the drafter's.
    """

    driver: Driver
    case: Case
    state: Any
    randomness: Any

    @property
    def has_draft_model(self) -> bool:
        return self.case.draft is not None

    def _observe(self, state: Any) -> Observation:
        return self.driver.observe(state.target_cache, state.drafter.cache)

    @property
    def capabilities(self) -> Capabilities:
        """Those of the driver, with the schedule of this life."""
        return replace(self.driver.capabilities, draft_schedule=self.driver.schedule(self.case))

    def _observe_settled(self) -> Observation:
        """The caches where judging begins or ends, which may be in the middle of a turn.

        What a deferred drafter lacks there, one row at most, it must bring when it is told to: a copy is.
        """
        state, drafter = self.state, self.state.drafter
        deferred = self.has_draft_model and self.capabilities.draft_schedule == "deferred"
        if deferred and drafter.cache.offset == len(state.history) - 2:
            drafter = drafter.copy()
            drafter.model = self.driver.model("draft", self.case.draft)
            drafter.settle(state.history)
        return self.driver.observe(state.target_cache, drafter.cache)

    def _note_context(self, tokens: Any, logits: Any) -> Any:
        self.contexts.append(tuple(np.array(tokens).tolist()))
        return logits

    def _note_round(self, state: Any, done: Any) -> None:
        if state is not self.state:
            return  # a copy goes its own way
        contexts, self.contexts = tuple(self.contexts), []
        self.boundaries.append(
            Boundary(
                tuple(state.history[len(self.base) :]),
                done,
                self._observe(state),
                self.driver.distributions(state),
                contexts or None,
                getattr(done, "log_probabilities", None) or None,
            )
        )

    def _begin_reading(self) -> list[int]:
        """The tokens that wait in the state to be handed out: those of rounds that were judged already."""
        self._begin_judging()
        return [item.token for item in self.state.tokens[self.state.delivered :]]

    def _all_tokens(self, decoder: Any) -> Iterator[int]:
        """The rest of the turn; of one that does not know its end, a few tokens more than the budget."""
        waiting = len(self.state.tokens) - self.state.delivered
        return (item.token for item in islice(decoder.generate(self.state), waiting + self.budget + OVERRUN))

    def _judge_reading(self, waiting: list[int], received: list[int], ending: Ending) -> None:
        """What waits is handed out first; a stream that is closed before that is through takes the rest of it back."""
        assert received[: len(waiting)] == waiting[: len(received)]
        if len(received) < len(waiting):
            self._assert_history(self.base[: len(self.base) - len(waiting) + len(received)])
            self._judge_still()
        else:
            self._judge(tuple(received[len(waiting) :]), ending)

    def _begin_judging(self) -> None:
        """What follows is judged from the history on that the state has now."""
        self.base, self.contexts = tuple(self.state.history), []
        self.budget = self.state.max_tokens - len(self.state.emitted)
        self.boundaries = [Boundary((), None, self._observe_settled())]

    def _judge_prefill(self, history: Sequence[int]) -> None:
        self.base, self.budget = tuple(history), self.case.max_tokens
        emitted, contexts = tuple(self.state.emitted), tuple(self.contexts)
        figures = tuple(item.log_probability for item in self.state.tokens)
        self.boundaries = [Boundary(emitted, None, self._observe(self.state), None, contexts or None, figures)]
        self._judge(emitted, self.state.finish or "close")

    def _judge_still(self) -> None:
        """Nothing was emitted; the caches must be those of the history all the same."""
        self._begin_judging()
        self._judge((), "close")

    def _judge(self, received: tuple[int, ...], ending: Ending) -> None:
        """Hold what was done since `base` against all invariants, and the history against what was received."""
        self._assert_history(self.base + received)
        run = Run(
            engine=self.driver.name,
            capabilities=self.capabilities,
            case=replace(self.case, prompt=self.base, max_tokens=self.budget),
            emitted=received,
            boundaries=tuple(self.boundaries),
            ending=ending,
            exit=self._observe_settled(),
            error="InjectedFault" if ending == "abort" else None,
            injected=ending == "abort",
            continuation=self._continuation(),
        )
        self._assert_all_hold(run)

    def _assert_history(self, expected: tuple[int, ...]) -> None:
        history = tuple(self.state.history)
        assert history == expected, f"the history is {history}, with what was received it is {expected}"

    def _continuation(self) -> Continuation:
        """A further turn at temperature 0, on a copy."""
        twin = self.state.copy()
        added = tuple(twin.history[:2]) if twin.finish else ()
        greedy = replace(self.case.sampling, temperature=0.0)
        case = replace(self.case, rule="greedy", sampling=greedy, num_draft_tokens=2, stop_tokens=frozenset())
        if self.has_draft_model:
            self.driver.set_sampling(twin.drafter, case)
        target = self.driver.model("target", case.target)
        decoder = self.driver.decoder(case, target, self.randomness, [], lambda state, done: None)
        try:
            following = decoder.extend(twin, added, CONTINUED_TOKENS)
            emitted = tuple(item.token for item in islice(decoder.generate(following), CONTINUED_TOKENS + OVERRUN))
        except Exception as error:  # a finding
            return Continuation(added, (), f"{type(error).__name__}: {error}")
        return Continuation(added, emitted)
