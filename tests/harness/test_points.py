"""Points go through every kind of end, and every rule with every k, and a point's case ends as its path says."""

from __future__ import annotations

import pytest
from points import ENDINGS, Point, kind_of, points_of
from subjects import Runs

from reference.values import Round
from specproof.engine import Engine
from specproof.grid import BLOCK_SIZES
from specproof.runner import Run

STOPS = {"first", "accepted", "bonus-at-k", "bonus-at-k+1", "correction", "rejected"}
FAULTS = {f"{place}-{when}" for when in ("before", "after")
          for place in ("target-prefill", "target-verify", "draft-prefill", "draft-propose", "catch-up")}  # fmt: skip
BUDGETS = {f"tokens-{number}" for number in ("none", "1", "2", "k", "k+1", "k+2", "2k+2")}
CLOSES = {f"after{count}" for count in range(1, max(BLOCK_SIZES) + 4)}
KINDS = {"budget": BUDGETS, "stop": STOPS, "close": CLOSES, "abort": FAULTS}


def points(engine: Engine, regime: str) -> list[Point]:
    """The points of an engine in one of the regimes that end turns in many ways; skips where it has none."""
    found = [point for point in points_of(engine.name, engine) if point.case.regime == regime]
    if not found or "draft_model" not in engine.capabilities.drafters:
        pytest.skip(f"{engine.name} cannot be put under {regime} with a draft model")
    return found


@pytest.mark.parametrize("regime", ENDINGS)
def test_points_have_every_kind_of_end_and_every_rule_with_every_k(engine: Engine, regime: str) -> None:
    cases = [point.case for point in points(engine, regime)]
    cold = [case for case in cases if case.sampling.temperature == 0 and case.draft is not None]
    assert {kind_of(case) for case in cold} == KINDS[regime]
    for rule in engine.capabilities.rules:
        assert {case.num_draft_tokens for case in cold if case.rule == rule} == set(BLOCK_SIZES), rule


def test_points_of_abort_raise_in_the_phase_that_they_name(engine: Engine, runs: Runs) -> None:
    for point in points(engine, "abort"):
        run = runs.of(engine, point.case)
        assert run.injected, point
        if engine.capabilities.rounds and "prefill" in point.path:
            assert not run.boundaries, point
        elif engine.capabilities.rounds and "catch-up" not in point.path:
            assert len(run.boundaries) == 1, f"{point}: in the first round"


def test_points_of_abort_catch_up_raise_after_a_full_acceptance(engine: Engine, runs: Runs) -> None:
    if not engine.capabilities.rounds:
        pytest.skip(f"{engine.name} does not show its rounds")
    for point in points(engine, "abort"):
        if "catch-up" in point.path and engine.capabilities.draft_schedule == "deferred":
            done = runs.of(engine, point.case).boundaries[1].round
            assert done is not None
            assert done.num_accepted == point.case.num_draft_tokens, f"{point}: the next round begins with it"
        elif "catch-up" in point.path:
            assert len(runs.of(engine, point.case).boundaries) == 1, f"{point}: the round with it is not committed"


def test_points_of_stop_have_it_accepted_rejected_as_correction_and_as_bonus(engine: Engine, runs: Runs) -> None:
    if not engine.capabilities.rounds:
        pytest.skip(f"{engine.name} does not show its rounds")
    for rule in engine.capabilities.rules:
        cold = [p.case for p in points(engine, "stop") if p.case.rule == rule and p.case.sampling.temperature == 0]
        assert set().union(*(roles(runs.of(engine, case)) for case in cold)) >= {
            "accepted", "rejected", "correction", "bonus"
        }, rule  # fmt: skip


def roles(run: Run) -> set[str]:
    """The parts that stop tokens play in the rounds of a run."""
    rounds = [boundary.round for boundary in run.boundaries if boundary.round is not None]
    return set().union(*(_roles(done, run.case.stop_tokens) for done in rounds)) if rounds else set()


def _roles(done: Round, stops: frozenset[int]) -> set[str]:
    """A rejected stop token counts only if the round did not end the turn."""
    if done.emitted[-1] in stops:
        full = done.num_accepted == len(done.drafted)
        return {"accepted"} if len(done.emitted) <= done.num_accepted else {"bonus" if full else "correction"}
    return {"rejected"} if stops & set(done.drafted[done.num_accepted :]) else set()
