"""Random choices: end points, reproducibility, and enumeration that misses nothing."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reference import SeededRandomness
from reference.errors import DecodingFault, InvalidSetting
from reference.randomness import gumbel_noise
from specproof.enumeration import EnumeratedRandomness

JUST_UNDER_ONE = np.nextafter(1.0, 0.0)


def always(u: float) -> SeededRandomness:
    return SeededRandomness(0, lambda: u)


def test_a_coin_accepts_iff_the_uniform_is_strictly_below() -> None:
    assert not always(0.0).bernoulli(0)
    assert always(0.0).bernoulli(5e-324)
    assert always(JUST_UNDER_ONE).bernoulli(1)
    assert not always(JUST_UNDER_ONE).bernoulli(JUST_UNDER_ONE)
    assert not always(0.5).bernoulli(0.5)
    assert always(0.5).bernoulli(Fraction(2, 3))


@settings(max_examples=60, deadline=None)
@given(weights=st.lists(st.integers(0, 3), min_size=1, max_size=8).filter(any))
@pytest.mark.parametrize("u", [0.0, 1e-300, 0.5, JUST_UNDER_ONE])
def test_no_uniform_draws_a_token_without_mass(u: float, weights: list[int]) -> None:
    p = np.array(weights) / sum(weights)
    token = always(u).categorical(p)
    assert p[token] > 0
    if u == 0:
        assert token == np.flatnonzero(p)[0]
    if u == JUST_UNDER_ONE:
        assert token == np.flatnonzero(p)[-1]


def test_mass_that_rounds_short_of_one_is_still_covered() -> None:
    """0.1 added ten times stays under 1, so that an unscaled inverse would run off the end."""
    p = np.array([0.1] * 10 + [0.0, 0.0])
    assert np.cumsum(p)[-1] < 1
    assert always(JUST_UNDER_ONE).categorical(p) == 9


def test_categorical_inverts_the_distribution_function() -> None:
    p = [Fraction(1, 4), Fraction(0), Fraction(1, 2), Fraction(1, 4)]
    assert [always(u).categorical(np.array(p)) for u in (0.0, 0.24, 0.25, 0.74, 0.75)] == [0, 0, 2, 2, 3]


def test_equal_seeds_give_equal_choices_and_others_do_not() -> None:
    p = np.full(32, 1 / 32)

    def choices(seed: int) -> list[int]:
        randomness = SeededRandomness(seed)
        return [randomness.categorical(p) for _ in range(8)]

    assert choices(5) == choices(5)
    assert choices(5) != choices(6)
    with pytest.raises(InvalidSetting, match="seed is -1; give an integer >= 0"):
        SeededRandomness(-1)


def test_coupled_draws_depend_on_seed_and_position_alone() -> None:
    p = np.full(32, 1 / 32)
    randomness = SeededRandomness(5)
    first = [randomness.coupled_categorical(p, position) for position in range(10)]
    randomness.bernoulli(0.5)
    assert [randomness.coupled_categorical(p, position) for position in range(10)] == first
    assert len(set(first)) > 3
    assert [SeededRandomness(6).coupled_categorical(p, position) for position in range(10)] != first


def test_every_seed_and_position_has_noise_of_its_own() -> None:
    noises = {tuple(gumbel_noise(seed, position, 3)) for seed in range(5) for position in range(40)}
    assert len(noises) == 200
    np.testing.assert_array_equal(gumbel_noise(4, 30, 3), gumbel_noise(4, 30, 3))


def test_coupled_draws_never_take_a_token_without_mass() -> None:
    p = np.array([0.0, 0.5, 0.0, 0.5])
    randomness = SeededRandomness(0)
    assert {randomness.coupled_categorical(p, position) for position in range(40)} == {1, 3}


def test_coupled_draws_follow_the_distribution() -> None:
    p = np.array([0.6, 0.3, 0.1])
    randomness = SeededRandomness(11)
    n = 4000
    counts = Counter(randomness.coupled_categorical(p, position) for position in range(n))
    for token, probability in enumerate(p):
        sigma = (n * probability * (1 - probability)) ** 0.5
        assert abs(counts[token] - n * probability) < 4 * sigma


def test_noise_of_position_zero_is_not_the_stream_of_the_coins() -> None:
    """NumPy pads entropy with zeros: seeding with [seed, 0] would repeat the stream of seed alone."""
    same_entropy = np.random.default_rng([5, 0]).random(4)
    np.testing.assert_array_equal(same_entropy, np.random.default_rng(5).random(4))
    assert not np.allclose(gumbel_noise(5, 0, 4), np.random.default_rng(5).gumbel(size=4))


def enumerate_law(body: object, randomness: EnumeratedRandomness) -> dict[object, object]:
    law: dict[object, object] = {}
    for _ in randomness.walk():
        outcome = body(randomness)
        law[outcome] = law.get(outcome, 0) + randomness.weight
    return law


def test_the_walk_meets_every_outcome_once_with_its_weight() -> None:
    third = Fraction(1, 3)
    p = np.array([third, Fraction(0), 2 * third], dtype=object)

    def body(randomness: EnumeratedRandomness) -> tuple[object, ...]:
        token = randomness.categorical(p)
        return (token, randomness.bernoulli(third)) if token == 2 else (token,)

    assert enumerate_law(body, EnumeratedRandomness()) == {
        (0,): third,
        (2, True): Fraction(2, 9),
        (2, False): Fraction(4, 9),
    }


@settings(max_examples=40, deadline=None)
@given(
    weights=st.lists(st.lists(st.integers(0, 3), min_size=2, max_size=3).filter(any), min_size=1, max_size=4),
    coins=st.lists(st.fractions(0, 1, max_denominator=4), max_size=3),
)
def test_weights_of_a_walk_sum_to_exactly_one(weights: list[list[int]], coins: list[Fraction]) -> None:
    tables = [np.array([Fraction(w, sum(row)) for w in row]) for row in weights]

    def body(randomness: EnumeratedRandomness) -> tuple[object, ...]:
        drawn = [randomness.categorical(table) for table in tables]
        # How many coins are thrown depends on what came before, as in a real round.
        return (*drawn, *(randomness.bernoulli(coin) for coin in coins[: drawn[0] + 1]))

    randomness = EnumeratedRandomness()
    visits, total = Counter(), Fraction(0)
    for _ in randomness.walk():
        visits[body(randomness)] += 1
        assert randomness.weight > 0
        total += randomness.weight
    assert total == 1
    assert set(visits.values()) == {1}


def test_certain_choices_make_no_branch() -> None:
    def body(randomness: EnumeratedRandomness) -> tuple[object, ...]:
        return randomness.bernoulli(0), randomness.bernoulli(1), randomness.categorical(np.array([0.0, 1.0]))

    assert enumerate_law(body, EnumeratedRandomness()) == {(False, True, 1): 1}


def test_one_object_can_walk_again_after_a_walk_was_left() -> None:
    randomness = EnumeratedRandomness()
    for _ in randomness.walk():
        randomness.bernoulli(0.5)
        break
    assert enumerate_law(lambda r: r.bernoulli(0.25), randomness) == {True: 0.25, False: 0.75}


def test_misuse_of_enumeration_is_refused() -> None:
    randomness = EnumeratedRandomness()
    with pytest.raises(InvalidSetting, match=r"run the code inside `for _ in randomness\.walk\(\):`"):
        randomness.bernoulli(0.5)
    with pytest.raises(InvalidSetting, match="continuous noise, which cannot be enumerated"):
        randomness.coupled_categorical(np.array([0.5, 0.5]), 0)
    calls = iter([[0.5, 0.5, 0.0], [0.5, 0.0, 0.5]])
    with pytest.raises(DecodingFault, match=r"choice 0 had the outcomes \(0, 1\), on this repetition \(0, 2\); start"):
        enumerate_law(lambda r: r.categorical(np.array(next(calls))), randomness)
