"""What the MLX decoder refuses: bad settings and prompts, and models and drafters that break their contract."""

import pytest

mx = pytest.importorskip("mlx.core", reason="mlx is not installed; pip install 'specproof[mlx]'")

import numpy as np  # noqa: E402
from mlx_decodes import assert_at_boundary, make  # noqa: E402
from mlx_toys import GREEDY, SAMPLINGS, Poisoned, Wrapped, toy  # noqa: E402

from mlx_impl import Decoder, DraftModel, KeyedRandomness, PromptLookup  # noqa: E402
from mlx_impl.cache import offsets  # noqa: E402
from mlx_impl.drafters import DeviceBlock  # noqa: E402
from reference.errors import (  # noqa: E402
    CacheLengthError,
    DecodingFault,
    DishonestDraft,
    EmptyPrompt,
    HiddenCache,
    InvalidSetting,
    NonFiniteLogits,
    TokenOutOfRange,
    VocabularyMismatch,
)
from reference.values import SamplingParams  # noqa: E402

RULES = tuple(SAMPLINGS)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rule": "best"}, r"rule is 'best'; give one of greedy, sampler_match, rejection, block, coupled"),
        ({"num_draft_tokens": -1}, r"num_draft_tokens is -1; give an integer >= 0 \(0 decodes plainly\)"),
        ({"rule": "greedy"}, r"rule 'greedy' at temperature 1\.0 would change the output's distribution; give temp"),
        ({"target": object()}, r"object has no args\.vocab_size; give a language model"),
    ],
)
def test_bad_settings_of_a_decoder_are_refused(settings, message):
    given = {"target": toy("target"), "rule": "rejection", "num_draft_tokens": 2} | settings
    with pytest.raises(InvalidSetting, match=message):
        Decoder(given.pop("target"), sampling=SamplingParams(), randomness=KeyedRandomness(0), **given)


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "error", "message"),
    [
        ([], 4, EmptyPrompt, r"the prompt has no tokens; give at least one"),
        ([1, 32], 4, TokenOutOfRange, r"prompt\[1\] is 32, outside the vocabulary 0\.\.31; check"),
        ([-1], 4, TokenOutOfRange, r"prompt\[0\] is -1, outside"),
        ([1], -2, InvalidSetting, r"max_tokens is -2; give an integer >= 0, or -1 for no limit"),
        ([1], -1.0, InvalidSetting, r"max_tokens is -1\.0; give an integer >= 0, or -1 for no limit"),
    ],
)
def test_bad_prompts_are_refused_and_nothing_is_forwarded(prompt, max_tokens, error, message):
    decoder, drafter = make()
    with pytest.raises(error, match=message):
        decoder.prefill(prompt, drafter, max_tokens)
    assert offsets(drafter.cache) == (0,)


@pytest.mark.parametrize("drafter", [lambda: make(draft=toy("tiny-draft"))[1], lambda: PromptLookup(3)])
def test_a_drafter_with_another_vocabulary_is_refused(drafter):
    with pytest.raises(VocabularyMismatch, match=r"the target knows 32 tokens, the drafter 3; "):
        make()[0].prefill([1], drafter(), 4)


def test_a_bias_outside_the_vocabulary_is_refused():
    decoder, drafter = make("rejection", sampling=SamplingParams(logit_bias={40: 1.0}))
    with pytest.raises(InvalidSetting, match=r"logit_bias names token 40; give ids inside the vocabulary 0\.\.31"):
        decoder.prefill([1], drafter, 4)


def test_a_turn_that_has_ended_cannot_be_stepped():
    decoder, drafter = make()
    state = decoder.prefill([1, 2], drafter, 1)
    with pytest.raises(
        InvalidSetting, match=r"this turn has ended \(finish is 'length'\); begin the next one by extend"
    ):
        decoder.step(state)
    assert_at_boundary(state)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize(("position", "where"), [(2, "prefill"), (5, "a round")])
@pytest.mark.parametrize("poisoned", ["target", "draft model"])
@pytest.mark.parametrize("rule", RULES)
def test_logits_that_are_not_finite_are_an_error_with_model_and_position(rule, poisoned, position, where, value):
    model = Poisoned(toy("target"), position, value)
    others = {"target": {"target": model}, "draft model": {"draft": model}}
    decoder, drafter = make(rule, 3, **others[poisoned])
    message = rf"the {poisoned}'s logits at position {position} hold NaN or infinity; check its weights"
    if (poisoned, where) == ("draft model", "prefill"):
        decoder.prefill([1, 2, 3], drafter, 4)  # the drafter's logits are not used there
        return
    with pytest.raises(NonFiniteLogits, match=message):
        list(decoder.generate(decoder.prefill([1, 2, 3], drafter, 12)))
    if where == "prefill":
        assert set(offsets(drafter.cache)) == {0}


def test_processors_that_ban_every_token_are_an_error():
    decoder, drafter = make("greedy", processors=[lambda tokens, logits: mx.full(logits.shape, -mx.inf)])
    with pytest.raises(
        NonFiniteLogits, match=r"processors left the target no distribution at position 1; they may ban"
    ):
        decoder.prefill([1, 2], drafter, 4)


