"""Rounds of the MLX decoder: offsets, cache contents, what is emitted, what is reported, and when a turn ends."""

import functools
from itertools import pairwise

import numpy as np
import pytest

mx = pytest.importorskip("mlx.core", reason="mlx is not installed; pip install 'specproof[mlx]'")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from mlx_decodes import assert_at_boundary, assert_cache_content, greedy, lookup, make, rounds, run  # noqa: E402
from mlx_toys import GREEDY, REGIMES, SAMPLINGS, Scripted, pair, remembered, toy  # noqa: E402

from mlx_impl import DraftModel, KeyedRandomness  # noqa: E402
from mlx_impl.model_cache import ModelCache  # noqa: E402
from mlx_impl.sampling import distributions  # noqa: E402
from reference.values import SamplingParams  # noqa: E402

RULES = tuple(SAMPLINGS)


# ------------------------------------------------------------------------------------------------ offsets and rows


@pytest.mark.parametrize("k", [4])
@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize("rule", RULES)
def test_target_and_draft_cache_offset_is_prompt_plus_emitted_minus_1_at_every_boundary(rule, regime, k):
    target, draft = pair(regime)
    decoder, drafter = make(rule, k, target, draft)
    rounds(decoder, decoder.prefill([1, 2, 3], drafter, 9))


def test_a_trim_of_the_drafter_that_goes_too_far_breaks_the_draft_cache_offset():
    """The control: lablup/mlxcel#994 trimmed min(rejected + 1, k) rows. The text stays right, the cache does not."""

    class TrimsTooMuch(DraftModel):
        proposed = 0

        def propose(self, history, target_hidden, budget):
            block = super().propose(history, target_hidden, budget)
            self.proposed, self.start = len(block), len(history)
            return block

        def commit(self, history):
            accepted = len(history) - self.start - 1
            rejected = self.proposed - accepted
            if rejected:
                for layer in self.cache:
                    layer.trim(min(rejected + 1, self.proposed, layer.offset))

    target = toy("target")
    decoder, _ = make("greedy", 4)
    drafter = TrimsTooMuch(Scripted(target, [False]), GREEDY, KeyedRandomness(0))
    state = decoder.prefill([1], drafter, 24)
    with pytest.raises(AssertionError, match=r"caches hold .*expected 2 = prompt 1 \+ emitted 2 - 1 after round 1"):
        rounds(decoder, state)


@pytest.mark.parametrize("regime", REGIMES)
def test_cache_content_equals_that_of_a_fresh_prefill_at_every_boundary(regime):
    target, draft = pair(regime)
    decoder, drafter = make("sampler_match", 3, target, draft, seed=4)
    state = decoder.prefill([1, 2, 3], drafter, 14)
    models = {"target": target, "draft": draft}
    assert_cache_content(state, models)
    while state.finish is None:
        decoder.step(state)
        assert_cache_content(state, models)
    state.history[2] += 1  # the control: another token at one position shows
    with pytest.raises(AssertionError, match=r"layer 0: keys differ by"):
        assert_cache_content(state, models)


def test_a_long_prompt_is_forwarded_in_pieces_with_the_same_result():
    prompt = [int(token) for token in np.random.default_rng(0).integers(0, 32, 50)]
    whole = run(*make("greedy"), prompt, 10)
    decoder, drafter = make("greedy")
    drafter.cache.prefill_step = 7
    state = decoder.prefill(prompt, drafter, 10, ModelCache("target", toy("target").make_cache(), prefill_step=7))
    assert_at_boundary(state)
    assert_cache_content(state, {"target": toy("target"), "draft": toy("draft")})
    assert tuple(item.token for item in decoder.generate(state)) == whole


# --------------------------------------------------------------------------------------------------------- output


@functools.cache
def greedy_in(regime):
    """Twelve tokens of cache-free greedy decoding."""
    return greedy(pair(regime)[0], [3, 1, 4], 12)


@pytest.mark.parametrize(("regime", "k"), [("plain", 0), *((regime, 4) for regime in REGIMES)])  # 0 asks no drafter
@pytest.mark.parametrize("rule", RULES)
def test_at_temperature_0_every_rule_gives_greedy_decoding(rule, regime, k):
    decoder, drafter = make(rule, k, *pair(regime, remembered), sampling=GREEDY)
    assert run(decoder, drafter, [3, 1, 4], 12) == greedy_in(regime)


@pytest.mark.parametrize("rule", RULES)
def test_prompt_lookup_gives_greedy_decoding_too(rule):
    decoder, _ = make(rule, 4, sampling=GREEDY)
    state = decoder.prefill([3, 1, 4], lookup(), 30)
    accepted = [done.num_accepted for done in rounds(decoder, state)]
    assert state.emitted == greedy(toy("target"), [3, 1, 4], 30)
    assert sum(accepted) > 0


@pytest.mark.parametrize(("regime", "accepted"), [("all_accept", 3), ("all_reject", 0)])
def test_forced_regimes_are_what_they_say(regime, accepted):
    decoder, drafter = make("greedy", 3, *pair(regime))
    found = [done.num_accepted for done in rounds(decoder, decoder.prefill([1, 2], drafter, 17))]
    assert found == [accepted] * len(found)


