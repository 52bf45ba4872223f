"""A KeyboardInterrupt between any two lines of `prefill` and `extend` leaves the caches to one state, whole."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

import pytest
from interrupts import interrupted_at
from test_reference_decoder import PROMPT, decoder, drafter, tokens
from toy_models import assert_at_boundary, plain_greedy

from reference import Decoder, DecoderState, Transformer


class MarksTooLate(Decoder):
    """Negative control: between prefill's end and the mark, both states have the caches."""

    def extend(self, state: DecoderState, added: Sequence[int], max_tokens: int) -> DecoderState:
        state.check_usable()
        following = self.prefill([*state.history, *added], state.drafter, max_tokens, state.target_cache)
        state.superseded = True
        return following


def extend_interrupted_everywhere(kind: type[Decoder], target: Transformer, schedule: str, max_tokens: int) -> int:
    """Interrupt a second turn before each line in turn; how many interrupts there were."""
    for line in range(100):
        plain = decoder(target, "greedy", 3)
        dec = kind(target, rule="greedy", sampling=plain.sampling, randomness=plain.randomness, num_draft_tokens=3)
        state = dec.prefill(PROMPT, drafter(dec, target, schedule), 6)
        first = tokens(dec, state)
        try:
            with interrupted_at(line, kind.extend, Decoder.prefill):
                dec.extend(state, [8], max_tokens)
        except KeyboardInterrupt:
            assert not state.superseded
            assert_at_boundary(state, target, target)
            assert tokens(dec, dec.extend(state, [8], 4)) == plain_greedy(target, [*PROMPT, *first, 8], 4)
        else:
            return line
    pytest.fail("a second turn that was never finished")


@pytest.mark.parametrize("max_tokens", [0, 5])
@pytest.mark.parametrize("schedule", ["catch_up", "eager", "deferred"])
def test_an_interrupt_at_any_line_of_extend_leaves_the_old_state_as_it_was(
    target: Transformer, schedule: str, max_tokens: int
) -> None:
    assert extend_interrupted_everywhere(Decoder, target, schedule, max_tokens) > 10


def test_a_state_that_is_marked_after_its_caches_went_on_is_seen(target: Transformer) -> None:
    with pytest.raises(AssertionError):
        extend_interrupted_everywhere(MarksTooLate, target, "catch_up", 5)


@pytest.mark.parametrize("max_tokens", [0, 5])
def test_an_interrupt_at_any_line_of_prefill_gives_warm_caches_back_as_they_were(
    target: Transformer, draft: Transformer, max_tokens: int
) -> None:
    for line in count():
        dec = decoder(target, "greedy", 3)
        cache, drafts = target.new_cache(), draft.new_cache()
        target.forward(PROMPT[:3], cache)
        draft.forward(PROMPT[:2], drafts)
        proposing = drafter(dec, draft, cache=drafts)
        try:
            with interrupted_at(line, Decoder.prefill):
                dec.prefill(PROMPT, proposing, max_tokens, cache)
        except KeyboardInterrupt:
            assert (cache.offsets, drafts.offsets) == ((3,) * 3, (2,))
        else:
            break
    assert line > 8
