"""The draft model: rows in its cache, honest q, and refusals."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_models import Boom, Changed, Faulty, assert_holds

from reference import DraftModel, SamplingParams, SeededRandomness, Transformer, distribution
from reference.drafters import check_vocabularies
from reference.errors import HiddenCache, InvalidSetting, NonFiniteLogits, TokenOutOfRange, VocabularyMismatch
from reference.values import DraftBlock

SCHEDULES = ("catch_up", "eager", "deferred")


def drafter(model: object, schedule: str = "catch_up", temperature: float = 1.0, **settings: object) -> DraftModel:
    return DraftModel(
        model, SamplingParams(temperature=temperature), SeededRandomness(1), schedule=schedule, **settings
    )


def test_an_eager_drafter_forwards_every_proposal(draft: Transformer) -> None:
    eager = drafter(draft, "eager")
    block = eager.propose([3, 1, 4], None, 4)
    assert (len(block), eager.cache.offset) == (4, 7)
    again = eager.propose([3, 1, 4, block.tokens[0]], None, 4)
    assert (len(again), eager.cache.offset) == (4, 8)


def test_an_eager_drafter_cuts_a_cache_that_is_ahead_of_the_history(draft: Transformer) -> None:
    eager = drafter(draft, "eager")
    history = list(range(5))
    eager.propose(history, None, 4)
    assert eager.cache.offset == 9
    block = eager.propose(history[:2], None, 1)
    assert (len(block), eager.cache.offset) == (1, 3)
    assert_holds(eager.cache, draft, [*history[:2], *block.tokens])


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_floor_above_one_proposes_nothing_but_reads_the_history(draft: Transformer, schedule: str) -> None:
    floored = drafter(draft, schedule, min_prob=1.5)
    assert floored.propose([3, 1, 4], None, 4) == DraftBlock()
    assert floored.cache.offset == 3


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(("history", "budget"), [([], 4), ([3, 1, 4], 0), ([3], -1), ([], 0)])
def test_no_budget_or_no_history_is_no_error(
    draft: Transformer, schedule: str, history: list[int], budget: int
) -> None:
    idle = drafter(draft, schedule)
    assert idle.propose(history, None, budget) == DraftBlock()
    assert idle.cache.offset == 0


@pytest.mark.parametrize(("schedule", "rows"), [("catch_up", 6), ("eager", 7), ("deferred", 6)])
def test_rows_after_a_proposal_of_four(draft: Transformer, schedule: str, rows: int) -> None:
    some = drafter(draft, schedule)
    block = some.propose([3, 1, 4], None, 4)
    assert some.cache.offset == rows
    assert_holds(some.cache, draft, [3, 1, 4, *block.tokens][:rows])


@pytest.mark.parametrize("num_accepted", range(4))
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_commit_leaves_the_committed_rows(draft: Transformer, schedule: str, num_accepted: int) -> None:
    some, prompt = drafter(draft, schedule), [3, 1, 4]
    block = some.propose(prompt, None, 3)
    history = [*prompt, *block.tokens[:num_accepted], 29]
    some.commit(history)
    missing = 1 if schedule == "deferred" and num_accepted == 3 else 0
    assert_holds(some.cache, draft, history[: len(history) - 1 - missing])
    some.settle(history)
    assert_holds(some.cache, draft, history[:-1])
    assert some.synced_len(history) == len(history) - 1


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_rounds_without_proposals_leave_no_gap(draft: Transformer, schedule: str) -> None:
    some, history = drafter(draft, schedule), [3, 1, 4]
    some.settle(history)
    for token in (7, 7, 2, 5):
        some.propose(history, None, 0)
        history.append(token)
        some.commit(history)
        assert len(history) - 1 - some.cache.offset == (1 if schedule == "deferred" else 0)
    some.propose(history, None, 2)
    some.settle(history)
    assert_holds(some.cache, draft, history[:-1])


@pytest.mark.parametrize("when", ["before", "half", "after"])
@pytest.mark.parametrize("call", range(1, 5))
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_rollback_restores_the_committed_rows_after_a_failed_forward(
    target: Transformer, schedule: str, call: int, when: str
) -> None:
    some, history = drafter(Faulty(target, call=call, when=when), schedule), [3, 1, 4]
    some.settle(history)
    with pytest.raises(Boom):  # noqa: PT012 - the four forwards of a round that accepts all three: the last may be in settle
        block = some.propose(history, None, 3)
        some.settle([*history, *block.tokens, 0])
    some.rollback(history)
    assert_holds(some.cache, target, history[:-1])


@settings(max_examples=30, deadline=None)
@given(
    history=st.lists(st.integers(0, 31), min_size=1, max_size=6),
    k=st.integers(1, 5),
    temperature=st.sampled_from([0.0, 0.5, 1.0]),
    top_k=st.sampled_from([0, 3]),
)
def test_q_is_what_each_proposal_was_drawn_from(
    draft: Transformer, history: list[int], k: int, temperature: float, top_k: int
) -> None:
    sampling = SamplingParams(temperature=temperature, top_k=top_k, presence_penalty=0.5)
    block = DraftModel(draft, sampling, SeededRandomness(2)).propose(history, None, k)
    assert len(block) == k
    for i, (token, q) in enumerate(zip(block.tokens, block.distributions, strict=True)):
        context = [*history, *block.tokens[:i]]
        expected = distribution(draft.forward_without_cache(context).logits[-1], sampling, context)
        np.testing.assert_allclose(q.dense(), expected, atol=1e-12)
        assert q.prob(token) > 0


def test_min_prob_looks_at_q_and_never_at_the_token_drawn(draft: Transformer) -> None:
    """The block's length is the same whatever is drawn at its last place: here, everything but the most probable."""
    history = [3, 1, 4]

    def least(q: np.ndarray, position: int) -> int:
        return int(np.argmin(q))

    peak = drafter(draft).propose(history, None, 1).distributions[0].probabilities.max()
    block = drafter(draft, min_prob=peak, draw=least).propose(history, None, 1)
    assert len(block) == 1
    assert block.distributions[0].prob(block.tokens[0]) < peak
    assert len(drafter(draft, min_prob=np.nextafter(peak, 2), draw=least).propose(history, None, 1)) == 0


