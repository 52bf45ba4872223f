"""One contract for every kind of end: the caches hold exactly the committed tokens, and decoding can go on."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from test_reference_decoder import PROMPT, SCHEDULES, decoder, drafter, lag, tokens
from toy_models import Boom, Faulty, assert_at_boundary, plain_greedy, plain_gumbel, scripted

from reference import Decoder, DraftModel, PromptLookup, SamplingParams, Transformer
from reference.errors import (
    CacheLengthError,
    DecodingFault,
    DishonestDraft,
    InvalidInput,
    InvalidSetting,
    TokenOutOfRange,
)
from reference.values import DraftBlock

N = 11
SCRIPT = [True, True, False, True]
TEMPERATURES = {"greedy": 0.0, "block": 0.0, "coupled": 0.9}
"""At these the output is one fixed sequence, so that continuing can be compared with an uninterrupted run."""


def expected(target: Transformer, dec: Decoder, n: int, prompt: list[int] = PROMPT) -> list[int]:
    if dec.sampling.temperature == 0:
        return plain_greedy(target, prompt, n)
    return plain_gumbel(target, prompt, n, dec.sampling, dec.randomness.seed)


# --------------------------------------------------------------------------------------------------------- length


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("max_tokens", range(10))
def test_a_budget_anywhere_in_a_block_ends_at_a_boundary(target: Transformer, max_tokens: int, schedule: str) -> None:
    dec = decoder(target, "greedy", 4)
    state = dec.prefill(PROMPT, drafter(dec, target, schedule), max_tokens)
    assert tokens(dec, state) == plain_greedy(target, PROMPT, max_tokens)
    assert state.finish == "length"
    assert_at_boundary(state, target, target)


def test_max_tokens_zero_draws_nothing_and_keeps_the_last_prompt_token_pending(target: Transformer) -> None:
    dec = decoder(target, "greedy", 4)
    for prompt in (PROMPT, [3]):
        state = dec.prefill(prompt, drafter(dec, target), 0)
        assert (state.emitted, state.finish, state.target_cache.offset) == ([], "length", len(prompt) - 1)
        assert_at_boundary(state, target, target)
        with pytest.raises(InvalidSetting, match=r"this turn has ended \(length\); begin the next one with extend"):
            dec.step(state)
        state = dec.extend(state, [], 5)
        assert tokens(dec, state) == plain_greedy(target, prompt, 5)


def test_max_tokens_one_needs_no_round(target: Transformer) -> None:
    dec = decoder(target, "greedy", 4)
    state = dec.prefill(PROMPT, drafter(dec, target), 1)
    assert (state.finish, state.num_rounds) == ("length", 0)
    assert_at_boundary(state, target, target)
    assert tokens(dec, state) == plain_greedy(target, PROMPT, 1)


# ----------------------------------------------------------------------------------------------------------- stop


def stop_kinds(target: Transformer, k: int, draft: object) -> dict[str, int]:
    """Where a run without stops has, in its rounds, a token of each kind: kind -> index in the output."""
    dec = decoder(target, "greedy", k)
    state = dec.prefill(PROMPT, drafter(dec, draft), 24)
    kinds: dict[str, int] = {"prefill": 0}
    while state.finish is None:
        start = len(state.emitted)
        round_ = dec.step(state)
        a = round_.num_accepted
        fresh = [i for i in range(start, len(state.emitted)) if state.emitted[i] not in state.emitted[:i]]
        for i in fresh:
            kind = "accepted" if i < start + a else "bonus" if a == len(round_.drafted) else "correction"
            kinds.setdefault(kind, i)
    return kinds


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("kind", ["prefill", "accepted", "correction", "bonus"])
def test_a_stop_token_of_each_kind_ends_at_a_boundary(target: Transformer, kind: str, schedule: str) -> None:
    # A drafter that is right about every token but some: rounds of all kinds occur before the output repeats itself.
    for script, k in (([True] * 3 + [False], 3), ([False, True], 1), ([True, False, True], 2), ([True], 1)):
        draft = scripted(target, script)
        kinds = stop_kinds(target, k, draft)
        if kind in kinds:
            break
    else:
        pytest.fail(f"no run of the toy pair has a new token of kind {kind}")
    whole = plain_greedy(target, PROMPT, 24)
    stop = frozenset({whole[kinds[kind]]})
    dec = decoder(target, "greedy", k, stop_tokens=stop)
    state = dec.prefill(PROMPT, drafter(dec, draft, schedule), 24)
    assert tokens(dec, state) == plain_greedy(target, PROMPT, 24, stop) == whole[: kinds[kind] + 1]
    assert state.finish == "stop"
    assert_at_boundary(state, target, target)
    # The next turn goes on from there.
    further = dec.extend(state, [2, 9], 6)
    assert further.history[:-1] == [*PROMPT, *whole[: kinds[kind] + 1], 2, 9]
    assert tokens(dec, further) == plain_greedy(target, further.history[: further.prompt_length], 6, stop)


def test_a_stop_token_that_is_drafted_and_rejected_ends_nothing(target: Transformer) -> None:
    draft = scripted(target, [False])
    whole = plain_greedy(target, PROMPT, N)
    dec = decoder(target, "greedy", 3)
    state = dec.prefill(PROMPT, drafter(dec, draft), N)
    rejected = {token for _ in iter(lambda: state.finish, "length") for token in dec.step(state).drafted}
    stop = frozenset(rejected - set(whole))
    assert stop
    dec = decoder(target, "greedy", 3, stop_tokens=stop)
    state = dec.prefill(PROMPT, drafter(dec, draft), N)
    assert tokens(dec, state) == whole
    assert state.finish == "length"


def test_accepted_tokens_behind_a_stop_are_cut_and_counted(target: Transformer) -> None:
    whole = plain_greedy(target, PROMPT, 12)
    dec = decoder(target, "greedy", 4, stop_tokens=frozenset(whole[1:2]))
    if whole[1] == whole[0]:
        dec = decoder(target, "greedy", 4, stop_tokens=frozenset())
    state = dec.prefill(PROMPT, drafter(dec, target), 12)
    round_ = dec.step(state)
    assert (round_.num_accepted, round_.num_cut, len(round_.emitted)) == (4, 4, 1)
    assert (round_.finish, state.finish) == ("stop", "stop")
    assert_at_boundary(state, target, target)


# ---------------------------------------------------------------------------------------------------- early close


@pytest.mark.parametrize("schedule", [*SCHEDULES, "prompt_lookup"])
@pytest.mark.parametrize("rule", TEMPERATURES)
def test_closing_after_any_token_leaves_a_boundary_and_continuing_gives_the_uninterrupted_output(
    target: Transformer, draft: Transformer, rule: str, schedule: str
) -> None:
    whole = expected(target, decoder(target, rule, 3, TEMPERATURES[rule]), N)
    for closed_after in range(1, N + 1):
        dec = decoder(target, rule, 3, TEMPERATURES[rule])
        lookup = PromptLookup(32, max_ngram=1)
        proposing = lookup if schedule == "prompt_lookup" else drafter(dec, scripted(draft, SCRIPT), schedule)
        state = dec.prefill(PROMPT, proposing, N)
        stream = dec.generate(state)
        received = [next(stream).token for _ in range(closed_after)]
        stream.close()
        assert state.emitted == received
        assert state.delivered == len(state.tokens) == closed_after
        assert state.finish == ("length" if closed_after == N else None)
        assert_at_boundary(state, target, draft)
        received += tokens(dec, state)
        assert received == whole
        assert state.finish == "length"
        assert_at_boundary(state, target, draft)


def test_a_close_takes_back_the_stop_token_that_was_not_delivered(target: Transformer) -> None:
    whole = plain_greedy(target, PROMPT, N)
    index = next(i for i in range(2, N) if whole[i] not in whole[:i])
    dec = decoder(target, "greedy", N, stop_tokens=frozenset({whole[index]}))
    state = dec.prefill(PROMPT, drafter(dec, target), N + 5)
    stream = dec.generate(state)
    next(stream), next(stream)
    assert state.finish == "stop"
    stream.close()
    assert (state.finish, state.emitted) == (None, whole[:2])
    assert tokens(dec, state) == whole[2 : index + 1]
    assert state.finish == "stop"


def test_an_exception_thrown_in_by_the_caller_is_a_close(target: Transformer) -> None:
    dec = decoder(target, "greedy", 4)
    state = dec.prefill(PROMPT, drafter(dec, target), N)
    stream = dec.generate(state)
    next(stream), next(stream)
    with pytest.raises(Boom):
        stream.throw(Boom())
    assert len(state.emitted) == 2
    assert_at_boundary(state, target, target)


def test_a_stream_that_was_never_started_changes_nothing_when_closed(target: Transformer) -> None:
    dec = decoder(target, "greedy", 4)
    state = dec.prefill(PROMPT, drafter(dec, target), N)
    dec.generate(state).close()
    assert tokens(dec, state) == plain_greedy(target, PROMPT, N)


def test_tokens_of_rounds_stepped_by_hand_are_delivered_first(target: Transformer, draft: Transformer) -> None:
    dec = decoder(target, "greedy", 2)
    state = dec.prefill(PROMPT, drafter(dec, draft), N)
    dec.step(state)
    dec.step(state)
    assert tokens(dec, state) == plain_greedy(target, PROMPT, N)


# ----------------------------------------------------------------------------------------------------- exceptions


@pytest.mark.parametrize("which", ["target", "draft"])
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(("rule", "when"), [("coupled", "before"), ("block", "half"), ("coupled", "after")])
def test_an_exception_in_any_forward_leaves_the_last_boundary_and_decoding_goes_on(
    target: Transformer, draft: Transformer, rule: str, schedule: str, which: str, when: str
) -> None:
    whole = expected(target, decoder(target, rule, 3, TEMPERATURES[rule]), 7)
    for call in range(60):
        models = {"target": target, "draft": draft}
        models[which] = faulty = Faulty(models[which], call=call, when=when)
        dec = decoder(models["target"], rule, 3, TEMPERATURES[rule])
        proposing, cache = drafter(dec, models["draft"], schedule), target.new_cache()
        if call == 0:
            with pytest.raises(Boom):
                dec.prefill(PROMPT, proposing, 7, cache)
            assert (cache.offset, proposing.cache.offset) == (0, 0)
            continue
        state = dec.prefill(PROMPT, proposing, 7, cache)
        received: list[int] = []
        try:
            for token in dec.generate(state):
                received.append(token.token)
        except Boom:
            assert state.emitted == received
            assert state.finish is None
            assert_at_boundary(state, target, draft, lag(schedule))
            received += tokens(dec, state)
        assert received == whole
        assert_at_boundary(state, target, draft)
        if faulty.num_calls <= call:
            assert call > 3
            return
    pytest.fail("the run never ended without a fault")


@pytest.mark.parametrize("when", ["before", "half", "after"])
@pytest.mark.parametrize("which", ["target", "draft"])
@pytest.mark.parametrize("max_tokens", [0, 5])
def test_an_exception_in_prefill_gives_warm_caches_back_as_they_were(
    target: Transformer, draft: Transformer, which: str, when: str, max_tokens: int
) -> None:
    models = {"target": target, "draft": draft}
    models[which] = Faulty(models[which], call=0, when=when)
    dec = decoder(models["target"], "greedy", 3)
    cache, drafts = target.new_cache(), draft.new_cache()
    target.forward(PROMPT[:3], cache)
    draft.forward(PROMPT[:2], drafts)
    proposing = drafter(dec, models["draft"], cache=drafts)
    with pytest.raises(Boom):
        dec.prefill(PROMPT, proposing, max_tokens, cache)
    assert (cache.offsets, drafts.offsets) == ((3,) * 3, (2,))
    state = dec.prefill(PROMPT, proposing, 5, cache)
    assert tokens(dec, state) == plain_greedy(target, PROMPT, 5)


@pytest.mark.parametrize("when", ["before", "half", "after"])
def test_a_fault_in_the_last_forward_of_a_close_leaves_a_boundary_too(target: Transformer, when: str) -> None:
    """`deferred` is one row short after a full acceptance, so a close there forwards one token."""
    faulty = Faulty(target, call=10**9)
    dec = decoder(target, "greedy", 2)
    state = dec.prefill(PROMPT, drafter(dec, faulty, "deferred"), N)
    stream = dec.generate(state)
    for _ in range(4):
        next(stream)
    assert state.drafter.cache.offset == len(state.history) - 2
    faulty.call, faulty.when = faulty.num_calls, when
    with pytest.raises(Boom):
        stream.close()
    assert_at_boundary(state, target, target, lag("deferred"))
    assert [*state.emitted, *tokens(dec, state)] == plain_greedy(target, PROMPT, N)


# ------------------------------------------------------------------------------------------------------ next turn


@pytest.mark.parametrize("schedule", [*SCHEDULES, "prompt_lookup"])
@pytest.mark.parametrize("max_tokens", range(1, 7))
@pytest.mark.parametrize("rule", ["coupled"])
def test_a_second_turn_on_the_caches_of_the_first_equals_a_fresh_start(
    target: Transformer, draft: Transformer, rule: str, max_tokens: int, schedule: str
) -> None:
    dec = decoder(target, rule, 3, TEMPERATURES[rule])
    lookup = PromptLookup(32, max_ngram=1)
    state = dec.prefill(PROMPT, lookup if schedule == "prompt_lookup" else drafter(dec, draft, schedule), max_tokens)
    first = tokens(dec, state)
    for added in ([], [8], [8, 30, 2]):
        again = dec.extend(state.copy(), added, 6)
        assert again.prompt_length == len(PROMPT) + max_tokens + len(added)
        assert tokens(dec, again) == expected(target, dec, 6, [*PROMPT, *first, *added])
        assert_at_boundary(again, target, draft)


def test_a_second_turn_may_follow_a_close(target: Transformer, draft: Transformer) -> None:
    dec = decoder(target, "greedy", 4)
    state = dec.prefill(PROMPT, drafter(dec, draft, "deferred"), N)
    stream = dec.generate(state)
    received = [next(stream).token for _ in range(3)]
    stream.close()
    again = dec.extend(state, [6], 5)
    assert tokens(dec, again) == plain_greedy(target, [*PROMPT, *received, 6], 5)


def test_a_refused_second_turn_leaves_the_first_as_it_was(target: Transformer, draft: Transformer) -> None:
    dec = decoder(target, "greedy", 4)
    state = dec.prefill(PROMPT, drafter(dec, draft), 4)
    tokens(dec, state)
    with pytest.raises(TokenOutOfRange, match="token 40 at index 9"):
        dec.extend(state, [40], 5)
    assert_at_boundary(state, target, draft)


def test_a_drafter_may_sample_otherwise_than_the_target(target: Transformer, draft: Transformer) -> None:
    dec = decoder(target, "greedy", 3)
    hot = DraftModel(draft, SamplingParams(temperature=2.0), dec.randomness)
    state = dec.prefill(PROMPT, hot, N)
    assert tokens(dec, state) == plain_greedy(target, PROMPT, N)
    assert_at_boundary(state, target, draft)


# ------------------------------------------------------------------------------------- used-up states, broken blocks


def test_an_old_generator_that_dies_after_extend_leaves_the_next_turn_alone(target: Transformer) -> None:
    dec = decoder(target, "greedy", 4)
    state = dec.prefill(PROMPT, drafter(dec, target), 9)
    iterator = dec.generate(state)
    next(iterator), next(iterator)
    following = dec.extend(state, [], 6)
    history = list(state.history)
    iterator.close()
    assert_at_boundary(following, target, target)
    assert tokens(dec, following) == plain_greedy(target, history, 6)


def test_a_used_up_state_is_refused_wherever_it_would_go_on(target: Transformer) -> None:
    dec = decoder(target, "greedy", 4)
    state = dec.prefill(PROMPT, drafter(dec, target), 9)
    iterator = dec.generate(state)
    next(iterator)
    following = dec.extend(state, [1], 6)
    for call in (
        lambda: dec.step(state),
        lambda: next(dec.generate(state)),
        lambda: next(iterator),
        lambda: dec.extend(state, [], 3),
    ):
        with pytest.raises(InvalidSetting, match=r"used up by extend; go on with the state it returned"):
            call()
    assert_at_boundary(following, target, target)


def test_a_step_refuses_a_target_cache_of_another_length_and_changes_nothing(target: Transformer) -> None:
    dec = decoder(target, "greedy", 4)
    state = dec.prefill(PROMPT, drafter(dec, target), 9)
    state.target_cache.trim(1)
    with pytest.raises(CacheLengthError, match=rf"holds {len(PROMPT) - 1} rows, a history of {len(PROMPT) + 1} tokens"):
        dec.step(state)
    assert state.target_cache.offset == len(PROMPT) - 1


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (
            lambda b: DraftBlock(b.tokens, b.distributions[:-1]),
            DecodingFault,
            r"the drafter gave 3 tokens and distributions over \[32, 32\] tokens; give one",
        ),
        (
            lambda b: DraftBlock(b.tokens, tuple(replace(d, vocab_size=99) for d in b.distributions)),
            DecodingFault,
            r"3 tokens and distributions over \[99, 99, 99\] tokens; give one over the target's 32",
        ),
        (
            lambda b: DraftBlock(
                b.tokens, tuple(replace(d, probabilities=d.probabilities * float("nan")) for d in b.distributions)
            ),
            DishonestDraft,
            r"draft 0 of the block is token \d+, which has no mass",
        ),
    ],
)
def test_a_malformed_block_is_an_error_and_leaves_the_boundary(target, change, error, message) -> None:  # type: ignore[no-untyped-def]
    class Malformed(DraftModel):
        def propose(self, history, target_hidden, budget):  # type: ignore[no-untyped-def]
            return change(super().propose(history, target_hidden, budget))

    dec = decoder(target, "greedy", 3)
    state = dec.prefill(PROMPT, Malformed(target, dec.sampling, dec.randomness), 9)
    with pytest.raises(error, match=message):
        dec.step(state)
    assert_at_boundary(state, target, target)


@pytest.mark.parametrize("token", [32, -1, 2.0])
@pytest.mark.parametrize("place", range(3))
def test_a_proposal_outside_the_vocabulary_is_the_drafters_fault(
    target: Transformer, place: int, token: object
) -> None:
    """Whether the drafter notices, when it forwards its own proposal, or only the decoder does."""

    def draw(q: np.ndarray, position: int) -> object:
        return token if position == len(PROMPT) + 1 + place else int(np.argmax(q))

    dec = decoder(target, "greedy", 3)
    state = dec.prefill(PROMPT, DraftModel(target, dec.sampling, dec.randomness, draw=draw), 9)
    with pytest.raises(DecodingFault, match=rf"the drafter left the vocabulary: token {token} at index \d is outside"):
        dec.step(state)
    assert not issubclass(DecodingFault, InvalidInput)
    assert_at_boundary(state, target, target)


@pytest.mark.parametrize("value", [1.5, float("inf"), "3", None], ids=repr)
def test_counts_and_tokens_that_are_not_integers_are_refused(target: Transformer, value: object) -> None:
    dec = decoder(target, "greedy", 3)
    draft = drafter(dec, target)
    with pytest.raises(InvalidSetting, match=r"max_tokens is .*; give an integer >= 0"):
        dec.prefill(PROMPT, draft, value)
    with pytest.raises(InvalidSetting, match=r"num_draft_tokens is .*; give an integer >= 0"):
        replace(dec, num_draft_tokens=value)
    with pytest.raises(InvalidSetting, match=r"a stop token is .*; give an integer >= 0"):
        replace(dec, stop_tokens=frozenset({3, value}))
    with pytest.raises(
        TokenOutOfRange, match=r"token .* at index 1 is outside the vocabulary 0\.\.31 of target; give integer ids"
    ):
        dec.prefill([1, value], draft, 4)
    dec = replace(dec, num_draft_tokens=np.int64(3), stop_tokens={np.int64(3)})
    state = dec.prefill(np.array(PROMPT), draft, np.int64(4))
    settings = (*state.history, state.max_tokens, dec.num_draft_tokens, *dec.stop_tokens)
    assert {type(n) for n in settings} == {int}
