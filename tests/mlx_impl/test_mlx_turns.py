"""Warm starts and next turns give what a fresh decode of the whole history gives."""

import pytest

mx = pytest.importorskip("mlx.core", reason="mlx is not installed; pip install 'specproof[mlx]'")

from mlx_decodes import (  # noqa: E402
    COUNT,
    PROMPT,
    assert_at_boundary,
    assert_cache_content,
    greedy,
    make,
    mixed,
    tokens_of,
    uninterrupted,
    warm,
)
from mlx_toys import GREEDY, Counting, Failing, InjectedError, toy  # noqa: E402

from mlx_impl import DraftModel, KeyedRandomness  # noqa: E402
from mlx_impl.cache import offsets  # noqa: E402
from mlx_impl.model_cache import ModelCache  # noqa: E402
from reference.errors import CacheLengthError, InvalidSetting  # noqa: E402


@pytest.mark.parametrize("target_rows", [0, 1, 3])
@pytest.mark.parametrize("draft_rows", [0, 2, 3])
def test_warm_caches_of_any_length_give_the_output_of_cold_ones(target_rows, draft_rows):
    prompt = [3, 1, 4, 1]
    decoder, _ = make("greedy", 3)
    held = {
        name: warm(toy(name), prompt[:n]) if n else None for name, n in (("target", target_rows), ("draft", draft_rows))
    }
    drafter = DraftModel(toy("draft"), GREEDY, KeyedRandomness(0), cache=held["draft"])
    state = decoder.prefill(prompt, drafter, 6, held["target"])
    assert_at_boundary(state)
    assert tuple(tokens_of(decoder.generate(state))) == greedy(toy("target"), prompt, 6)


@pytest.mark.parametrize("rows", [3, 5])
def test_a_warm_cache_that_leaves_nothing_to_forward_is_refused_and_not_cut(rows):
    decoder, drafter = make()
    cache = warm(toy("target"), list(range(rows)))
    message = (
        rf"the target's cache holds {rows} rows, a prompt of 3 tokens allows 2: its last one must be forwarded; trim"
    )
    with pytest.raises(CacheLengthError, match=message):
        decoder.prefill([0, 1, 2], drafter, 4, cache)
    assert set(offsets(cache)) == {rows}
    drafter = DraftModel(toy("draft"), GREEDY, KeyedRandomness(0), cache=warm(toy("draft"), list(range(rows))))
    with pytest.raises(CacheLengthError, match=rf"the draft model's cache holds {rows} rows, a prompt of 3"):
        decoder.prefill([0, 1, 2], drafter, 4)
    assert offsets(drafter.cache) == (rows,)


def test_a_warm_cache_of_other_tokens_is_seen_in_the_content():
    """The control of warm starts: lengths alone would not tell."""
    decoder, drafter = make()
    state = decoder.prefill(PROMPT, drafter, 4, warm(toy("target"), [9, 9]))
    assert_at_boundary(state)
    with pytest.raises(AssertionError, match="target layer 0: keys differ"):
        assert_cache_content(state, {"target": toy("target"), "draft": toy("draft")})


@pytest.mark.parametrize("more", [[], [7], [7, 8, 9]], ids=str)
@pytest.mark.parametrize("close_after", [None, 1, 4])
def test_a_next_turn_continues_as_a_fresh_decode_of_the_whole_history_would(more, close_after):
    decoder, drafter = make("greedy", 4, draft=mixed())
    state = decoder.prefill(PROMPT, drafter, 7)
    iterator = decoder.generate(state)
    for _ in range(7 if close_after is None else close_after):
        next(iterator)
    iterator.close()
    history = [*state.history, *more]
    following = decoder.extend(state, more, 6)
    assert_at_boundary(following)
    assert following.prompt_length == len(history)
    assert tuple(tokens_of(decoder.generate(following))) == greedy(toy("target"), history, 6)
    assert_at_boundary(following)


def test_a_turn_of_no_tokens_keeps_the_last_prompt_token_pending_and_can_be_extended():
    decoder, drafter = make("greedy", 3)
    state = decoder.prefill(PROMPT, drafter, 0)
    assert (state.history, state.finish, tokens_of(decoder.generate(state))) == (PROMPT, "length", [])
    assert_at_boundary(state)
    following = decoder.extend(state, [], 5)
    assert tuple(tokens_of(decoder.generate(following))) == greedy(toy("target"), PROMPT, 5)


