"""The decode loop: what every round leaves in the caches, and that the tokens are the target's."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_models import (
    Changed,
    assert_at_boundary,
    disagreeing,
    plain_greedy,
    plain_gumbel,
    scripted,
)

from reference import (
    RULES,
    Decoder,
    DecoderState,
    DraftModel,
    PromptLookup,
    SamplingParams,
    SeededRandomness,
    Transformer,
    Verdict,
    distribution,
)
from reference.errors import (
    CacheLengthError,
    DecodingFault,
    EmptyPrompt,
    HiddenCache,
    InvalidSetting,
    NonFiniteLogits,
    TokenOutOfRange,
    VocabularyMismatch,
)
from reference.values import DraftBlock
from specproof.enumeration import EnumeratedRandomness

SCHEDULES = ("catch_up", "eager", "deferred")
PROMPT = [3, 1, 4, 1, 5]


def decoder(target: object, rule: str, k: int, temperature: float = 0.0, seed: int = 1, **settings: object) -> Decoder:
    sampling = SamplingParams(temperature=temperature)
    return Decoder(
        target, rule=rule, sampling=sampling, randomness=SeededRandomness(seed), num_draft_tokens=k, **settings
    )


def drafter(dec: Decoder, model: object, schedule: str = "catch_up", **settings: object) -> DraftModel:
    """A drafter with the decoder's sampling and randomness, drawing as its rule wants it."""
    draw = dec.randomness.coupled_categorical if dec.rule == "coupled" else None
    return DraftModel(model, dec.sampling, dec.randomness, schedule=schedule, draw=draw, **settings)


def lag(schedule: str) -> int:
    return 1 if schedule == "deferred" else 0


def tokens(dec: Decoder, state: DecoderState) -> list[int]:
    return [token.token for token in dec.generate(state)]


# ------------------------------------------------------------------------------------------- rows in the caches


@pytest.mark.parametrize("k", [1, 2, 4])
@pytest.mark.parametrize("regime", ["all_reject", "mixed", "all_accept"])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_cache_offset_and_content_at_every_boundary_in_every_regime(
    target: Transformer, schedule: str, regime: str, k: int
) -> None:
    model = {
        "all_reject": disagreeing(target),
        "mixed": scripted(target, [True, False, True, True, True]),
        "all_accept": target,
    }[regime]
    dec = decoder(target, "greedy", k)
    state = dec.prefill(PROMPT, drafter(dec, model, schedule), 12)
    assert_at_boundary(state, target, target)
    accepted = []
    while state.finish is None:
        round_ = dec.step(state)
        accepted.append((round_.num_accepted, len(round_.drafted)))
        at_end = state.finish is not None
        assert_at_boundary(state, target, target, 0 if at_end else lag(schedule))
    assert state.emitted == plain_greedy(target, PROMPT, 12)
    if regime == "all_reject":
        assert all(a == 0 for a, _ in accepted)
    if regime == "all_accept":
        assert all(a == k for a, k in accepted)
    if regime == "mixed" and k > 1:
        assert any(0 < a < k for a, k in accepted)
        assert any(a == k for a, k in accepted)


def test_a_drafter_that_skips_its_catch_up_forward_is_seen(target: Transformer) -> None:
    """Negative control (lablup/mlxcel#994): after a full acceptance no trim can replace the missing row."""

    class Trimming(DraftModel):
        def commit(self, history: Sequence[int]) -> None:
            self.rollback(history)

    dec = decoder(target, "greedy", 2)
    state = dec.prefill(PROMPT, Trimming(target, dec.sampling, dec.randomness), 15)
    dec.step(state)
    with pytest.raises(AssertionError, match=r"draft cache holds 7 rows, expected 8 = prompt 5 \+ emitted 4 - 1"):
        assert_at_boundary(state, target, target)


