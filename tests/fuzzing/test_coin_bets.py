"""A bet on coins is a fair game against right chances, and grows against wrong ones."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specproof.fuzzing.coin_bets import CoinBet

chances = st.floats(0, 1)


def after(outcomes: list[bool], chance: list[float], noise: float = 0.0) -> CoinBet:
    bet = CoinBet(noise)
    for came_up, known in zip(outcomes, chance, strict=True):
        bet.throw(came_up, known)
    return bet


@given(chances, chances, st.sampled_from((0.0, 1e-3)), st.floats(-1, 1))
def test_the_capital_is_expected_to_stay_or_fall_where_every_chance_is_right_up_to_noise(a, b, noise, off) -> None:
    """Over all outcomes of two coins, whose true chances are off by up to the noise."""
    true = [min(max(chance + off * noise, 0.0), 1.0) for chance in (a, b)]
    expected = 0.0
    for first in (True, False):
        for second in (True, False):
            mass = math.prod(t if up else 1 - t for t, up in zip(true, (first, second), strict=True))
            if mass > 0:
                expected += mass * math.exp(after([first, second], [a, b], noise).log_capital)
    assert expected <= 1 + 1e-9


def test_without_noise_no_capital_is_given_away() -> None:
    expected = sum(0.5 * math.exp(after([up], [0.5]).log_capital) for up in (True, False))
    assert expected == pytest.approx(1, abs=1e-8)


@pytest.mark.parametrize(("chance", "true"), [(0.5, 0.62), (0.5, 0.38), (0.1, 0.2), (0.97, 0.9)])
def test_coins_of_another_chance_are_found_and_right_ones_are_not(chance: float, true: float) -> None:
    draws = np.random.default_rng(0).random(1000)
    wrong, right = (after(list(draws < actual), [chance] * 1000) for actual in (true, chance))
    assert wrong.rejects(1e-6)
    assert not right.rejects(1e-3)
    assert wrong.p_value < 1e-6 < right.p_value


@pytest.mark.parametrize("chance", [0.0, 1.0])
def test_what_cannot_come_up_is_found_at_once(chance: float) -> None:
    assert after([chance == 0], [chance]).rejects(1e-5)
    assert not after([chance == 1] * 1000, [chance] * 1000).rejects(0.5)
