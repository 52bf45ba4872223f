"""Drafters on MLX: what they propose, what q they report, and what their cache holds, call by call."""

import numpy as np
import pytest

mx = pytest.importorskip("mlx.core", reason="mlx is not installed; pip install 'specproof[mlx]'")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from mlx_toys import GREEDY, SAMPLED, TOYS, Counting, Failing, Hiding, InjectedError, Poisoned, Wrapped, toy  # noqa: E402

from mlx_impl import DraftModel, KeyedRandomness, KVCache, PromptLookup  # noqa: E402
from mlx_impl.cache import offsets  # noqa: E402
from mlx_impl.sampling import distributions  # noqa: E402
from mlx_impl.transformer import load  # noqa: E402
from reference.errors import (  # noqa: E402
    CacheLengthError,
    HiddenCache,
    InvalidSetting,
    TokenOutOfRange,
    VocabularyMismatch,
)
from reference.values import SamplingParams  # noqa: E402


def drafter(sampling=SAMPLED, model=None, seed=0, **settings) -> DraftModel:
    return DraftModel(toy("draft") if model is None else model, sampling, KeyedRandomness(seed), **settings)


def rows(drafter) -> int:
    (offset,) = set(offsets(drafter.cache))
    return offset


# --------------------------------------------------------------------------------------------------- cache and calls


def test_draft_cache_offset_after_each_call_follows_from_history_and_cache_alone():
    """k proposals take k forwards: the last one has no row until a full acceptance asks for it."""
    draft = drafter()
    block = draft.propose([1, 2, 3], None, 4)
    assert (len(block), rows(draft)) == (4, 6)
    tokens = block.tokens.tolist()
    draft.commit([1, 2, 3, tokens[0], 9])  # one accepted, then a correction
    assert rows(draft) == 4
    block = draft.propose([1, 2, 3, tokens[0], 9], None, 2)
    assert rows(draft) == 6
    draft.commit([1, 2, 3, tokens[0], 9, *block.tokens.tolist(), 8])  # all accepted, then a bonus
    assert rows(draft) == 7
    draft.propose([1, 2], None, 1)  # the history was cut
    assert rows(draft) == 2


def test_only_a_full_acceptance_costs_a_forward_more():
    model = Counting(toy("draft"))
    draft, history = drafter(model=model), [1, 2, 3]
    draft.settle(history)
    tokens = draft.propose(history, None, 3).tokens.tolist()
    assert model.lengths == [2, 1, 1, 1]
    twin = draft.copy()
    draft.commit([*history, *tokens[:2], 9])
    assert model.lengths == [2, 1, 1, 1]
    twin.commit([*history, *tokens, 9])
    assert model.lengths == [2, 1, 1, 1, 1]


@pytest.mark.parametrize("held", [0, 2, 5, 8])
def test_settling_brings_any_cache_in_step_with_the_history(held):
    draft, history = drafter(), [5, 6, 7, 8, 9, 10]
    if held:
        draft.model(mx.array([[*history, 1, 2][:held]]), cache=draft.cache)
    draft.settle(history)
    assert rows(draft) == 5
    fresh = draft.model.make_cache()
    draft.model(mx.array([history[:-1]]), cache=fresh)
    assert mx.allclose(draft.cache[0].state[0], fresh[0].state[0], atol=1e-4)


def test_rolling_back_cuts_layers_that_differ_and_forwards_nothing():
    model = Counting(toy("target"))
    draft = drafter(model=model)
    draft.settle([1, 2, 3, 4, 5, 6])
    draft.cache[2].trim(1)
    draft.rollback([1, 2, 3, 4])
    assert offsets(draft.cache) == (3, 3, 3)
    draft.rollback([1, 2, 3, 4, 5, 6])
    assert (offsets(draft.cache), model.lengths) == ((3, 3, 3), [5])


@pytest.mark.parametrize("when", ["before", "half-way", "after"])
def test_a_forward_that_failed_can_be_rolled_back(when):
    draft = drafter(model=Failing(toy("target"), 2, when, InjectedError()))
    draft.settle([1, 2, 3])
    with pytest.raises(InjectedError):
        draft.propose([1, 2, 3], None, 3)
    draft.rollback([1, 2, 3])
    assert offsets(draft.cache) == (2, 2, 2)


