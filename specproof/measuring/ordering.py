"""Which acceptance rule must accept more than which, checked on the very distributions of a pair.

For any p and q: sum_x p q <= the agreement of `coupled` <= sum_x min(p, q), position by position. (`coupled`: the term
of x is p q / sum_y max(p(y) q(x), q(y) p(x)), whose denominator is at most p + q - p q <= 1; and no coupling agrees
more often than the maximal one.) And for any block, P(at least i are accepted) is at least as large by `block` as by
`rejection`: w_i = min(w_(i-1) r_i, 1) >= w_(i-1) min(r_i, 1), with r_i = p_i(d_i) / q_i(d_i).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import scipy.stats
from numpy.typing import NDArray

from reference.values import Round
from specproof.statistics import holm

Floats = NDArray[np.float64]

ORDER = ("sampler_match", "coupled", "rejection", "block")
"""By how much they accept, the least first."""
NOISE = 1e-6
"""Violations smaller than this are rounding: float32 engines report probabilities."""
ALIKE = 1e-9
"""Differences of means that are as near as this are the same, but for rounding."""


def coupled_agreement(p: Floats, q: Floats) -> float:
    """The closed form of `coupled`, sum_x 1 / sum_y max(p(y) / p(x), q(y) / q(x)), in V log V steps. p, q: [V].

    max(p(y) / p(x), q(y) / q(x)) is the former where q(y) / p(y) <= q(x) / p(x). Sorted by that quotient, the inner
    sum is the mass of p up to x over p(x), and that of q behind x over q(x).
    """
    both = (p > 0) & (q > 0)
    only_p, only_q = float(p[q <= 0].sum()), float(q[p <= 0].sum())  # quotients 0 and infinite: first and last
    order = np.argsort(q[both] / p[both])
    p, q = p[both][order], q[both][order]
    p_up_to, q_behind = only_p + np.cumsum(p), only_q + (np.cumsum(q[::-1])[::-1] - q)
    return float((1 / (p_up_to / p + q_behind / q)).sum())


@dataclass(frozen=True)
class Comparison:
    """Rules in their theoretical order, the least first, and the mean of what each expects; on the same places.

    Attributes:
        means: rule -> mean over the places.
        places: positions or blocks.
        violations: places where the order does not hold.
    """

    means: dict[str, float]
    places: int
    violations: int


def compare_positions(distributions: Iterable[tuple[Floats, Floats]]) -> Comparison:
    """Acceptance at a position by the rules that decide position by position, on pairs of p and q, each [V]."""
    rows = [(float(p @ q), coupled_agreement(p, q), float(np.minimum(p, q).sum())) for p, q in distributions]
    return _compared(ORDER[:3], rows)


def compare_blocks(rounds: Iterable[Round]) -> Comparison:
    """Accepted proposals per block by `rejection` and by `block`, given the proposals; rounds that report p and q."""
    return _compared(ORDER[2:], [_expected_accepted(done) for done in rounds if done.p and done.q])


def _expected_accepted(done: Round) -> tuple[float, float]:
    alone = weight = 1.0
    by_rejection = by_block = 0.0
    for p, q in zip(done.p, done.q, strict=True):
        alone, weight = alone * min(p / q, 1.0), min(weight * p / q, 1.0)
        by_rejection, by_block = by_rejection + alone, by_block + weight
    return by_rejection, by_block


def _compared(rules: Sequence[str], rows: Sequence[Sequence[float]]) -> Comparison:
    means = {rule: math.fsum(column) / len(rows) for rule, column in zip(rules, zip(*rows, strict=True), strict=False)}
    wrong = sum(any(less > more + NOISE for less, more in pairwise(row)) for row in rows)
    return Comparison(means, len(rows), wrong)


@dataclass(frozen=True)
class Step:
    """Two neighbours of the order, as measured: accepted proposals per full round.

    Attributes:
        less, more: the rules.
        difference: by how much `more` accepted more per round, the mean over the prompts that both ran.
        p_value: of the hypothesis that they accept the same: two-sided paired t-test over the prompts, since the rounds
            and turns behind one prompt are not independent. None where there are fewer than two, or all differ alike.
        seen: whether that hypothesis is rejected, all neighbours together (Holm, `FAMILY_LEVEL`).
    """

    less: str
    more: str
    difference: float
    p_value: float | None
    seen: bool = False

    @property
    def verdict(self) -> str:
        """In words."""
        if self.p_value is None:
            return "not tested: too few prompts, or all differ alike"
        if not self.seen:
            return "within the noise"
        return "as expected" if self.difference >= 0 else "the other way round"


def measured_order(accepted: Mapping[str, Sequence[Sequence[int]]]) -> list[Step]:
    """Compare neighbours among the rules that were measured; two that have no prompt in common are left out.

    Args:
        accepted: rule -> prompt -> accepted proposals of each full round behind it, in all its turns; prompt i of all
            rules is the same.
    """
    rules = [rule for rule in ORDER if any(map(len, accepted.get(rule, ())))]
    steps = [step for less, more in pairwise(rules) for step in _step(less, more, accepted)]
    tested = {index: step.p_value for index, step in enumerate(steps) if step.p_value is not None}
    for index, seen in zip(tested, holm(list(tested.values())), strict=True):
        steps[index] = replace(steps[index], seen=seen)
    return steps


def _step(less: str, more: str, accepted: Mapping[str, Sequence[Sequence[int]]]) -> Iterator[Step]:
    both = [(a, b) for a, b in zip(accepted[less], accepted[more], strict=True) if len(a) and len(b)]
    if not both:
        return
    differences = np.array([np.mean(b) - np.mean(a) for a, b in both])
    alike = len(both) < 2 or float(np.ptp(differences)) < ALIKE
    p_value = None if alike else float(scipy.stats.ttest_1samp(differences, 0.0).pvalue)
    yield Step(less, more, float(differences.mean()), p_value)
