"""The tests of hypotheses raise false alarms as often as they say, and see what they say they would see."""

from __future__ import annotations

import math
from collections import Counter
from functools import cache

import numpy as np
import pytest
import scipy

from reference.errors import InvalidSetting
from specproof.statistics import (
    CERTAIN,
    FAMILY_LEVEL,
    MIN_EXPECTED,
    POWER,
    Bet,
    chi_squared,
    coin_test,
    g_test,
    holm,
    seeds,
    smallest_detectable_variation,
    trend_test,
)

LAW = {(i, j): p * q for i, p in enumerate((0.5, 0.3, 0.15, 0.05)) for j, q in enumerate((0.6, 0.35, 0.05))}
RUNS = 500


def within_binomial_bounds(hits: int, runs: int, chance: float) -> bool:
    """Whether a count is one that a right calibration gives in all but one of 10,000 suites."""
    low, high = scipy.stats.binom.ppf([5e-5, 1 - 5e-5], runs, chance)
    return bool(low <= hits <= high)


def draws(
    generator: np.random.Generator, law: dict[tuple[int, int], float], samples: int
) -> dict[tuple[int, int], int]:
    return dict(zip(law, generator.multinomial(samples, list(law.values())).tolist(), strict=True))


# ------------------------------------------------------------------------------------------------- chi-squared


@cache
def p_values_of_a_right_sampler(samples: int) -> tuple[float, ...]:
    """Those of `RUNS` runs, the same for every level that they are held against."""
    generator = np.random.default_rng(1)
    return tuple(chi_squared(draws(generator, LAW, samples), LAW).p_value for _ in range(RUNS))


@pytest.mark.parametrize("samples", [60, 300, 3000])
@pytest.mark.parametrize("level", [0.01, 0.05, 0.2])
def test_chi_squared_rejects_a_right_sampler_as_often_as_its_level_says(level: float, samples: int):
    p_values = p_values_of_a_right_sampler(samples)
    assert within_binomial_bounds(sum(p <= level for p in p_values), RUNS, level)


def test_chi_squared_without_small_cells_is_pearsons():
    counts = {"a": 30, "b": 50, "c": 20}
    law = {"a": 0.25, "b": 0.5, "c": 0.25}
    wanted = scipy.stats.chisquare([30, 50, 20], [25, 50, 25])
    found = chi_squared(counts, law)
    assert (found.statistic, found.p_value) == pytest.approx((wanted.statistic, wanted.pvalue))
    assert (found.degrees, found.pooled_mass, found.samples) == (2, 0.0, 100)


def test_cells_that_expect_fewer_than_five_counts_are_pooled_into_one():
    law = {"a": 0.9, "b": 0.04, "c": 0.03, "d": 0.03}
    found = chi_squared(Counter({"a": 88, "b": 12}), law)
    assert MIN_EXPECTED == 5
    assert found.degrees == 1
    assert found.pooled_mass == pytest.approx(0.1)
    assert found.statistic == pytest.approx(2**2 / 90 + 2**2 / 10)


def test_a_pooled_cell_that_is_still_too_small_takes_the_next_smallest_too():
    law = {"a": 0.9, "b": 0.06, "c": 0.02, "d": 0.02}
    found = chi_squared({"a": 90, "b": 10}, law)
    assert found.degrees == 1
    assert found.pooled_mass == pytest.approx(0.1)


def test_one_cell_is_no_evidence_of_anything():
    found = chi_squared({"a": 7}, {"a": 1.0})
    assert (found.p_value, found.degrees, found.statistic) == (1.0, 0, 0.0)
    assert smallest_detectable_variation(7, 0, 0.01) == 1.0


def test_an_outcome_without_mass_rejects_however_rare_it_is():
    found = chi_squared({"a": 10_000, "z": 1}, {"a": 1.0, "z": 0.0})
    assert (found.p_value, found.impossible) == (0.0, 1)
    assert chi_squared({"a": 10_000, "y": 1}, {"a": 1.0}).impossible == 1


def test_chi_squared_of_no_draws_is_refused():
    with pytest.raises(InvalidSetting, match="given 0 draws; draw at least one sample"):
        chi_squared({}, LAW)


@pytest.mark.parametrize("samples", [400, 4000])
def test_the_smallest_detectable_variation_is_detected_as_often_as_promised_in_the_hardest_direction(samples: int):
    """Half of the mass gains what the other half loses: no deviation of that size is harder to see."""
    law = {(i, j): 1 / 16 for i in range(4) for j in range(4)}
    level = 1e-3
    least = smallest_detectable_variation(samples, 15, level)
    shifted = {cell: p + (least if cell[0] < 2 else -least) / 8 for cell, p in law.items()}
    generator = np.random.default_rng(2)
    seen = sum(chi_squared(draws(generator, shifted, samples), law).p_value <= level for _ in range(RUNS))
    assert POWER == 0.99
    assert within_binomial_bounds(seen, RUNS, POWER)