def test_a_copy_is_independent():
    draft = drafter()
    draft.settle([1, 2, 3])
    twin = draft.copy()
    twin.propose([1, 2, 3], None, 4)
    assert (rows(draft), rows(twin)) == (2, 6)


def test_a_copy_is_of_the_drafters_own_class_with_what_it_holds_besides():
    """Or whoever copies the state of a decode with a drafter of his own would go on with another one."""

    class Own(DraftModel):
        pass

    draft = Own(toy("draft"), GREEDY, KeyedRandomness(0))
    draft.note = "mine"
    twin = draft.copy()
    assert (type(twin), twin.note) == (Own, "mine")


def test_synced_len_is_what_the_cache_holds_of_the_history():
    draft = drafter()
    draft.settle([1, 2, 3, 4])
    assert [draft.synced_len(history) for history in ([1, 2, 3, 4], [1, 2], [])] == [3, 2, 0]


# ------------------------------------------------------------------------------------------------- proposals and q


@given(history=st.lists(st.integers(0, 31), min_size=1, max_size=8), budget=st.integers(1, 4), seed=st.integers(0, 99))
@settings(max_examples=25, deadline=None)
def test_the_reported_q_is_the_one_of_a_pass_without_a_cache(history, budget, seed):
    sampling = SamplingParams(temperature=0.9, top_k=12, repetition_penalty=1.5, penalty_window=4)
    draft = drafter(sampling, seed=seed)
    draft.settle(history)
    block = draft.propose(history, None, budget)
    tokens = block.tokens.tolist()
    assert block.faults.tolist() == [0] * budget
    for index, token in enumerate(tokens):
        context = mx.array([*history, *tokens[:index]])
        q = distributions(draft.model(context[None])[0, -1:], sampling, context)[0]
        np.testing.assert_allclose(np.array(block.probabilities[index]), np.array(q), atol=1e-5)
        assert q[token].item() > 0


def test_greedy_proposals_are_the_models_own_continuation():
    tokens = drafter(GREEDY).propose([1, 2, 3], None, 3).tokens.tolist()
    history = [1, 2, 3]
    for token in tokens:
        assert mx.argmax(toy("draft")(mx.array([history]))[0, -1]).item() == token
        history.append(token)


def test_processors_see_the_proposals_before_theirs():
    seen = []

    def note(tokens, logits):
        seen.append(tokens.tolist())
        return logits

    tokens = drafter(processors=[note]).propose([1, 2], None, 3).tokens.tolist()
    assert seen == [[1, 2], [1, 2, *tokens[:1]], [1, 2, *tokens[:2]]]


@pytest.mark.parametrize(("budget", "max_draft", "proposed"), [(4, None, 4), (4, 2, 2), (1, 2, 1), (3, 0, 0)])
def test_the_caller_cannot_raise_the_most_proposals(budget, max_draft, proposed):
    assert len(drafter(max_draft=max_draft).propose([1, 2], None, budget)) == proposed


@pytest.mark.parametrize(("history", "budget"), [([1, 2], 0), ([1, 2], -1), ([], 3)])
def test_without_budget_or_history_nothing_is_proposed_and_nothing_forwarded(history, budget):
    draft = drafter()
    block = draft.propose(history, None, budget)
    assert (len(block), block.probabilities.shape, rows(draft)) == (0, (0, 32), 0)


def test_a_floor_above_1_proposes_nothing():
    draft = drafter(min_prob=1.1)
    assert (len(draft.propose([1, 2, 3], None, 4)), rows(draft)) == (0, 3)
    draft.commit([1, 2, 3, 4])
    assert rows(draft) == 3


@pytest.mark.parametrize("floor", [0.2, 0.4, 0.6])
def test_the_block_ends_before_the_first_distribution_whose_highest_probability_is_below_the_floor(floor):
    for seed in range(6):
        free = drafter(seed=seed).propose([1, 2], None, 6)
        highest = free.probabilities.max(axis=-1).tolist()
        expected = next((index for index, value in enumerate(highest) if value < floor), 6)
        block = drafter(seed=seed, min_prob=floor).propose([1, 2], None, 6)
        assert block.tokens.tolist() == free.tokens.tolist()[:expected]