def test_a_fault_in_a_next_turn_leaves_the_turn_before_it_usable():
    models = {"target": Failing(toy("target"), 5, "half-way", InjectedError()), "draft": toy("target")}
    decoder, drafter = make("greedy", 4, **models)
    state = decoder.prefill(PROMPT, drafter, 6)
    tokens_of(decoder.generate(state))
    models["target"].call = models["target"].calls
    with pytest.raises(InjectedError):
        decoder.extend(state, [7], 5)
    assert_at_boundary(state)
    history = [*state.history, 7]
    assert tuple(tokens_of(decoder.generate(decoder.extend(state, [7], 5)))) == greedy(toy("target"), history, 5)


def test_a_copied_state_decodes_on_by_itself():
    decoder, drafter = make("greedy", 3, draft=mixed())
    state = decoder.prefill(PROMPT, drafter, COUNT)
    decoder.step(state)
    twin, history = state.copy(), list(state.history)
    assert tokens_of(decoder.generate(twin)) == list(uninterrupted())
    assert (state.history, state.num_rounds) == (history, 1)
    assert_at_boundary(state)
    assert_cache_content(state, {"target": toy("target"), "draft": toy("target")})
    assert tokens_of(decoder.generate(state)) == list(uninterrupted())


def cut_behind_its_back(cache, length):
    for layer in cache:
        layer.trim(layer.offset - length)


def test_cutting_a_target_cache_behind_the_decoders_back_is_seen_at_the_boundary():
    """The control of `assert_at_boundary`."""
    decoder, drafter = make()
    state = decoder.prefill(PROMPT, drafter, 4)
    cut_behind_its_back(state.target_cache, 2)
    with pytest.raises(AssertionError, match=r"caches hold .*2, 2, 2.*expected 3 = prompt 3 \+ emitted 1 - 1"):
        assert_at_boundary(state)


def test_an_old_generator_that_dies_after_extend_leaves_the_next_turn_alone():
    decoder, drafter = make("greedy", 4, draft=toy("target"))
    state = decoder.prefill(PROMPT, drafter, 9)
    iterator = decoder.generate(state)
    next(iterator), next(iterator)
    following = decoder.extend(state, [], 6)
    history = list(state.history)
    iterator.close()
    assert_at_boundary(following)
    assert tuple(tokens_of(decoder.generate(following))) == greedy(toy("target"), history, 6)


def test_a_state_used_up_by_extend_is_refused_by_everything_that_would_go_on_with_it():
    decoder, drafter = make("greedy", 4, draft=toy("target"))
    state = decoder.prefill(PROMPT, drafter, 9)
    iterator = decoder.generate(state)
    next(iterator)
    following = decoder.extend(state, [7], 6)
    calls = [
        lambda: decoder.step(state),
        lambda: next(decoder.generate(state)),
        lambda: next(iterator),
        lambda: decoder.extend(state, [], 3),
        lambda: decoder.step(state.copy()),
    ]
    for call in calls:
        with pytest.raises(InvalidSetting, match=r"this state was used up by extend; go on with the state it returned"):
            call()
    assert_at_boundary(following)


def test_a_step_refuses_a_target_cache_that_something_else_used_and_changes_nothing():
    decoder, drafter = make()
    state = decoder.prefill(PROMPT, drafter, 6)
    cut_behind_its_back(state.target_cache, 2)
    with pytest.raises(CacheLengthError, match=r"the target's cache holds 2 rows, not the 3 of the history"):
        decoder.step(state)
    assert set(offsets(state.target_cache)) == {2}


# ------------------------------------------------------------------------------- caches that go on with another history

MODELS = {"target": toy("target"), "draft": toy("draft")}
OTHERS = {(3, 1, 4, 7, 7): 3, (3, 1, *[8] * 20): 2, (9, 9): 0, (3, 1, 4, 1, 5, 2): 5}
"""Prompts after one of 3 1 4 1 5 9, shorter and longer -> how many of its tokens they begin with."""