@settings(max_examples=40, deadline=None)
@given(
    prompt=st.lists(st.integers(0, 31), min_size=1, max_size=5),
    rule=st.sampled_from(sorted(RULES)),
    schedule=st.sampled_from(SCHEDULES),
    temperature=st.sampled_from([0.0, 0.7, 1.5]),
    k=st.integers(0, 6),
    max_tokens=st.integers(0, 12),
    min_prob=st.sampled_from([0.0, 0.3]),
    stop=st.frozensets(st.integers(0, 31), max_size=6),
    seed=st.integers(0, 9),
)
def test_any_run_is_at_a_boundary_after_every_round(
    target: Transformer, draft: Transformer, prompt: list[int], rule: str, schedule: str, temperature: float, k: int,
    max_tokens: int, min_prob: float, stop: frozenset[int], seed: int,
) -> None:  # fmt: skip
    temperature = 0.0 if rule == "greedy" else temperature
    dec = decoder(target, rule, k, temperature, seed, stop_tokens=stop)
    state = dec.prefill(prompt, drafter(dec, draft, schedule, min_prob=min_prob), max_tokens)
    while state.finish is None:
        before = len(state.emitted)
        round_ = dec.step(state)
        a = round_.num_accepted
        assert round_.emitted[:a] == round_.drafted[: min(a, len(round_.emitted))]
        assert len(round_.emitted) == a + 1 - round_.num_cut
        assert len(round_.drafted) <= min(k, max_tokens - before - 1)
        assert len(round_.sum_min) == len(round_.sum_prod) == round_.num_tested
        assert state.block.tokens == round_.drafted
        assert len(state.target_hidden) == len(round_.emitted)
        assert_at_boundary(state, target, draft, 0 if state.finish else lag(schedule))
    assert len(state.emitted) <= max_tokens
    assert stop.isdisjoint(state.emitted[:-1])
    assert state.finish == ("stop" if state.emitted and state.emitted[-1] in stop else "length")
    assert [token.token for token in state.tokens] == state.emitted


# -------------------------------------------------------------------------------------- the tokens are the target's


@pytest.mark.parametrize("k", range(4))
@pytest.mark.parametrize("rule", RULES)
def test_at_temperature_zero_every_rule_decodes_greedily(
    target: Transformer, draft: Transformer, rule: str, k: int
) -> None:
    dec = decoder(target, rule, k)
    for proposing in (drafter(dec, draft), PromptLookup(32, max_ngram=2)):
        assert tokens(dec, dec.prefill(PROMPT, proposing, 12)) == plain_greedy(target, PROMPT, 12)


@pytest.mark.parametrize(("k", "seed"), [(0, 0), (1, 0), (3, 7), (5, 0)])
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("temperature", [0.3, 1.0, 1.7])
def test_coupled_output_equals_plain_sampling_token_for_token_at_any_temperature(
    target: Transformer, draft: Transformer, temperature: float, schedule: str, k: int, seed: int
) -> None:
    dec = decoder(target, "coupled", k, temperature, seed)
    expected = plain_gumbel(target, PROMPT, 14, dec.sampling, seed)
    uncoupled = DraftModel(draft, dec.sampling, dec.randomness, schedule=schedule)
    for proposing in (
        drafter(dec, draft, schedule),
        drafter(dec, disagreeing(target), schedule, min_prob=0.2),
        uncoupled,
        PromptLookup(32, max_ngram=1),
    ):
        assert tokens(dec, dec.prefill(PROMPT, proposing, 14)) == expected
    assert expected != plain_gumbel(target, PROMPT, 14, dec.sampling, seed + 1)


def test_coupled_noise_is_shared_with_the_drafter(target: Transformer) -> None:
    """A drafter with the target's weights is always accepted, at any temperature; with noise of its own it is not."""
    dec = decoder(target, "coupled", 3, 1.0)
    shared = dec.prefill(PROMPT, drafter(dec, target), 16)
    own = dec.prefill(PROMPT, DraftModel(target, dec.sampling, dec.randomness), 16)
    assert all(dec.step(shared).num_accepted == 3 for _ in range(3))
    assert sum(dec.step(own).num_accepted for _ in range(3)) < 9