@given(
    prompt=st.lists(st.integers(0, 31), min_size=1, max_size=5),
    script=st.lists(st.booleans(), min_size=1, max_size=7),
    k=st.integers(0, 5),
    max_tokens=st.integers(0, 12),
    stops=st.frozensets(st.integers(0, 31), max_size=3),
    rule=st.sampled_from(RULES),
    seed=st.integers(0, 2**32 - 1),
)
@settings(max_examples=25, deadline=None)
def test_what_is_emitted_is_the_accepted_proposals_and_one_token_unless_a_stop_cut_the_block(
    prompt, script, k, max_tokens, stops, rule, seed
):
    decoder, drafter = make(rule, k, draft=Scripted(toy("target"), script), seed=seed, stop_tokens=stops)
    state = decoder.prefill(prompt, drafter, max_tokens)
    first = state.emitted
    done = rounds(decoder, state)
    assert state.emitted == first + sum((entry.emitted for entry in done), ())
    assert len(state.emitted) == len(state.tokens) <= max_tokens
    for index, entry in enumerate(done):
        a, kept = entry.num_accepted, len(entry.emitted)
        assert len(entry.drafted) <= k
        assert 0 <= a <= len(entry.drafted)
        assert entry.emitted[:a] == entry.drafted[: min(a, kept)]
        assert kept == a + 1 or entry.emitted[-1] in stops
        assert not stops & set(entry.emitted[:-1])
        assert (entry.finish is not None) == (index == len(done) - 1)
    if max_tokens:
        assert state.finish == ("stop" if state.emitted[-1] in stops else "length")
    else:
        assert (state.finish, state.emitted) == ("length", ())


def test_each_token_says_where_it_came_from():
    decoder, drafter = make("greedy", 3, *pair("mixed"))
    state = decoder.prefill([1, 2], drafter, 20)
    done = rounds(decoder, state)
    expected = [(state.emitted[0], False, -1)]
    for index, entry in enumerate(done):
        expected += [(token, i < entry.num_accepted, index) for i, token in enumerate(entry.emitted)]
    found = [(item.token, item.from_draft, item.round_index) for item in decoder.generate(state)]
    assert found == expected
    assert state.num_rounds == len(done)


@pytest.mark.parametrize("rule", ["rejection", "sampler_match"])
def test_a_round_reports_p_q_and_the_closed_forms_of_its_tested_positions(rule):
    sampling = SamplingParams(temperature=0.9, top_p=0.95, presence_penalty=0.5)
    decoder, drafter = make(rule, 3, sampling=sampling, seed=5)
    state = decoder.prefill([1, 2, 3], drafter, 20)
    while state.finish is None:
        history = list(state.history)
        done = decoder.step(state)
        assert len(done.p) == len(done.q) == len(done.drafted)
        assert len(done.sum_min) == len(done.sum_prod) == done.num_tested
        for index, token in enumerate(done.drafted):
            context = mx.array(history + list(done.drafted[:index]))
            p, q = (
                np.array(distributions(model(context[None])[0, -1:], sampling, context)[0])
                for model in (toy("target"), toy("draft"))
            )
            np.testing.assert_allclose(np.array(state.block.probabilities[index]), q, atol=1e-5)
            assert done.p[index] == pytest.approx(p[token], abs=1e-5)
            assert done.q[index] == pytest.approx(q[token], abs=1e-5)
            if index < done.num_tested:
                assert done.sum_min[index] == pytest.approx(np.minimum(p, q).sum(), abs=1e-5)
                assert done.sum_prod[index] == pytest.approx((p * q).sum(), abs=1e-5)


@pytest.mark.parametrize("rule", ["rejection", "block", "coupled", "sampler_match", "greedy"])
def test_log_probabilities_of_emitted_tokens_are_those_of_plain_decoding(rule):
    sampling = GREEDY if rule == "greedy" else SamplingParams(temperature=0.9, top_p=0.9, frequency_penalty=0.5)
    decoder, drafter = make(rule, 3, sampling=sampling, seed=5)
    state = decoder.prefill([1, 2, 3], drafter, 14)
    found, by_draft = [], []
    while state.finish is None:
        history, done = list(state.history), decoder.step(state)
        assert len(done.log_probabilities) == len(done.emitted)
        for index, (token, figure) in enumerate(zip(done.emitted, done.log_probabilities, strict=True)):
            context = mx.array(history + list(done.emitted[:index]))
            p, q = (
                np.array(distributions(model(context[None])[0, -1:], sampling, context)[0])
                for model in (toy("target"), toy("draft"))
            )
            found.append(np.exp(figure) - p[token])
            by_draft.append(np.exp(figure) - q[token])
    np.testing.assert_allclose(found, 0, atol=1e-5)
    assert np.abs(by_draft).max() > 0.01  # the control: the drafter's would be seen


def test_processors_see_what_plain_decoding_shows_them():
    def contexts(k):
        seen = []

        def ban_the_last(tokens, logits):
            seen.append(tuple(tokens.tolist()))
            return mx.where(mx.arange(32) == tokens[-1], -mx.inf, logits)

        decoder, drafter = make("greedy", k, processors=[ban_the_last])
        output = run(decoder, drafter, [1, 2], 12)
        return output, seen

    plain, plainly_seen = contexts(0)
    output, seen = contexts(3)
    assert output == plain
    assert set(plainly_seen) <= set(seen)
    assert len(plainly_seen) == 12
    assert all(one != other for one, other in pairwise(output))