def served():
    """A decoder and a state after a turn on a first prompt."""
    decoder, drafter = make("greedy", 3)
    state = decoder.prefill([3, 1, 4, 1, 5, 9], drafter, 6)
    tokens_of(decoder.generate(state))
    return decoder, state


def cut(state, rows):
    """Both caches, by their user."""
    state.target_cache.rollback(rows)
    state.drafter.cache.rollback(rows)


@pytest.mark.parametrize(("prompt", "common"), OTHERS.items(), ids=str)
def test_caches_of_another_prompt_are_refused_until_they_are_cut_to_what_both_begin_with(prompt, common):
    decoder, state = served()
    with pytest.raises(CacheLengthError, match=rf"allows|those from index {common} on of other tokens"):
        decoder.prefill(prompt, state.drafter, 6, state.target_cache)
    assert_at_boundary(state)
    cut(state, common)
    following = decoder.prefill(prompt, state.drafter, 6, state.target_cache)
    assert_at_boundary(following)
    assert_cache_content(following, MODELS)
    assert tuple(tokens_of(decoder.generate(following))) == greedy(toy("target"), prompt, 6)
    assert_cache_content(following, MODELS)


def test_a_drafter_of_another_prompt_is_refused_though_the_target_begins_anew():
    decoder, state = served()
    with pytest.raises(CacheLengthError, match=r"the draft.* holds 11 rows, those from index 2 on of other tokens"):
        decoder.prefill([3, 1, *[8] * 20], state.drafter, 6)


def test_a_common_beginning_is_not_forwarded_again():
    model = Counting(toy("draft"))
    decoder, drafter = make("greedy", 3, draft=model)
    state = decoder.prefill([3, 1, 4, 1, 5, 9], drafter, 1)
    cut(state, 3)
    decoder.prefill([3, 1, 4, 7, 7], drafter, 1)
    assert model.lengths == [6, 2]


def test_rows_that_are_told_apart_by_their_number_only_are_another_prompts(monkeypatch):
    """The control: a cache that does not remember its tokens."""
    monkeypatch.setattr(ModelCache, "shared", lambda self, tokens: min(self.length, len(tokens)))
    decoder, state = served()
    following = decoder.prefill([3, 1, *[8] * 20], state.drafter, 6, state.target_cache)
    assert_at_boundary(following)
    with pytest.raises(AssertionError, match="keys differ"):
        assert_cache_content(following, MODELS)


def test_a_state_goes_on_after_its_drafter_has_served_another_one():
    decoder, drafter = make("greedy", 3)
    state = decoder.prefill([3, 1, 4, 1, 5, 9], drafter, 8)
    decoder.step(state)
    drafter.cache.rollback(2)
    other = decoder.prefill([3, 1, *[8] * 20], drafter, 6)
    decoder.step(other)
    assert tuple(tokens_of(decoder.generate(state))) == greedy(toy("target"), [3, 1, 4, 1, 5, 9], 8)
    assert_at_boundary(state)
    assert_cache_content(state, MODELS)


def test_a_step_refuses_a_target_cache_that_holds_as_many_rows_of_another_history():
    decoder, drafter = make("greedy", 3)
    state = decoder.prefill([3, 1, 4], drafter, 8)
    cut(state, 0)
    decoder.prefill([7, 7, 7], drafter, 8, state.target_cache)
    with pytest.raises(CacheLengthError, match=r"holds 3 rows, not the 3 of the history .* or those of other tokens"):
        decoder.step(state)


def test_a_prefill_that_failed_leaves_the_rows_that_were_there():
    decoder, state = served()
    cut(state, 2)
    draft = state.drafter.model
    state.drafter.model = Failing(draft, 0, "half-way", InjectedError())
    with pytest.raises(InjectedError):
        decoder.prefill([3, 1, *[8] * 20], state.drafter, 6, state.target_cache)
    state.drafter.model = draft
    assert set(offsets(state.target_cache)) == set(offsets(state.drafter.cache)) == {2}
    following = decoder.prefill([3, 1, 4, 1], state.drafter, 6, state.target_cache)
    assert_cache_content(following, MODELS)
