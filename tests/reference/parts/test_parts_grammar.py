"""The grammar: its language, its mask, and the automaton that goes forward and back."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference.errors import InvalidSetting
from reference.parts.grammar import CLOSE, DEEPEST, MARKER, OPEN, PLAIN, Grammar, grammar_mask, state_after
from reference.parts.matcher import Matcher

tokens = st.lists(st.integers(0, 31), max_size=20)


@given(context=tokens, size=st.integers(3, 32))
def test_every_state_allows_some_token(context: list[int], size: int) -> None:
    assert state_after(context).allowed(size).any()


@given(seed=st.integers(0, 999))
def test_decoding_under_the_mask_gives_balanced_brackets_inside_formulas(seed: int) -> None:
    generator, text = np.random.default_rng(seed), [MARKER]
    for _ in range(30):
        allowed = np.flatnonzero(np.isfinite(grammar_mask(text, np.zeros(4))))
        text.append(int(generator.choice(allowed)))
    inside, depth = False, 0
    for token in text:
        if token == MARKER:
            assert depth == 0
            inside = not inside
        elif inside:
            depth += (token == OPEN) - (token == CLOSE)
        assert 0 <= depth <= DEEPEST


@pytest.mark.parametrize(
    ("state", "allowed"),
    [
        (Grammar(), [OPEN, CLOSE, MARKER, PLAIN]),
        (Grammar(True), [OPEN, MARKER, PLAIN]),
        (Grammar(True, 1), [OPEN, CLOSE, PLAIN]),
        (Grammar(True, DEEPEST), [CLOSE, PLAIN]),
    ],
)
def test_the_mask_follows_from_what_is_open(state: Grammar, allowed: list[int]) -> None:
    assert np.flatnonzero(state.allowed(4)).tolist() == allowed


@given(kept=tokens, undone=tokens, then=tokens)
def test_an_automaton_that_is_rolled_back_is_as_if_it_had_never_advanced(
    kept: list[int], undone: list[int], then: list[int]
) -> None:
    matcher = Matcher()
    for token in (*kept, *undone):
        matcher.accept(token)
    matcher.rollback(len(undone))
    for token in then:
        matcher.accept(token)
    assert matcher.state == state_after([*kept, *then])
    assert matcher.accepted == [*kept, *then]


@pytest.mark.parametrize("count", [-1, 3])
def test_an_automaton_cannot_be_rolled_back_by_more_than_it_advanced(count: int) -> None:
    matcher = Matcher()
    matcher.accept(1)
    matcher.accept(2)
    with pytest.raises(InvalidSetting, match=f"cannot roll back {count} of 2 tokens"):
        matcher.rollback(count)
