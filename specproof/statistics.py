"""Tests of hypotheses: chi-squared and G with pooled cells, z-tests on martingales, bets, Holm, and what they detect.

One family-wise level, one power and one pooling rule for the whole project are fixed here. Knows numbers only:
nothing of engines, rounds or tokens.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar
from zlib import crc32

import numpy as np
import scipy
from numpy.typing import NDArray

from reference.errors import InvalidSetting

Floats = NDArray[np.float64]
Outcome = TypeVar("Outcome", bound=Hashable)

FAMILY_LEVEL = 1e-3
"""Chance that a family of tests on a right engine rejects anything at all (Holm)."""

POWER = 0.99
"""Chance with which a deviation that is reported as detectable would have been found."""

MIN_EXPECTED = 5.0
"""Cells of a chi-squared test that expect fewer counts are pooled."""

NORMAL_VARIANCE = 25.0
"""Below this much variance the normal tail of a sum of coins is not trusted, and an inequality takes its place."""

CERTAIN = 1e-9
"""A coin with a probability this close to 0 or 1 must not fall the other way."""


def seeds(seed: int, setting: str, repetition: int, count: int) -> list[int]:
    """`count` independent seeds of a statistical setting, each below 2**32.

    Args:
        seed: that of the whole audit.
        setting: the setting's name: two settings share no random numbers.
        repetition: 0 for the first run of a setting, 1 for its repetition on fresh seeds.
        count: how many.
    """
    sequence = np.random.SeedSequence([seed, crc32(setting.encode()), repetition])
    return [int(state) for state in sequence.generate_state(count, np.uint32)]


@dataclass(frozen=True)
class CellTest:
    """A test of counts against a law, cell by cell.

    Attributes:
        samples: number of draws.
        statistic: Pearson's sum of (observed - expected)^2 / expected, or G = 2 sum of observed * ln(observed /
            expected), over cells. Under the law both are about chi-squared with `degrees` degrees of freedom.
        degrees: of freedom: cells after pooling, less one.
        p_value: chance of a statistic at least as large under the law; 0 if an impossible outcome was seen.
        pooled_mass: mass of the law in the pooled cell. Deviations inside it cannot be seen.
        impossible: draws of outcomes that have no mass under the law.
    """

    samples: int
    statistic: float
    degrees: int
    p_value: float
    pooled_mass: float
    impossible: int

    def numbers(self) -> dict[str, float]:
        """What a report keeps of it."""
        return {"samples": self.samples, "statistic": self.statistic, "degrees": self.degrees, "p_value": self.p_value}


def chi_squared(counts: Mapping[Outcome, int], law: Mapping[Outcome, float]) -> CellTest:
    """Pearson's test of `counts` against `law` (masses summing to 1).

    Outcomes that expect fewer than `MIN_EXPECTED` counts are pooled into one cell, and so are the next smallest until
    that cell expects enough. With one cell left there is nothing to test: the p-value is 1.

    Raises:
        InvalidSetting: no draws at all, or a mass that is not a probability.
    """
    return _cell_test(counts, law, "chi_squared", lambda o, e: float(((o - e) ** 2 / e).sum()))


def g_test(counts: Mapping[Outcome, int], law: Mapping[Outcome, float]) -> CellTest:
    """The likelihood-ratio test of `counts` against `law`; cells, pooling and errors as in `chi_squared`.

    It weighs a cell that stays empty more than Pearson's does, and one that overflows less.
    """
    return _cell_test(counts, law, "g_test", lambda o, e: float(2 * scipy.special.xlogy(o, o / e).sum()))


def _cell_test(
    counts: Mapping[Outcome, int],
    law: Mapping[Outcome, float],
    name: str,
    statistic_of: Callable[[Floats, Floats], float],
) -> CellTest:
    _require_probabilities(list(law.values()), name)
    samples = sum(counts.values())
    if samples == 0:
        raise InvalidSetting(f"{name} was given 0 draws; draw at least one sample")
    possible = sorted((outcome for outcome, mass in law.items() if mass > 0), key=lambda outcome: law[outcome])
    expected = np.array([law[outcome] for outcome in possible]) * samples  # [cells], ascending
    observed = np.array([counts.get(outcome, 0) for outcome in possible], dtype=np.float64)  # [cells]
    impossible = samples - int(observed.sum())
    pooled = _pooled_cells(expected)
    cells_expected, cells_observed = _pool(expected, pooled), _pool(observed, pooled)
    statistic = statistic_of(cells_observed, cells_expected)
    degrees = len(cells_expected) - 1
    tail = float(scipy.special.chdtrc(degrees, statistic)) if degrees > 0 else 1.0
    return CellTest(
        samples=samples,
        statistic=statistic,
        degrees=degrees,
        p_value=0.0 if impossible else tail,
        pooled_mass=float(expected[:pooled].sum()) / samples,
        impossible=impossible,
    )


def _pooled_cells(expected: Floats) -> int:
    """How many of the ascending `expected` counts [cells] go into the pooled cell; 0: none needs pooling."""
    small = int(np.searchsorted(expected, MIN_EXPECTED))
    while 0 < small < len(expected) and expected[:small].sum() < MIN_EXPECTED:
        small += 1
    return small


def _pool(values: Floats, pooled: int) -> Floats:
    """Values [cells] -> [cells - pooled + 1], the first `pooled` added up (unchanged for 0)."""
    return np.concatenate([values[:pooled].sum(keepdims=True), values[pooled:]]) if pooled else values


def smallest_detectable_variation(samples: int, degrees: int, level: float, power: float = POWER) -> float:
    """The total variation between cells from which on a chi-squared test rejects with probability `power`.

    Whatever its direction: among all deviations of total variation d, the noncentrality
    `samples * sum (p - e)^2 / e` is least, 4 * samples * d^2, when half of the mass of e gains what the other
    half loses. Deviations of another shape are found sooner. At most 1; 1 without degrees of freedom.
    """
    if degrees < 1:
        return 1.0
    critical = scipy.special.chdtri(degrees, level)
    noncentrality = float(scipy.special.chndtrinc(critical, degrees, 1 - power))
    return min(1.0, math.sqrt(noncentrality / samples) / 2)


@dataclass(frozen=True)
class CoinTest:
    """A test of coins against the probability that each had when it was thrown.

    Attributes:
        trials: number of coins.
        observed: share that came up.
        expected: mean of their probabilities.
        variance: sum of probability * (1 - probability).
        z: (sum of outcomes - sum of probabilities) / sqrt(variance); 0 or infinite without variance.
        p_value: two-sided.
        impossible: coins that fell against a certain outcome.
    """

    trials: int
    observed: float
    expected: float
    variance: float
    z: float
    p_value: float
    impossible: int

    def numbers(self) -> dict[str, float]:
        """What a report keeps of it."""
        return {
            "trials": self.trials,
            "observed": self.observed,
            "expected": self.expected,
            "z": self.z,
            "p_value": self.p_value,
        }

    def smallest_detectable_rate(self, level: float, power: float = POWER) -> float:
        """The difference in rate from which on the test rejects with probability `power` (normal approximation)."""
        if self.trials == 0:
            return 1.0
        quantiles = -scipy.special.ndtri(level / 2) - scipy.special.ndtri(1 - power)
        return min(1.0, float(quantiles) * math.sqrt(self.variance) / self.trials)


def trend_test(outcomes: Sequence[bool], probabilities: Sequence[float], weights: Sequence[float]) -> CoinTest:
    """As `coin_test`, with a weight in [-1, 1] for each coin that was known before it was thrown.

    With weights that grow with time, it sees coins that come up too often first and too rarely later although their
    rate is right: the differences, weighted, are a martingale too, with variance sum of weight^2 p (1 - p). Coins of
    certain outcome have no trend; if they fall the other way it is for `coin_test` to say. `observed`
    and `expected` are the plain means; `z` has the sign of the trend.

    Raises:
        InvalidSetting: as `coin_test`; or a weight outside [-1, 1], or another number of them.
    """
    if len(weights) != len(outcomes) or any(not -1 <= weight <= 1 for weight in weights):
        raise InvalidSetting("trend_test needs one weight in [-1, 1] for each coin")
    plain = coin_test(outcomes, probabilities)
    chance, weight = np.clip(np.array(probabilities, dtype=np.float64), 0.0, 1.0), np.array(weights, dtype=np.float64)
    uncertain = (chance > CERTAIN) & (chance < 1 - CERTAIN)
    variance = float((weight**2 * chance * (1 - chance))[uncertain].sum())
    surplus = float((weight * (np.array(outcomes, dtype=np.float64) - chance))[uncertain].sum())
    z, p_value = (surplus / math.sqrt(variance), _two_sided(surplus, variance)) if variance > 0 else (0.0, 1.0)
    return replace(plain, variance=variance, z=z, p_value=p_value, impossible=0)


def coin_test(outcomes: Sequence[bool], probabilities: Sequence[float]) -> CoinTest:
    """Test the coins of a martingale: each probability is the one given everything that came before its coin.

    The differences outcome - probability are then uncorrelated, whatever decided how many coins were thrown, and their
    sum has the variance sum of probability * (1 - probability). With variance enough it is compared with a normal law;
    below `NORMAL_VARIANCE` by Freedman's inequality, which holds for every martingale and gives p-values that are
    too large rather than too small. Without variance any difference rejects, none accepts.

    Raises:
        InvalidSetting: different numbers of outcomes and probabilities, or one that is not a probability.
    """
    if len(outcomes) != len(probabilities):
        raise InvalidSetting(
            f"coin_test was given {len(outcomes)} outcomes and {len(probabilities)} probabilities; "
            "give one for each coin"
        )
    _require_probabilities(probabilities, "coin_test")
    came_up = np.array(outcomes, dtype=np.float64)  # [n]
    chance = np.clip(np.array(probabilities, dtype=np.float64), 0.0, 1.0)  # [n]
    certain = (chance <= CERTAIN) | (chance >= 1 - CERTAIN)
    impossible = int((certain & (np.abs(came_up - chance) > 0.5)).sum())
    variance = float((chance * (1 - chance))[~certain].sum())
    surplus = float((came_up - chance)[~certain].sum())
    if impossible:
        z, p_value = math.copysign(math.inf, float((came_up - chance).sum())), 0.0
    elif variance == 0:
        z, p_value = 0.0, 1.0
    else:
        z = surplus / math.sqrt(variance)
        p_value = _two_sided(surplus, variance)
    return CoinTest(
        trials=len(came_up),
        observed=float(came_up.mean()) if len(came_up) else 0.0,
        expected=float(chance.mean()) if len(chance) else 0.0,
        variance=variance,
        z=z,
        p_value=p_value,
        impossible=impossible,
    )


def _two_sided(surplus: float, variance: float) -> float:
    """Tail of a sum of coins less their probabilities. Freedman 1975, theorem 1.6, where the variance is small."""
    if variance >= NORMAL_VARIANCE:
        return float(2 * scipy.special.ndtr(-abs(surplus) / math.sqrt(variance)))
    t = abs(surplus)
    return min(1.0, 2 * math.exp(t - (t + variance) * math.log1p(t / variance)))


@dataclass
class Bet(Generic[Outcome]):
    """An anytime-valid test of draws against a law: a gambler's capital, who bets that the law is wrong.

    Before every draw the gambler stakes all on a mixture of the law and what was drawn so far; the capital then grows
    by the ratio of that mixture to the law. Under the law it is a martingale that begins at 1, so the chance that it
    *ever* reaches 1 / level is at most level (Ville 1939): it may be looked at after every draw, and stopped when it is
    sure. (The mixture is the Dirichlet-multinomial prediction, with the law as prior.)

    Attributes:
        law: masses summing to 1.
        prior: how many draws the law itself counts for in the mixture.
        log_capital: natural logarithm of the capital; infinite once an impossible outcome was drawn.
        counts: what was drawn.
    """

    law: Mapping[Outcome, float]
    prior: float = 30.0
    log_capital: float = 0.0
    counts: Counter[Outcome] = field(default_factory=Counter)

    def draw(self, outcome: Outcome) -> None:
        """Take one draw into account."""
        mass, drawn = self.law.get(outcome, 0.0), self.counts.total()
        if mass > 0:
            predicted = (self.counts[outcome] + self.prior * mass) / (drawn + self.prior)
            self.log_capital += math.log(predicted / mass)
        else:
            self.log_capital = math.inf
        self.counts[outcome] += 1

    def rejects(self, level: float = FAMILY_LEVEL) -> bool:
        """Whether the capital is at least 1 / level now."""
        return self.log_capital >= -math.log(level)


def holm(p_values: Sequence[float], level: float = FAMILY_LEVEL) -> list[bool]:
    """Which hypotheses of a family are rejected, in the order given (Holm 1979).

    The chance that any true hypothesis is rejected is at most `level`, however the tests depend on each other.

    Raises:
        InvalidSetting: a p-value that is not a probability. (A NaN compares with nothing: it would hide the others.)
    """
    _require_probabilities(p_values, "holm")
    rejected = [False] * len(p_values)
    for rank, index in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        if p_values[index] > level / (len(p_values) - rank):
            break
        rejected[index] = True
    return rejected


def _require_probabilities(values: Sequence[float], where: str) -> None:
    """Raises `InvalidSetting` unless all are within 0..1, give or take rounding."""
    for value in values:
        if not -CERTAIN <= value <= 1 + CERTAIN:  # false for NaN
            raise InvalidSetting(f"{where} was given {value} as a probability; give numbers in 0..1, none of them NaN")