def test_a_smaller_variation_than_the_detectable_one_is_missed_more_often():
    law = dict.fromkeys(range(8), 1 / 8)
    least = smallest_detectable_variation(1000, 7, 1e-3)
    shifted = {i: p + (least if i < 4 else -least) / 8 for i, p in law.items()}  # half of it
    generator = np.random.default_rng(3)
    seen = sum(chi_squared(draws(generator, shifted, 1000), law).p_value <= 1e-3 for _ in range(RUNS))
    assert seen < 0.6 * RUNS


def test_deviations_in_other_directions_are_seen_more_often():
    law = dict(enumerate((0.7, 0.1, 0.1, 0.1)))
    least = smallest_detectable_variation(1000, 3, 1e-3)
    shifted = law | {1: 0.1 + least, 0: 0.7 - least}
    generator = np.random.default_rng(4)
    seen = sum(chi_squared(draws(generator, shifted, 1000), law).p_value <= 1e-3 for _ in range(RUNS))
    assert seen >= 0.99 * RUNS


def test_more_samples_detect_less():
    assert smallest_detectable_variation(20_000, 80, 1e-3) == pytest.approx(
        smallest_detectable_variation(200, 80, 1e-3) / 10
    )
    assert smallest_detectable_variation(20_000, 80, 1e-3) > 0.01


# -------------------------------------------------------------------------------------------------- coins


def dependent_coins(generator: np.random.Generator, bias: float) -> tuple[list[bool], list[float]]:
    """Coins whose chance depends on the last outcome, and whose number depends on all: a run of rounds in small."""
    outcomes: list[bool] = []
    chances: list[float] = []
    while len(outcomes) < 400 and sum(outcomes) < 150:
        chances.append(0.8 if outcomes and outcomes[-1] else 0.3)
        outcomes.append(bool(generator.random() < chances[-1] + bias))
    return outcomes, chances


@cache
def p_values_of_right_coins() -> tuple[float, ...]:
    """Those of `RUNS` runs, the same for every level that they are held against."""
    generator = np.random.default_rng(5)
    return tuple(coin_test(*dependent_coins(generator, 0)).p_value for _ in range(RUNS))


@pytest.mark.parametrize("level", [0.01, 0.05, 0.2])
def test_coins_that_depend_on_each_other_are_rejected_as_often_as_the_level_says(level: float):
    p_values = p_values_of_right_coins()
    assert within_binomial_bounds(sum(p <= level for p in p_values), RUNS, level)


def test_coins_with_a_bias_are_rejected():
    generator = np.random.default_rng(6)
    seen = sum(coin_test(*dependent_coins(generator, 0.1)).p_value <= 0.001 for _ in range(100))
    assert seen > 60


def test_treating_every_coin_as_thrown_would_reject_a_right_run():
    """Why rates are conditional on being reached: the coins behind a failure were not thrown, and are no failures."""
    generator = np.random.default_rng(7)
    blocks = [generator.random(3) < 0.8 for _ in range(300)]
    reached = [coin for block in blocks for i, coin in enumerate(block) if block[:i].all()]
    unconditional = [bool(block[: i + 1].all()) for block in blocks for i in range(3)]
    assert coin_test(reached, [0.8] * len(reached)).p_value > 0.01
    assert coin_test(unconditional, [0.8] * len(unconditional)).p_value < 1e-6


def test_the_smallest_detectable_rate_is_detected_as_often_as_promised():
    generator = np.random.default_rng(8)
    chances = [0.7] * 1500
    least = coin_test([True] * 1500, chances).smallest_detectable_rate(1e-3)
    seen = sum(coin_test((generator.random(1500) < 0.7 - least).tolist(), chances).p_value <= 1e-3 for _ in range(RUNS))
    assert seen >= 0.975 * RUNS  # normal approximation with the variance of the null hypothesis
    assert seen < RUNS


def test_z_is_the_surplus_over_its_standard_deviation():
    found = coin_test([True] * 60 + [False] * 40, [0.5] * 100)
    assert (found.z, found.variance, found.trials) == (2.0, 25.0, 100)
    assert found.p_value == pytest.approx(2 * scipy.stats.norm.sf(2.0))
    assert (found.observed, found.expected) == (0.6, 0.5)
    assert found.numbers()["z"] == 2.0


def test_certain_coins_that_fall_as_they_must_are_no_evidence():
    found = coin_test([True, False, True], [1.0, 0.0, 1.0 - CERTAIN / 2])
    assert (found.p_value, found.z, found.variance, found.impossible) == (1.0, 0.0, 0.0, 0)