Law = Mapping[tuple[int, ...], float]


def exact_law(dec: Decoder, max_tokens: int, propose_with: Callable[[Decoder], DraftModel]) -> Law:
    """The law of the turn's tokens, by enumerating every choice of the real decoder, round by round.

    Two states with the same history behave alike, so they are merged: their caches hold the same rows.
    """
    randomness = EnumeratedRandomness()
    dec = replace(dec, randomness=randomness)
    law: dict[tuple[int, ...], float] = defaultdict(float)
    open_states: dict[tuple[int, ...], tuple[DecoderState, float]] = {}

    def reach(state: DecoderState, mass: float) -> None:
        emitted = tuple(state.emitted)
        if state.finish is None:
            open_states[emitted] = (state, open_states.get(emitted, (state, 0.0))[1] + mass)
        else:
            law[emitted] += mass

    for _ in randomness.walk():
        state = dec.prefill([1, 0], propose_with(dec), max_tokens)
        reach(state, randomness.weight)
    while open_states:
        shortest = min(open_states, key=len)  # nothing can reach it any more
        state, mass = open_states.pop(shortest)
        for _ in randomness.walk():
            twin = state.copy()
            dec.step(twin)
            reach(twin, mass * randomness.weight)
    return law


def law_of_target(dec: Decoder, max_tokens: int) -> Law:
    """The same, token by token from the target without a cache."""

    def extend(emitted: tuple[int, ...], mass: float) -> dict[tuple[int, ...], float]:
        if len(emitted) == max_tokens or (emitted and emitted[-1] in dec.stop_tokens):
            return {emitted: mass}
        context = [1, 0, *emitted]
        p = distribution(dec.target.forward_without_cache(context).logits[-1], dec.sampling, context)
        longer = [extend((*emitted, token), mass * p[token]) for token in range(len(p)) if p[token] > 0]
        return {tokens: mass for part in longer for tokens, mass in part.items()}

    return extend((), 1.0)


def total_variation(a: Law, b: Law) -> float:
    return sum(abs(a.get(x, 0.0) - b.get(x, 0.0)) for x in a.keys() | b.keys()) / 2


@pytest.mark.parametrize(
    ("k", "max_tokens", "sampling", "stop", "settings"),
    [
        (1, 3, {}, (), {}),
        (2, 4, {"temperature": 0.8}, (), {"schedule": "deferred"}),
        (2, 3, {"top_p": 0.8}, (), {"schedule": "eager"}),
        (3, 5, {"top_k": 2, "temperature": 1.3}, (0,), {}),
        (2, 4, {"temperature": 1.3}, (2,), {}),
        (1, 3, {"presence_penalty": 1.0, "repetition_penalty": 1.3}, (), {"min_prob": 0.6}),
    ],
)
@pytest.mark.parametrize("rule", ["sampler_match", "rejection", "block"])
def test_the_law_of_the_output_is_the_targets(
    tiny_target: Transformer, tiny_draft: Transformer, rule: str, k: int, max_tokens: int,
    sampling: dict[str, float], stop: tuple[int, ...], settings: dict[str, object],
) -> None:  # fmt: skip
    dec = decoder(tiny_target, rule, k, stop_tokens=frozenset(stop))
    dec = replace(dec, sampling=SamplingParams(**sampling))
    law = exact_law(dec, max_tokens, lambda dec: drafter(dec, tiny_draft, **settings))
    assert total_variation(law, law_of_target(dec, max_tokens)) < 1e-12


@pytest.mark.parametrize("rule", ["rejection", "block"])
def test_the_law_is_the_targets_where_the_floor_ends_some_blocks_early(
    tiny_target: Transformer, tiny_draft: Transformer, rule: str
) -> None:
    lengths = set()

    class Watched(DraftModel):
        def propose(self, history: Sequence[int], target_hidden: object, budget: int) -> DraftBlock:
            block = super().propose(history, target_hidden, budget)
            lengths.add((budget, len(block)))
            return block

    dec = decoder(tiny_target, rule, 2, 1.3)
    law = exact_law(dec, 4, lambda dec: Watched(tiny_draft, dec.sampling, dec.randomness, min_prob=0.55))
    assert lengths >= {(2, 0), (2, 1), (2, 2)}
    assert total_variation(law, law_of_target(dec, 4)) < 1e-12