def test_the_floor_does_not_ask_how_probable_the_drawn_token_is():
    """Deciding on the drawn token would leave the improbable ones out: q would not be what is drawn from."""
    floor, improbable = 0.3, 0
    for seed in range(30):
        block = drafter(seed=seed, min_prob=floor).propose([1, 2], None, 3)
        masses = mx.take_along_axis(block.probabilities, block.tokens[:, None], axis=-1)[:, 0].tolist()
        improbable += sum(mass < floor for mass in masses)
    assert improbable > 0


@pytest.mark.parametrize("min_prob", [0.0, 0.1])
def test_logits_that_are_not_finite_are_flagged_where_they_occur(min_prob):
    block = drafter(model=Poisoned(toy("draft"), 3), min_prob=min_prob).propose([1, 2, 3], None, 3)
    assert block.faults.tolist()[:2] == [0, 1]


# ---------------------------------------------------------------------------------------------------- bad inputs


def test_a_model_that_hides_its_rows_is_refused_at_its_first_forward():
    message = (
        r"a forward of 2 tokens took the draft model's cache offsets from \(0,\) to \(0,\); it keeps its rows where"
    )
    with pytest.raises(HiddenCache, match=message):
        drafter(model=Hiding(toy("draft"))).settle([1, 2, 3])


def test_a_model_with_no_cache_at_all_is_refused():
    with pytest.raises(HiddenCache, match=r"from \(\) to \(\)"):
        drafter(cache=[], model=Hiding(toy("draft"))).propose([1, 2], None, 1)


def test_a_token_that_the_drafter_does_not_know_is_refused():
    draft = drafter()
    with pytest.raises(
        TokenOutOfRange, match=r"history\[1\] is 32, outside the vocabulary 0\.\.31; check that tokenizer"
    ):
        draft.propose([1, 32], None, 2)
    assert rows(draft) == 0


def test_layers_of_unequal_length_are_refused():
    draft = drafter(model=toy("target"))
    draft.settle([1, 2, 3])
    draft.cache[1].trim(1)
    with pytest.raises(CacheLengthError, match=r"layers hold \(2, 1, 2\) rows"):
        draft.propose([1, 2, 3], None, 1)


@pytest.mark.parametrize("min_prob", [-0.1, float("nan"), float("inf")])
def test_a_floor_that_is_no_number_from_0_on_is_refused(min_prob):
    with pytest.raises(InvalidSetting, match=r"min_prob is (-0\.1|nan|inf); give a finite number >= 0"):
        drafter(min_prob=min_prob)


def test_a_negative_limit_is_refused():
    with pytest.raises(InvalidSetting, match=r"max_draft is -1; give an integer >= 0, or None for no limit"):
        drafter(max_draft=-1)


def test_caches_of_a_batch_are_refused():
    class Batched(KVCache):
        def __init__(self):
            super().__init__()
            self.offset = mx.array([0, 0])

    with pytest.raises(InvalidSetting, match=r"a Batched, which serves a batch of sequences; give caches of one"):
        drafter(cache=[Batched()])


def test_a_model_that_does_not_tell_its_vocabulary_size_is_refused():
    class Mute:
        args = None

    with pytest.raises(InvalidSetting, match=r"Mute has no args\.vocab_size; give a language model"):
        drafter(model=Mute())


def test_vocabularies_of_different_sizes_are_refused_with_both_sizes():
    message = r"the target knows 32 tokens, the drafter 3; a proposal would mean another token to the target: give"
    with pytest.raises(VocabularyMismatch, match=message):
        drafter(model=toy("tiny-draft")).check_vocabulary(toy("target"))
    with pytest.raises(VocabularyMismatch, match=message):
        PromptLookup(3).check_vocabulary(toy("target"))
    drafter().check_vocabulary(toy("target"))
    PromptLookup(32).check_vocabulary(toy("target"))


def test_tokenizers_of_equal_size_and_other_contents_are_refused():
    swapped = load(TOYS / "draft")
    swapped._tokens = {**toy("target").tokens, "t3": 4, "t4": 3}
    with pytest.raises(
        VocabularyMismatch, match=r"token 't3' has id 3 for the target and 4 for the drafter; a proposal"
    ):
        drafter(model=swapped).check_vocabulary(toy("target"))
    drafter(model=Wrapped(toy("draft"))).check_vocabulary(toy("target"))  # one that does not know its tokens