def test_one_coin_against_a_certain_outcome_rejects_however_many_others_are_right():
    fair = [True, False] * 500
    found = coin_test([*fair, True], [0.5] * 1000 + [0.0])
    assert (found.p_value, found.impossible) == (0.0, 1)
    assert math.isinf(found.z)


def test_no_coins_are_no_evidence():
    found = coin_test([], [])
    assert (found.trials, found.p_value, found.z, found.observed) == (0, 1.0, 0.0, 0.0)
    assert found.smallest_detectable_rate(0.01) == 1.0


def test_probabilities_just_outside_the_unit_interval_are_rounding():
    assert coin_test([True, False], [1 + 1e-15, -1e-15]).p_value == 1.0


def test_with_little_variance_p_values_are_bounds_and_never_too_small():
    """Ten coins of chance 0.01: the normal tail calls one that comes up impossible, which it is not."""
    found = coin_test([True] + [False] * 9, [0.01] * 10)
    chance = scipy.stats.binom.sf(0, 10, 0.01)
    assert found.p_value >= chance
    assert 2 * scipy.stats.norm.sf(abs(found.z)) < chance / 10


@pytest.mark.parametrize("chance", [0.002, 0.05, 0.5])
def test_the_bound_holds_for_every_outcome_of_few_coins(chance: float):
    trials = 40
    for hits in range(trials + 1):
        found = coin_test([True] * hits + [False] * (trials - hits), [chance] * trials)
        surplus = abs(hits - trials * chance)
        tail = sum(
            scipy.stats.binom.pmf(n, trials, chance) for n in range(trials + 1) if abs(n - trials * chance) >= surplus
        )
        assert found.p_value >= min(1, tail) * (1 - 1e-9)


def test_unequal_numbers_of_outcomes_and_probabilities_are_refused():
    with pytest.raises(InvalidSetting, match="2 outcomes and 1 probabilities; give one for each coin"):
        coin_test([True, False], [0.5])


# ------------------------------------------------------------------------------------------- families and seeds


def test_holm_steps_down_from_the_smallest_p_value():
    assert holm([0.01, 0.04, 0.03, 0.005], 0.05) == [True, False, False, True]
    assert holm([0.01, 0.02, 0.03], 0.05) == [True, True, True]
    assert holm([0.02, 0.02, 0.03], 0.05) == [False, False, False]
    assert holm([], 0.05) == []
    assert holm([0.0]) == [True]


def test_a_family_of_right_tests_is_accused_at_most_as_often_as_its_level_says():
    generator = np.random.default_rng(9)
    accused = sum(any(holm(generator.random(30).tolist(), 0.05)) for _ in range(2000))
    assert accused <= scipy.stats.binom.ppf(1 - 1e-4, 2000, 0.05)
    assert accused > 0


def test_the_level_is_small_enough_for_many_families():
    assert FAMILY_LEVEL <= 1e-3


def test_every_setting_and_repetition_has_seeds_of_its_own_and_always_the_same():
    first = seeds(0, "a", 0, 100)
    assert first == seeds(0, "a", 0, 100)
    assert first[:10] == seeds(0, "a", 0, 10)
    others = [seeds(0, "a", 1, 100), seeds(0, "b", 0, 100), seeds(1, "a", 0, 100)]
    assert all(not set(first) & set(other) for other in others)
    assert all(0 <= seed < 2**32 for seed in first)


@pytest.mark.parametrize("value", [math.nan, math.inf, -0.1, 1.5])
def test_what_is_no_probability_is_refused_and_does_not_pass_for_agreement(value: float) -> None:
    with pytest.raises(InvalidSetting, match="coin_test was given"):
        coin_test([False, False], [0.5, value])
    with pytest.raises(InvalidSetting, match="holm was given"):
        holm([0.5, value, 1e-9])
    with pytest.raises(InvalidSetting, match="chi_squared was given"):
        chi_squared({0: 10, 1: 10}, {0: 0.5, 1: value})


# ------------------------------------------------------------------------------------------------------------ G


def test_g_without_small_cells_is_the_likelihood_ratio():
    counts, law = {"a": 30, "b": 50, "c": 20}, {"a": 0.25, "b": 0.5, "c": 0.25}
    wanted = scipy.stats.power_divergence([30, 50, 20], [25, 50, 25], lambda_="log-likelihood")
    found = g_test(counts, law)
    assert (found.statistic, found.p_value) == pytest.approx((wanted.statistic, wanted.pvalue))


