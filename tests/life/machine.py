"""One decoder's life, as Hypothesis makes it up: turns, rounds, ends, faults, edits, and changes of everything.

Every rule does one thing to the decoder and makes a `Run` of what was seen: from the history before, through every
round boundary, to the caches that were left, and a further turn on a copy of them. All invariants judge it. Beside that
the machine knows what the history must be.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from life.drivers import Driver
from life.judging import assert_all_hold
from strategies import block_sizes, prompts, samplings, scripts

from reference.errors import CacheLengthError
from reference.values import SamplingParams
from specproof.engine import Boundary, Case, Fault, ModelSpec, Observation
from specproof.errors import InjectedFault
from specproof.pairs import toy
from specproof.runner import CONTINUED_TOKENS, OVERRUN, Continuation, Ending, Run
from specproof.transforms import BanArgmax, Scripted

VOCAB_SIZE = 32
TOKENS = st.lists(st.integers(0, VOCAB_SIZE - 1), max_size=3).map(tuple)
BUDGETS = st.one_of(st.integers(6, 20), st.integers(0, 5))
STOPS = st.sampled_from((frozenset(), frozenset(range(0, VOCAB_SIZE, 3)), frozenset(range(1, VOCAB_SIZE, 5))))
"""None, or so many that a block often holds one."""
DRAFTS = st.one_of(
    st.sampled_from(
        (
            ModelSpec(toy().target),  # its twin: everything is accepted
            ModelSpec(toy().target, BanArgmax()),  # never agrees
            ModelSpec(toy().draft),
            None,  # prompt lookup
        )
    ),
    scripts().map(lambda script: ModelSpec(toy().target, Scripted(script))),
)
WHEN = st.sampled_from(("before", "after"))
FAULTS = st.one_of(
    st.tuples(st.just("draft"), st.builds(Fault, st.integers(0, 5), WHEN)),
    st.tuples(st.sampled_from(("target", "choice", "commit")), st.builds(Fault, st.integers(0, 1), WHEN)),
)
"""Where a fault strikes (a forward of a model, a random choice of the decoder, the drafter's commit), and which one."""


class Failing:
    """A method, or all methods of an object, that raises at its `call`-th use, before or after it did its work."""

    def __init__(self, inner: Any, fault: Fault) -> None:
        self._inner, self._fault, self._calls = inner, fault, 0

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: self(*arguments, method=getattr(self._inner, name))

    def __call__(self, *arguments: Any, method: Any = None) -> Any:
        strikes = self._calls == self._fault.call
        self._calls += 1
        if strikes and self._fault.when == "before":
            raise InjectedFault("injected fault, before the call")
        result = (method or self._inner)(*arguments)
        if strikes:
            raise InjectedFault("injected fault, after the call")
        return result


class DecoderLife(RuleBasedStateMachine):
    """A life of the decoder that `driver` drives."""

    driver: Driver

    @property
    def rules_known(self) -> st.SearchStrategy[str]:
        return st.sampled_from(sorted(self.driver.capabilities.rules))

    # -------------------------------------------------------------------------------------------------- settings

    @initialize(data=st.data(), prompt=prompts(VOCAB_SIZE), draft=DRAFTS, k=block_sizes(0), budget=BUDGETS,
                stops=STOPS, seed=st.integers(0, 2**16))  # fmt: skip
    def begin(self, data, prompt, draft, k, budget, stops, seed):
        self.case = Case(
            id="life",
            regime="life",
            target=ModelSpec(toy().target),
            draft=draft,
            prompt=prompt,
            rule="greedy",
            sampling=SamplingParams(temperature=0.0),
            num_draft_tokens=k,
            max_tokens=budget,
            stop_tokens=stops,
            seed=seed,
            drafter="prompt_lookup" if draft is None else "draft_model",
        )
        self._draw_sampling(data)
        self.randomness = self.driver.randomness(seed)
        drafter = self.driver.drafter(self.case, self.randomness)
        self._prefill(prompt, drafter, None)

    def _draw_sampling(self, data: st.DataObject) -> None:
        name = data.draw(self.rules_known, label="rule")
        warm = name != "greedy"
        params = data.draw(samplings(self.driver.capabilities.sampling, VOCAB_SIZE, temperatures=warm), label="params")
        self.case = replace(self.case, rule=name, sampling=params)

    @rule(data=st.data())
    def change_sampling(self, data):
        self._draw_sampling(data)
        if self.has_draft_model:
            self.driver.set_sampling(self.state.drafter, self.case)

    @rule(draft=DRAFTS)
    def swap_drafter(self, draft):
        """In the middle of a turn the new one is brought in step at once."""
        self.case = replace(self.case, draft=draft, drafter="prompt_lookup" if draft is None else "draft_model")
        self.state.drafter = self.driver.drafter(self.case, self.randomness)
        self.state.drafter.settle(self.state.history)
        self._judge_still()

    @rule()
    def save_and_load(self):
        self.state.target_cache = self.driver.stored(self.state.target_cache)
        if self.has_draft_model:
            self.state.drafter.cache = self.driver.stored(self.state.drafter.cache)
        self._judge_still()

    @rule(k=block_sizes(0))
    def go_on_with_a_copy(self, k):
        """Whatever becomes of the original."""
        original, self.state = self.state, self.state.copy()
        if original.finish is None:
            self._decoder(k).step(original)
        self._judge_still()

    # ----------------------------------------------------------------------------------------------------- rounds

    @precondition(lambda self: self.state.finish is None)
    @rule(sizes=st.lists(block_sizes(0), min_size=1, max_size=4))
    def rounds(self, sizes):
        for k in sizes:
            if self.state.finish is None:
                self._begin_judging()
                self._decoder(k).step(self.state)
                self._judge(self.boundaries[-1].emitted, self.state.finish or "close")

    @precondition(lambda self: self.state.finish is None)
    @rule(k=block_sizes(0), fault=FAULTS)
    def failing_round(self, k, fault):
        self._begin_judging()
        struck = self._struck(fault, k, lambda decoder: decoder.step(self.state))
        self._judge(self.boundaries[-1].emitted, "abort" if struck else self.state.finish or "close")

    @rule(k=block_sizes(0), count=st.integers(1, 9))
    def read_and_close(self, k, count):
        """Take some tokens, those waiting first, and close the stream, most often inside a block."""
        waiting = self._begin_reading()
        stream = self._decoder(k).generate(self.state)
        received = [item.token for item in islice(stream, count)]
        stream.close()
        self._judge_reading(waiting, received, self.state.finish or "close")

    @rule(k=block_sizes(0))
    def read_to_the_end(self, k):
        waiting = self._begin_reading()
        received = list(self._all_tokens(self._decoder(k)))
        assert self.state.finish is not None
        self._judge_reading(waiting, received, self.state.finish)

    @rule(k=block_sizes(0), fault=FAULTS)
    def read_until_a_fault(self, k, fault):
        waiting, received = self._begin_reading(), []
        struck = self._struck(fault, k, lambda decoder: received.extend(self._all_tokens(decoder)))
        self._judge_reading(waiting, received, "abort" if struck else self.state.finish)

    # ------------------------------------------------------------------------------------------------------ turns

    @rule(added=TOKENS, budget=BUDGETS, stops=STOPS)
    def next_turn(self, added, budget, stops):
        self.case = replace(self.case, max_tokens=budget, stop_tokens=stops)
        used_up, history = self.state, [*self.state.history, *added]
        self.boundaries, self.contexts = [], []
        self.state = self._decoder(0).extend(self.state, added, budget)
        assert used_up.superseded
        self._judge_prefill(history)

    @rule(added=TOKENS, budget=BUDGETS, fault=FAULTS)
    def failing_turn(self, added, budget, fault):
        """The old state stays usable."""
        before = self.state
        history = [*before.history, *added]
        following = []
        self._begin_judging()
        struck = self._struck(
            fault, 0, lambda decoder: following.append(decoder.extend(before, added, budget)), turn=True
        )
        if struck:
            assert not before.superseded
            self._judge((), "abort")
        else:
            self.case = replace(self.case, max_tokens=budget)
            (self.state,) = following
            self._judge_prefill(history)

    @rule(data=st.data(), added=TOKENS, budget=BUDGETS, stops=STOPS)
    def regenerate(self, data, added, budget, stops):
        """The history is cut, perhaps in the prompt, and goes on otherwise; the caches keep what they share with it."""
        old = self.state.history
        kept = data.draw(st.integers(0 if added else 1, len(old)), label="kept")
        history = [*old[:kept], *added]
        self.case = replace(self.case, max_tokens=budget, stop_tokens=stops)
        drafter, cache = self.state.drafter, self.state.target_cache
        if len(old) - 1 > len(history) - 1:
            with pytest.raises(CacheLengthError, match="holds"):
                self._decoder(0).prefill(history, drafter, budget, cache)
            self._judge_still()
        shared = next((i for i, (x, y) in enumerate(zip(old, history, strict=False)) if x != y), kept)
        shared = min(shared, len(history) - 1)
        self.driver.trim(cache, shared)
        if self.has_draft_model:
            self.driver.trim(drafter.cache, shared)
        self._prefill(history, drafter, cache)

    @rule(added=TOKENS, draft=DRAFTS)
    def next_turn_with_another_drafter(self, added, draft):
        """A warm target and a drafter that knows nothing yet."""
        self.case = replace(self.case, draft=draft, drafter="prompt_lookup" if draft is None else "draft_model")
        drafter = self.driver.drafter(self.case, self.randomness)
        self._prefill([*self.state.history, *added], drafter, self.state.target_cache)

    # ------------------------------------------------------------------------------------------------- machinery

    @property
    def has_draft_model(self) -> bool:
        return self.case.draft is not None

    def _decoder(self, k: int, target: Any = None, randomness: Any = None) -> Any:
        """A decoder of the settings as they are now."""
        self.case = replace(self.case, num_draft_tokens=k)
        return self.driver.decoder(
            self.case,
            target or self.driver.model("target", self.case.target),
            randomness or self.randomness,
            [self._note_context],
            self._note_round,
        )

    def _prefill(self, history: Sequence[int], drafter: Any, cache: Any) -> None:
        self.boundaries, self.contexts = [], []
        self.state = self._decoder(0).prefill(history, drafter, self.case.max_tokens, cache)
        self._judge_prefill(history)

    def _struck(self, fault: tuple[str, Fault], k: int, act: Any, turn: bool = False) -> bool:
        """Do something with a fault on its way; whether the fault came to pass."""
        place, when = fault
        drafter, target, randomness = self.state.drafter, None, None
        if place == "target":
            target = self.driver.model("target", replace(self.case.target, fault=when))
        elif place == "choice":
            randomness = Failing(self.randomness, when)
        elif place == "draft" and self.has_draft_model:
            drafter.model = self.driver.model("draft", replace(self.case.draft, fault=when))
        elif self.has_draft_model:  # in commit, or where commit is not called, settle
            drafter.commit, drafter.settle = Failing(drafter.commit, when), Failing(drafter.settle, when)
        try:
            act(self._decoder(k, target, randomness))
        except InjectedFault:
            return True
        finally:
            if self.has_draft_model:
                for name in ("commit", "settle"):
                    vars(drafter).pop(name, None)
                drafter.model = self.driver.model("draft", self.case.draft)
        return False

    def _observe(self, state: Any) -> Observation:
        return self.driver.observe(state.target_cache, state.drafter.cache)

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
        self.boundaries = [Boundary((), None, self._observe(self.state))]

    def _judge_prefill(self, history: Sequence[int]) -> None:
        self.base, self.budget = tuple(history), self.case.max_tokens
        emitted, contexts = tuple(self.state.emitted), tuple(self.contexts)
        self.boundaries = [Boundary(emitted, None, self._observe(self.state), None, contexts or None)]
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
            capabilities=self.driver.capabilities,
            case=replace(self.case, prompt=self.base, max_tokens=self.budget),
            emitted=received,
            boundaries=tuple(self.boundaries),
            ending=ending,
            exit=self._observe(self.state),
            error="InjectedFault" if ending == "abort" else None,
            injected=ending == "abort",
            continuation=self._continuation(),
        )
        assert_all_hold(run)

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