class Dishonest(DraftModel):
    """Reports the q of another token than the one that it proposes."""

    def propose(self, history, target_hidden, budget):
        block = super().propose(history, target_hidden, budget)
        return DeviceBlock((block.tokens + 1) % 32, block.probabilities, block.faults)


class TooMany(DraftModel):
    def propose(self, history, target_hidden, budget):
        return super().propose(history, target_hidden, budget + 1)


@pytest.mark.parametrize(
    ("kind", "error", "message"),
    [
        (Dishonest, DishonestDraft, r"proposal 0 is token \d+, which has no mass under the q reported for it; report"),
        (TooMany, DecodingFault, r"the drafter proposed 4 tokens on a budget of 3; mend the drafter"),
    ],
)
def test_a_drafter_that_breaks_its_contract_is_an_error_and_leaves_the_boundary(kind, error, message):
    decoder, _ = make("greedy", 3)
    state = decoder.prefill([1, 2], kind(toy("draft"), GREEDY, KeyedRandomness(0)), 9)
    with pytest.raises(error, match=message):
        decoder.step(state)
    assert_at_boundary(state)


class OutOfVocabulary(DraftModel):
    """Proposes a token that does not exist."""

    def propose(self, history, target_hidden, budget):
        block = super().propose(history, target_hidden, budget)
        return DeviceBlock(block.tokens + 32, block.probabilities, block.faults)


class TooFewRows(DraftModel):
    def propose(self, history, target_hidden, budget):
        block = super().propose(history, target_hidden, budget)
        return DeviceBlock(block.tokens, block.probabilities[:-1], block.faults)


class ShortRows(DraftModel):
    def propose(self, history, target_hidden, budget):
        block = super().propose(history, target_hidden, budget)
        return DeviceBlock(block.tokens, block.probabilities[:, :-1], block.faults)


class NanQ(DraftModel):
    def propose(self, history, target_hidden, budget):
        block = super().propose(history, target_hidden, budget)
        return DeviceBlock(block.tokens, block.probabilities * mx.nan, block.faults)


@pytest.mark.parametrize(
    ("kind", "error", "message"),
    [
        (OutOfVocabulary, TokenOutOfRange, r"proposal\[0\] is \d+, outside the vocabulary 0\.\.31"),
        (TooFewRows, DecodingFault, r"tokens \(3,\) with probabilities \(2, 32\); it must give .* here \(3, 32\)"),
        (ShortRows, DecodingFault, r"tokens \(3,\) with probabilities \(3, 31\); it must give"),
        (NanQ, DishonestDraft, r"proposal 0 is token \d+, which has no mass under the q"),
    ],
)
@pytest.mark.parametrize("rule", RULES)
def test_a_malformed_block_is_an_error_under_every_rule_and_leaves_the_boundary(rule, kind, error, message):
    decoder, _ = make(rule, 3)
    state = decoder.prefill([1, 2], kind(toy("draft"), GREEDY, KeyedRandomness(0)), 9)
    history = list(state.history)
    with pytest.raises(error, match=message):
        decoder.step(state)
    assert state.history == history
    assert_at_boundary(state)


@pytest.mark.parametrize("value", [1.5, float("inf"), "3", None], ids=repr)
def test_counts_and_tokens_that_are_not_integers_are_refused(value):
    decoder, drafter = make()
    with pytest.raises(InvalidSetting, match=r"max_tokens is .*; give an integer >= 0"):
        decoder.prefill([1], drafter, value)
    with pytest.raises(InvalidSetting, match=r"num_draft_tokens is .*; give an integer >= 0"):
        make("greedy", value)
    with pytest.raises(TokenOutOfRange, match=r"the prompt holds .*, which is no token id"):
        decoder.prefill([1, value], drafter, 4)
    assert offsets(drafter.cache) == (0,)


def test_integers_of_other_libraries_become_plain_ones():
    decoder, drafter = make("greedy", np.int64(3))
    state = decoder.prefill(np.array([1, 2]), drafter, np.int32(4))
    assert {type(n) for n in (*state.history, state.max_tokens, decoder.num_draft_tokens)} == {int}
    assert decoder.prefill(mx.array([1, 2]), make()[1], 4).history == state.history


def test_a_target_that_hides_its_rows_is_refused():
    class Hiding(Wrapped):
        def __call__(self, inputs, cache):
            return self.inner(inputs)

    decoder, drafter = make(target=Hiding(toy("target")))
    with pytest.raises(HiddenCache, match=r"took the target's cache offsets from \(0, 0, 0\) to \(0, 0, 0\)"):
        decoder.prefill([1, 2], drafter, 4)


def test_a_target_cache_whose_layers_disagree_is_refused():
    decoder, drafter = make()
    cache = toy("target").make_cache()
    toy("target")(mx.array([[1, 2]]), cache=cache)
    cache[1].trim(1)
    with pytest.raises(CacheLengthError, match=r"layers hold \(2, 1, 2\) rows"):
        decoder.prefill([1, 2, 3], drafter, 4, cache)
