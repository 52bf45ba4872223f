"""One decoder's life, as Hypothesis makes it up: turns, rounds, ends, faults, edits, and changes of everything.

Every rule does one thing to the decoder and makes a `Run` of what was seen: from the history before, through every
round boundary, to the caches that were left, and a further turn on a copy of them. All invariants judge it. Beside that
the machine knows what the history must be.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule
from life.events import BUDGETS, DRAFTS, FAULTS, MIN_PROBS, STOPS, TOKENS, VOCAB_SIZE, Failing
from life.judging import JudgedLife
from strategies import block_sizes, prompts, samplings

from reference.errors import CacheLengthError
from reference.values import SamplingParams
from specproof.engine import Case, Fault, ModelSpec
from specproof.errors import InjectedFault
from specproof.pairs import toy


class DecoderLife(JudgedLife):
    """A life of the decoder that `driver` drives."""

    @property
    def rules_known(self) -> st.SearchStrategy[str]:
        return st.sampled_from(sorted(self.driver.capabilities.rules))

    # -------------------------------------------------------------------------------------------------- settings

    @initialize(data=st.data(), prompt=prompts(VOCAB_SIZE), draft=DRAFTS, k=block_sizes(0), budget=BUDGETS,
                stops=STOPS, min_prob=MIN_PROBS, seed=st.integers(0, 2**16))  # fmt: skip
    def begin(self, data, prompt, draft, k, budget, stops, min_prob, seed):
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
            min_prob=min_prob,
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
        self._tell_drafter()

    @rule(min_prob=MIN_PROBS)
    def change_min_prob(self, min_prob):
        self.case = replace(self.case, min_prob=min_prob)
        self._tell_drafter()

    def _tell_drafter(self) -> None:
        if self.has_draft_model:
            self.driver.set_sampling(self.state.drafter, self.case)
        self._judge_still()

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

    @precondition(lambda self: self.state.finish is None or self.state.delivered < len(self.state.tokens))
    @rule(k=st.integers(3, 6) | block_sizes(0), count=st.integers(1, 2) | st.integers(1, 4))
    def read_and_close(self, k, count):
        """Take some tokens, those waiting first, and close the stream, most often inside a block.

        Only while there is something to read: after the end of a turn there is no block to be closed in.
        """
        waiting = self._begin_reading()
        stream = self._decoder(k).generate(self.state)
        received = [item.token for item in islice(stream, count)]
        stream.close()
        self._judge_reading(waiting, received, self.state.finish or "close")

    @precondition(lambda self: self.state.finish is None)
    @rule(k=st.integers(4, 6))
    def read_one_and_close(self, k):
        """Where any proposal is accepted, the block is longer than what is read of it."""
        waiting = self._begin_reading()
        stream = self._decoder(k).generate(self.state)
        received = [item.token for item in islice(stream, len(waiting) + 1)]
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