def test_a_redraw_from_p_is_seen_in_the_law_of_the_decoder(tiny_target: Transformer, tiny_draft: Transformer) -> None:
    def redraw(p, q, drafted, randomness, position):  # type: ignore[no-untyped-def]
        verdict = RULES["rejection"].decide(p, q, drafted, randomness, position)
        redrawn = randomness.categorical(p[verdict.num_accepted])
        return verdict if verdict.num_accepted == len(drafted) else Verdict(verdict.num_accepted, redrawn)

    rule = replace(RULES["rejection"], name="redraw", decision=redraw)
    dec = decoder(tiny_target, rule, 2, temperature=1.0)
    law = exact_law(dec, 3, lambda dec: drafter(dec, disagreeing(tiny_target)))
    assert total_variation(law, law_of_target(dec, 3)) > 0.05


def test_a_floor_that_looks_at_the_token_drawn_is_seen_in_the_law(tiny_target: Transformer) -> None:
    """Negative control for `min_prob`: stopping after the draw proposes probable tokens more often than q says."""

    class Biased(DraftModel):
        def propose(self, history: Sequence[int], target_hidden: object, budget: int) -> DraftBlock:
            block = super().propose(history, target_hidden, budget)
            kept = [i for i, token in enumerate(block.tokens) if block.distributions[i].prob(token) >= 0.4]
            n = next((i for i in range(len(block)) if i not in kept), len(block))
            return DraftBlock(block.tokens[:n], block.distributions[:n])

    dec = decoder(tiny_target, "rejection", 1, 1.0)
    law = exact_law(dec, 3, lambda dec: Biased(disagreeing(tiny_target), dec.sampling, dec.randomness))
    assert total_variation(law, law_of_target(dec, 3)) > 0.01


# ---------------------------------------------------------------------------------------------- what a round reports


def test_a_round_reports_the_probabilities_it_was_decided_on(target: Transformer, draft: Transformer) -> None:
    dec = decoder(target, "rejection", 3, 0.8)
    state = dec.prefill(PROMPT, drafter(dec, draft), 30)
    while state.finish is None:
        history = list(state.history)
        round_ = dec.step(state)
        for i, token in enumerate(round_.drafted):
            context = [*history, *round_.drafted[:i]]
            p = distribution(target.forward_without_cache(context).logits[-1], dec.sampling, context)
            q = distribution(draft.forward_without_cache(context).logits[-1], dec.sampling, context)
            assert round_.p[i] == pytest.approx(p[token], abs=1e-12)
            assert round_.q[i] == pytest.approx(q[token], abs=1e-12)
            if i < round_.num_tested:
                assert round_.sum_min[i] == pytest.approx(np.minimum(p, q).sum(), abs=1e-12)
                assert round_.sum_prod[i] == pytest.approx((p * q).sum(), abs=1e-12)


def test_tokens_say_where_they_came_from(target: Transformer) -> None:
    dec = decoder(target, "greedy", 2)
    state = dec.prefill(PROMPT, drafter(dec, scripted(target, [True, False])), 9)
    handed = list(dec.generate(state))
    assert handed == state.tokens
    assert (handed[0].from_draft, handed[0].round_index) == (False, -1)
    assert [token.round_index for token in handed] == sorted(token.round_index for token in handed)
    assert {token.from_draft for token in handed} == {True, False}
    assert handed[-1].round_index == state.num_rounds - 1