@pytest.mark.parametrize(("max_draft", "budget", "proposed"), [(2, 5, 2), (2, 1, 1), (0, 5, 0), (None, 5, 5)])
def test_the_caller_cannot_raise_max_draft(
    draft: Transformer, max_draft: int | None, budget: int, proposed: int
) -> None:
    assert len(drafter(draft, max_draft=max_draft).propose([3, 1, 4], None, budget)) == proposed


def test_draw_is_told_the_place_of_its_token_in_the_history(draft: Transformer) -> None:
    positions = []

    def draw(q: np.ndarray, position: int) -> int:
        positions.append(position)
        return 0

    drafter(draft, draw=draw).propose([3, 1, 4], None, 3)
    assert positions == [3, 4, 5]


def test_processors_see_history_and_block(draft: Transformer) -> None:
    seen = []

    def watch(context: Sequence[int], logits: np.ndarray) -> np.ndarray:
        seen.append(list(context))
        return logits

    block = drafter(draft, processors=(watch,)).propose([3, 1, 4], None, 3)
    assert seen == [[3, 1, 4, *block.tokens[:i]] for i in range(3)]


def test_copies_have_caches_of_their_own(draft: Transformer) -> None:
    one = drafter(draft)
    one.settle([3, 1, 4, 1])
    two = one.copy()
    one.rollback([3])
    assert (one.cache.offset, two.cache.offset) == (0, 3)
    assert two.model is one.model
    assert two.randomness is one.randomness


def test_a_model_that_hides_its_cache_is_refused_at_the_first_forward(draft: Transformer) -> None:
    hidden = Changed(draft, lambda logits, positions: logits)
    hidden.forward = lambda tokens, cache: draft.forward(tokens, cache.copy())
    with pytest.raises(HiddenCache, match="draft forwarded 2 tokens, but the cache it was given went from 0 to 0 rows"):
        drafter(hidden).settle([3, 1, 4])


def test_bad_logits_and_tokens_are_refused(draft: Transformer) -> None:
    broken = Changed(draft, lambda logits, positions: np.where(positions[:, None] == 3, np.nan, logits))
    with pytest.raises(NonFiniteLogits, match="draft gave the logit nan for token 0 at position 3"):
        drafter(broken).propose([3, 1, 4], None, 3)
    with pytest.raises(TokenOutOfRange, match="token 77 at index 1"):
        drafter(draft).propose([3, 77], None, 3)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"schedule": "lazy"}, "schedule is 'lazy'; give one of catch_up, eager, deferred"),
        ({"min_prob": -0.1}, "min_prob is -0.1; give a number >= 0"),
        ({"min_prob": float("nan")}, "min_prob is nan"),
        ({"max_draft": -1}, "max_draft is -1; give an integer >= 0, or None"),
        ({"max_draft": 2.0}, r"max_draft is 2\.0; give an integer >= 0, or None"),
        ({"max_draft": "2"}, "max_draft is '2'; give an integer"),
    ],
)
def test_bad_settings_are_refused(draft: Transformer, settings: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidSetting, match=message):
        drafter(draft, **settings)


def test_a_drafter_with_another_vocabulary_is_refused_at_construction(
    target: Transformer, draft: Transformer, tiny_draft: Transformer
) -> None:
    drafter(draft, target=target)
    with pytest.raises(
        VocabularyMismatch, match=r"target has 32 tokens, the drafter 3; .* use a drafter with the target"
    ):
        drafter(tiny_draft, target=target)


def test_equal_sizes_with_other_words_are_refused() -> None:
    check_vocabularies(2, 2)
    check_vocabularies(2, 2, {"a": 0, "b": 1}, None)
    check_vocabularies(2, 2, {"a": 0, "b": 1}, {"b": 1, "a": 0})
    with pytest.raises(VocabularyMismatch, match="both have 2 ids, but 'a' is 0 for the target, 1 for the drafter"):
        check_vocabularies(2, 2, {"a": 0, "b": 1}, {"a": 1, "b": 0})
    with pytest.raises(VocabularyMismatch, match="'b' is 1 for the target, None for the drafter"):
        check_vocabularies(2, 2, {"a": 0, "b": 1}, {"a": 0})


def test_contents_are_compared_where_the_models_bring_their_tokenizers(target: Transformer, draft: Transformer) -> None:
    other = copy.copy(draft)
    other.tokens = {**draft.tokens, "t0": 1, "t1": 0}
    with pytest.raises(VocabularyMismatch, match="'t0' is 0 for the target, 1 for the drafter"):
        drafter(other, target=target)
