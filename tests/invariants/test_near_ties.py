"""Where rounding may turn a near-tie, a figure is right if it is that of either side, and only then."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from controls import violations

from reference.values import DraftDistribution, SamplingParams
from specproof.adapters.reference import ENGINE
from specproof.engine import Case, Floats, ModelSpec
from specproof.oracle import oracle_of
from specproof.pairs import toy
from specproof.runner import Run, run_case

GREEDY = SamplingParams(temperature=0.0)
TOP_1 = SamplingParams(temperature=0.8, top_k=1)
NOISE = 1e-3
CLOSE, WIDE = 2e-4, 0.2
"""Gaps of the two highest logits: one that float32 may turn, and one that it cannot."""


@dataclass(frozen=True)
class Gap:
    """Puts the second highest logit so far below the highest."""

    size: float

    def __call__(self, logits: Floats, positions: np.ndarray) -> Floats:
        changed = logits.copy()
        first, second = np.argsort(-logits, axis=-1)[:, :2].T
        rows = np.arange(len(logits))
        changed[rows, second] = logits[rows, first] - self.size
        return changed


def tied_run(gap: float, sampling: SamplingParams) -> Run:
    """A float32 run of one proposal, target and drafter with this gap everywhere."""
    case = Case(
        id="tied",
        regime="plain",
        target=ModelSpec(toy().target, Gap(gap)),
        draft=ModelSpec(toy().draft, Gap(gap)),
        prompt=(3, 1, 4),
        rule="sampler_match",
        sampling=sampling,
        num_draft_tokens=1,
        max_tokens=3,
    )
    run = run_case(ENGINE, case)
    return replace(run, capabilities=replace(run.capabilities, precision="float32"))


def other_token(run: Run) -> int:
    """The drafter's second choice for the first proposal."""
    prefix = run.case.prompt + run.boundaries[0].emitted
    return int(np.argsort(-oracle_of(run.case.draft).logits(prefix)[-1])[1])


def with_q(run: Run, token: int, q: Floats) -> Run:
    """The run with another first proposal and q, and no figures."""
    first, second, *rest = run.boundaries
    done = replace(second.round, drafted=(token,), p=(), q=(), sum_min=(), sum_prod=())
    changed = replace(second, round=done, draft_distributions=(DraftDistribution.from_dense(q),))
    return replace(run, boundaries=(first, changed, *rest))


def with_figures(run: Run, **figures: tuple[float, ...]) -> Run:
    """The run with other figures of its first round."""
    first, second, *rest = run.boundaries
    return replace(run, boundaries=(first, replace(second, round=replace(second.round, **figures)), *rest))


def point(token: int) -> Floats:
    return DraftDistribution.point_mass(token, 32).dense()


@pytest.mark.parametrize("sampling", [GREEDY, TOP_1], ids=["argmax", "edge of top-k"])
def test_alternatives_are_the_other_sides_of_near_ties(sampling: SamplingParams) -> None:
    close, wide = (oracle_of(ModelSpec(toy().target, Gap(gap))) for gap in (CLOSE, WIDE))
    first, second = np.argsort(-close.logits((3, 1, 4))[-1])[:2]
    found = close.alternatives((3, 1, 4), sampling, NOISE)
    assert found
    assert all(q[second] == 1 and q[first] == 0 for q in found)
    assert wide.alternatives((3, 1, 4), sampling, NOISE) == []
    assert close.alternatives((3, 1, 4), SamplingParams(), NOISE) == []


def test_alternatives_see_the_edges_of_top_p_and_min_p() -> None:
    oracle = oracle_of(ModelSpec(toy().target))
    masses = np.sort(oracle.distribution((3, 1, 4), SamplingParams()))[::-1]
    edge = float(masses[:3].sum())
    assert oracle.alternatives((3, 1, 4), SamplingParams(top_p=edge), NOISE)
    assert not oracle.alternatives((3, 1, 4), SamplingParams(top_p=edge - masses[2] / 2), NOISE)
    assert oracle.alternatives((3, 1, 4), SamplingParams(min_p=float(masses[2] / masses[0])), NOISE)


@pytest.mark.parametrize("sampling", [GREEDY, TOP_1], ids=["argmax", "edge of top-k"])
def test_honest_q_accepts_a_turned_tie_and_nothing_else(sampling: SamplingParams) -> None:
    close, wide = tied_run(CLOSE, sampling), tied_run(WIDE, sampling)
    assert not violations("honest_q", with_q(close, other_token(close), point(other_token(close))))
    assert violations("honest_q", with_q(wide, other_token(wide), point(other_token(wide))))
    third = (other_token(close) + 1) % 32
    half = 0.95 * point(other_token(close)) + 0.05 * point(third)
    assert violations("honest_q", with_q(close, other_token(close), half))
    exact = replace(close, capabilities=replace(close.capabilities, precision="float64"))
    assert violations("honest_q", with_q(exact, other_token(exact), point(other_token(exact))))


@pytest.mark.parametrize("sampling", [GREEDY, TOP_1], ids=["argmax", "edge of top-k"])
def test_counters_accept_the_figures_of_a_turned_tie_and_no_others(sampling: SamplingParams) -> None:
    """Without the tokens that a turned tie would have emitted, so p alone is what it can have turned."""
    close, wide = tied_run(CLOSE, sampling), tied_run(WIDE, sampling)
    prefix = close.case.prompt + close.boundaries[0].emitted
    (turned, *_) = close.target.alternatives(prefix, sampling, NOISE)
    drafted = close.boundaries[1].round.drafted[0]
    assert not violations("counters", close)
    assert not violations("counters", with_figures(close, p=(float(turned[drafted]),)))
    assert violations("counters", with_figures(close, p=(0.123,)))
    assert violations("counters", with_figures(close, q=(0.9,)))
    assert violations("counters", with_figures(wide, p=(1 - wide.boundaries[1].round.p[0],)))