@pytest.mark.parametrize("k", [0, 3])
def test_processors_and_penalties_see_history_and_block(target: Transformer, k: int) -> None:
    seen: list[list[int]] = []

    def watch(context: Sequence[int], logits: np.ndarray) -> np.ndarray:
        seen.append(list(context))
        return logits

    dec = decoder(target, "greedy", k, processors=(watch,))
    dec = replace(dec, sampling=SamplingParams(temperature=0, presence_penalty=2.0, penalty_window=4))
    state = dec.prefill(PROMPT, drafter(dec, target), 9)
    assert seen == [PROMPT]
    while state.finish is None:
        seen.clear()
        history = list(state.history)
        round_ = dec.step(state)
        assert seen == [[*history, *round_.drafted[:i]] for i in range(len(round_.drafted) + 1)]
    history = list(PROMPT)
    while len(history) < len(state.history):
        logits = target.forward_without_cache(history).logits[-1].copy()
        logits[sorted(set(history[-4:]))] -= 2.0
        history.append(int(np.argmax(logits)))
    assert state.history == history


def test_the_drafter_is_given_the_hidden_states_of_the_committed_tokens(target: Transformer) -> None:
    given_hidden = []

    class Watching(DraftModel):
        def propose(self, history: Sequence[int], target_hidden: np.ndarray, budget: int) -> DraftBlock:
            given_hidden.append((list(history[:-1]), target_hidden))
            return super().propose(history, target_hidden, budget)

    dec = decoder(target, "greedy", 3)
    model = scripted(target, [True, True, False])
    tokens(dec, dec.prefill(PROMPT, Watching(model, dec.sampling, dec.randomness), 12))
    assert len(given_hidden) > 3
    for committed, hidden in given_hidden:
        whole = target.forward(committed, target.new_cache()).hidden
        np.testing.assert_allclose(hidden, whole[-len(hidden) :], atol=1e-9)


# --------------------------------------------------------------------------------------------------- copied states


@pytest.mark.parametrize("rule", RULES)
def test_a_copied_state_is_independent(target: Transformer, draft: Transformer, rule: str) -> None:
    dec = decoder(target, rule, 3)
    state = dec.prefill(PROMPT, drafter(dec, draft), 12)
    dec.step(state)
    kept, twin = list(state.history), state.copy()
    futures = tokens(dec, twin)
    assert state.history == kept
    assert state.drafter is not twin.drafter
    assert_at_boundary(state, target, draft)
    assert_at_boundary(twin, target, draft)
    assert tokens(dec, state) == futures


# ------------------------------------------------------------------------------------------------------ bad input


def test_bad_settings_are_refused(target: Transformer, draft: Transformer) -> None:
    with pytest.raises(
        InvalidSetting, match="no acceptance rule is named 'typical'; give one of greedy, sampler_match"
    ):
        decoder(target, "typical", 2)
    with pytest.raises(InvalidSetting, match=r"num_draft_tokens is -1; give an integer >= 0 \(0 drafts nothing\)"):
        decoder(target, "greedy", -1)
    for rule in ("greedy", RULES["greedy"]):
        with pytest.raises(
            InvalidSetting, match=r"rule 'greedy' with temperature 0\.5 does not keep p; set temperature 0"
        ):
            decoder(target, rule, 2, temperature=0.5)
    dec = decoder(target, "greedy", 2)
    with pytest.raises(InvalidSetting, match="max_tokens is -1; give an integer >= 0"):
        dec.prefill(PROMPT, drafter(dec, draft), -1)


def test_bad_prompts_are_refused_before_anything_is_changed(target: Transformer, draft: Transformer) -> None:
    dec = decoder(target, "greedy", 2)
    proposing, cache = drafter(dec, draft), target.new_cache()
    with pytest.raises(EmptyPrompt, match=r"the prompt is empty; .* give at least one token"):
        dec.prefill([], proposing, 5, cache)
    with pytest.raises(TokenOutOfRange, match=r"token 32 at index 2 is outside the vocabulary 0\.\.31 of target"):
        dec.prefill([1, 2, 32], proposing, 5, cache)
    assert (cache.offset, proposing.cache.offset) == (0, 0)


