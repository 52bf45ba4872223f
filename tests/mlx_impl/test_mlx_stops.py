"""Stop tokens and budgets end a turn of the MLX decoder where they fall, on a round boundary."""

from itertools import islice

import pytest

mx = pytest.importorskip("mlx.core", reason="mlx is not installed; pip install 'specproof[mlx]'")

from mlx_decodes import assert_at_boundary, greedy, lookup, make, rounds, tokens_of  # noqa: E402
from mlx_toys import SAMPLINGS, Scripted, pair, toy  # noqa: E402

from mlx_impl import DraftModel, KeyedRandomness  # noqa: E402
from reference.values import SamplingParams  # noqa: E402

RULES = tuple(SAMPLINGS)
UNLIMITED = -1


def stop_case(position, max_tokens=20):
    """A decode whose stop token falls on one place of a block of three: (decoder, state, how it must end)."""
    scripts = {"accepted": [True], "bonus": [True], "correction": [True, True, False], "rejected": [False]}
    target = toy("target")
    draft = Scripted(target, scripts[position])
    prompt = [3, 1, 4, 1]
    decoder, drafter = make("greedy", 3, target, draft)
    state = decoder.prefill(prompt, drafter, 20)
    while True:
        index, done = len(state.emitted), decoder.step(state)
        a = done.num_accepted
        place = {"accepted": 0, "bonus": 3, "correction": a, "rejected": 0}[position]
        token = done.drafted[0] if position == "rejected" else done.emitted[min(place, len(done.emitted) - 1)]
        fits = {"accepted": a > 1, "bonus": a == 3, "correction": 0 < a < 3, "rejected": a == 0}[position]
        before = state.emitted[: index + place]
        if fits and token not in before:
            break
        assert state.finish is None, "no such round in this decode: take another prompt"
    decoder, drafter = make("greedy", 3, target, draft, stop_tokens={token})
    return decoder, decoder.prefill(prompt, drafter, max_tokens), (token, (*before, token))


@pytest.mark.parametrize("position", ["accepted", "correction", "bonus"])
def test_a_stop_token_ends_the_turn_wherever_it_falls_in_the_block(position):
    decoder, state, (_, emitted) = stop_case(position)
    done = rounds(decoder, state)
    assert (state.emitted, state.finish, done[-1].finish) == (emitted, "stop", "stop")
    assert (done[-1].num_cut > 0) == (position == "accepted")


def test_a_stop_token_that_is_proposed_and_rejected_ends_nothing():
    decoder, state, (token, _) = stop_case("rejected")
    done = decoder.step(state)
    while token not in done.drafted[: done.num_tested]:
        done = decoder.step(state)
    assert state.finish is None
    assert token not in state.emitted
    assert_at_boundary(state)


def test_a_stop_token_as_the_very_first_ends_the_turn_in_prefill():
    (token,) = greedy(toy("target"), [1, 2], 1)
    decoder, drafter = make("greedy", stop_tokens={token})
    state = decoder.prefill([1, 2], drafter, 9)
    assert (state.emitted, state.finish) == ((token,), "stop")
    assert_at_boundary(state)


@pytest.mark.parametrize("max_tokens", range(9))
def test_the_budget_is_never_exceeded_and_always_used_up(max_tokens):
    decoder, drafter = make("greedy", 3, *pair("all_accept"))
    state = decoder.prefill([1, 2, 3], drafter, max_tokens)
    rounds(decoder, state)
    assert (len(state.emitted), state.finish) == (max_tokens, "length")
    assert state.emitted == greedy(toy("target"), [1, 2, 3], max_tokens)


def test_a_stop_token_on_the_last_place_of_the_budget_is_a_stop():
    tokens = greedy(toy("target"), [3, 1, 4, 1], 3)
    count = tokens.index(tokens[-1]) + 1
    decoder, drafter = make("greedy", stop_tokens={tokens[-1]})
    state = decoder.prefill([3, 1, 4, 1], drafter, count)
    rounds(decoder, state)
    assert (len(state.emitted), state.finish) == (count, "stop")


def test_rounds_without_proposals_keep_the_contract():
    decoder, _ = make("rejection", 4)
    drafter = DraftModel(toy("draft"), SamplingParams(), KeyedRandomness(1), min_prob=0.5)
    state = decoder.prefill([1, 2, 3], drafter, 24)
    sizes = {len(done.drafted) for done in rounds(decoder, state)}
    assert 0 in sizes
    assert max(sizes) > 0


# --------------------------------------------------------------------------------------------------- without limit

LONG = 30


@pytest.mark.parametrize("drafts", [lambda: make(k=3)[1], lookup], ids=["draft_model", "lookup"])
def test_a_turn_without_limit_goes_on_until_it_is_closed_and_can_be_taken_up_again(drafts):
    decoder, _ = make("greedy", 3)
    state = decoder.prefill([1, 2, 3], drafts(), UNLIMITED)
    assert (state.max_tokens, state.remaining, state.finish) == (UNLIMITED, None, None)
    received = []
    for _ in range(2):
        iterator = decoder.generate(state)
        received += [item.token for item in islice(iterator, LONG // 2)]
        iterator.close()
        assert (state.finish, len(state.emitted)) == (None, len(received))
        assert_at_boundary(state)
    assert tuple(received) == greedy(toy("target"), [1, 2, 3], LONG)


def test_without_limit_every_round_asks_for_k_proposals():
    decoder, drafter = make("greedy", 3, *pair("all_accept"))
    state = decoder.prefill([1, 2, 3], drafter, UNLIMITED)
    assert [len(decoder.step(state).drafted) for _ in range(4)] == [3] * 4


def test_a_stop_token_ends_a_turn_without_limit():
    decoder, state, (_, emitted) = stop_case("accepted", UNLIMITED)
    rounds(decoder, state)
    assert (state.emitted, state.finish) == (emitted, "stop")


def test_each_turn_has_a_limit_of_its_own_or_none():
    decoder, drafter = make("greedy", 3)
    first = decoder.prefill([1, 2, 3], drafter, 5)
    rounds(decoder, first)
    endless = decoder.extend(first, [], UNLIMITED)
    iterator = decoder.generate(endless)
    assert [item.token for item in islice(iterator, 9)] == list(greedy(toy("target"), first.history, 9))
    iterator.close()
    last = decoder.extend(endless, [], 4)
    assert tuple(tokens_of(decoder.generate(last))) == greedy(toy("target"), endless.history, 4)
    assert last.finish == "length"
    assert_at_boundary(last)