def test_an_empty_cell_speaks_louder_to_g_and_a_crowded_one_to_chi_squared():
    law = {"a": 0.5, "b": 0.25, "c": 0.25}
    empty, crowded = {"a": 50, "b": 50, "c": 0}, {"a": 90, "b": 5, "c": 5}
    assert g_test(empty, law).statistic > chi_squared(empty, law).statistic
    few = {"a": 0.9, "b": 0.05, "c": 0.05}
    assert chi_squared({"a": 80, "b": 20, "c": 0}, few).statistic > g_test({"a": 80, "b": 20, "c": 0}, few).statistic
    assert g_test(crowded, law).p_value < 1e-9


def test_g_of_no_draws_is_refused_under_its_own_name():
    with pytest.raises(InvalidSetting, match="g_test was given 0 draws"):
        g_test({}, {"a": 1.0})


# -------------------------------------------------------------------------------------------------------- trends

TIMES = [i / 99 - 0.5 for i in range(100)]


def thrown(generator: np.random.Generator, chances: list[float]) -> list[bool]:
    return (generator.random(len(chances)) < chances).tolist()


@pytest.mark.parametrize("level", [0.01, 0.05])
def test_coins_without_a_trend_are_rejected_as_often_as_the_level_says(level: float):
    generator = np.random.default_rng(3)
    chances = np.linspace(0.2, 0.8, 100).tolist()  # a trend that is expected is none
    hits = sum(
        trend_test(thrown(generator, chances), chances, [2 * t for t in TIMES]).p_value <= level for _ in range(RUNS)
    )
    assert hits <= scipy.stats.binom.ppf(1 - 5e-5, RUNS, level)  # with little variance p-values are bounds
    assert level == 0.01 or hits > 0


def test_a_trend_is_seen_where_the_rate_is_right():
    generator = np.random.default_rng(4)
    falling = np.linspace(0.8, 0.2, 400)
    outcomes, times = thrown(generator, falling.tolist()), np.linspace(-1, 1, 400).tolist()
    assert coin_test(outcomes, [0.5] * 400).p_value > 0.01
    found = trend_test(outcomes, [0.5] * 400, times)
    assert found.p_value < 1e-6
    assert found.z < 0


def test_coins_of_certain_outcome_have_no_trend():
    found = trend_test([False] * 5, [1.0] * 5, [-1, -0.5, 0, 0.5, 1])
    assert (found.z, found.p_value) == (0.0, 1.0)


@pytest.mark.parametrize("weights", [[0.5], [0.5, 1.5], [0.5, math.nan]])
def test_weights_that_are_missing_or_too_large_are_refused(weights: list[float]):
    with pytest.raises(InvalidSetting, match="one weight in"):
        trend_test([True, False], [0.5, 0.5], weights)


# ---------------------------------------------------------------------------------------------------------- bets


def ever_rejects(generator: np.random.Generator, law: dict[str, float], truth: list[float], draws: int) -> int:
    """After how many draws a bet is first won; 0: never."""
    bet = Bet(law)
    names = list(law)
    for count, index in enumerate(generator.choice(len(names), size=draws, p=truth), 1):
        bet.draw(names[index])
        if bet.rejects(0.01):
            return count
    return 0


def test_a_bet_against_a_right_law_is_ever_won_at_most_as_often_as_the_level_says():
    """1,000 runs that look after each of 150 draws: a fixed-sample test looked at so often would fail many times."""
    generator, law = np.random.default_rng(5), {"a": 0.5, "b": 0.3, "c": 0.2}
    won = sum(ever_rejects(generator, law, [0.5, 0.3, 0.2], 150) > 0 for _ in range(1000))
    assert won <= scipy.stats.binom.ppf(1 - 5e-5, 1000, 0.01)
    peeked = 0
    for _ in range(200):
        drawn = generator.choice(3, size=150, p=[0.5, 0.3, 0.2])
        looks = (np.bincount(drawn[:n], minlength=3) for n in range(20, 151))
        peeked += any(chi_squared(dict(zip("abc", c.tolist(), strict=True)), law).p_value <= 0.01 for c in looks)
    assert peeked > scipy.stats.binom.ppf(1 - 5e-5, 200, 0.01)


def test_a_bet_against_a_wrong_law_is_won_and_sooner_the_more_wrong_it_is():
    law = {"a": 0.5, "b": 0.3, "c": 0.2}
    slight = [ever_rejects(np.random.default_rng(seed), law, [0.3, 0.4, 0.3], 3000) for seed in range(20)]
    gross = [ever_rejects(np.random.default_rng(seed), law, [0.05, 0.15, 0.8], 3000) for seed in range(20)]
    assert all(slight)
    assert all(gross)
    assert np.mean(gross) < np.mean(slight) / 3


def test_a_bet_is_won_at_once_by_an_outcome_that_the_law_excludes():
    bet = Bet({"a": 1.0})
    bet.draw("b")
    assert bet.rejects(1e-300)