def test_a_drafter_for_another_vocabulary_is_refused(target: Transformer, tiny_draft: Transformer) -> None:
    dec = decoder(target, "greedy", 2)
    for proposing in (drafter(dec, tiny_draft), PromptLookup(3)):
        with pytest.raises(VocabularyMismatch, match="the target has 32 tokens, the drafter 3"):
            dec.prefill(PROMPT, proposing, 5)


@pytest.mark.parametrize("which", ["target", "draft"])
def test_nan_logits_name_model_and_position_and_leave_the_boundary(
    target: Transformer, draft: Transformer, which: str
) -> None:
    def spoil(model: Transformer) -> Changed:
        return Changed(model, lambda logits, positions: np.where(positions[:, None] == 7, np.nan, logits))

    models = {"target": target, "draft": draft}
    models[which] = spoil(models[which])
    dec = decoder(models["target"], "rejection", 4, 0.8)
    state = dec.prefill(PROMPT, drafter(dec, models["draft"]), 12)
    with pytest.raises(NonFiniteLogits, match=f"{which} gave the logit nan for token 0 at position 7"):
        tokens(dec, state)
    assert_at_boundary(state, target, draft)


def test_models_that_hide_their_cache_are_refused_at_prefill(target: Transformer, draft: Transformer) -> None:
    def hiding(model: Transformer) -> Changed:
        hidden = Changed(model, lambda logits, positions: logits)
        hidden.forward = lambda tokens, cache: model.forward(tokens, cache.copy())
        return hidden

    for big, small, name in ((hiding(target), draft, "target"), (target, hiding(draft), "draft")):
        dec = decoder(big, "greedy", 2)
        with pytest.raises(HiddenCache, match=f"{name} forwarded 5 tokens, but the cache"):
            dec.prefill(PROMPT, drafter(dec, small), 5)


def test_a_drafter_that_exceeds_its_budget_is_refused(target: Transformer) -> None:
    class Eager(PromptLookup):
        def propose(self, history: Sequence[int], target_hidden: object, budget: int) -> DraftBlock:
            return super().propose(history, target_hidden, budget + 1)

    dec = decoder(target, "greedy", 1)
    state = dec.prefill([7, 7, 7, 7], Eager(32, max_ngram=1, occurrence="first"), 9)
    state.history[-1] = 7
    with pytest.raises(DecodingFault, match="the drafter proposed 2 tokens with a budget of 1"):
        dec.step(state)


def test_warm_caches_longer_than_the_prompt_are_refused(target: Transformer, draft: Transformer) -> None:
    dec = decoder(target, "greedy", 2)
    cache = target.new_cache()
    target.forward(PROMPT, cache)
    with pytest.raises(
        CacheLengthError, match=r"target cache holds 5 rows, a prompt of 5 tokens allows 4 .*: trim the cache"
    ):
        dec.prefill(PROMPT, drafter(dec, draft), 5, cache)
    drafts = draft.new_cache()
    draft.forward([*PROMPT, 1], drafts)
    with pytest.raises(CacheLengthError, match="draft cache holds 6 rows, a prompt of 5 tokens allows 4"):
        dec.prefill(PROMPT, drafter(dec, draft, cache=drafts), 5)
    assert (cache.offset, drafts.offset) == (5, 6)


@pytest.mark.parametrize(("held", "draft_held"), list(product((0, 2, 4), (0, 3, 4))))
def test_a_warm_start_decodes_as_a_cold_one(
    target: Transformer, draft: Transformer, held: int, draft_held: int
) -> None:
    dec = decoder(target, "greedy", 3)
    cache, drafts = target.new_cache(), draft.new_cache()
    if held:
        target.forward(PROMPT[:held], cache)
    if draft_held:
        draft.forward(PROMPT[:draft_held], drafts)
    state = dec.prefill(PROMPT, drafter(dec, draft, cache=drafts), 9, cache)
    assert_at_boundary(state, target, draft)
    assert tokens(dec, state) == plain_greedy(target, PROMPT, 9)
    assert state.target_cache is cache
