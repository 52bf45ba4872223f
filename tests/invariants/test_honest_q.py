"""The reported q is the distribution that the proposal was really drawn from."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from controls import broken, case_named, violations
from hypothesis import given
from hypothesis import strategies as st
from mutants import AcceptsEverything, ReportsUnnormalisedQ
from strategies import cases
from subjects import assert_holds

from reference.values import DraftDistribution
from specproof.adapters.reference import ENGINE
from specproof.defects.acceptance import DrawsArgmax, ReportsUntemperedQ
from specproof.defects.draft_cache import NeverTrims, TrimsRejectedPlusOne
from specproof.defects.mutations import with_decoder, with_drafter
from specproof.defects.target_cache import KeepsRejectedRows
from specproof.engine import Engine
from specproof.pairs import toy
from specproof.runner import Run, run_case, run_turn


@pytest.mark.invariant("honest_q")
def test_honest_q_equals_the_drafters_distribution_without_a_cache(run: Run) -> None:
    assert_holds("honest_q", run)


@pytest.mark.invariant("honest_q")
@given(data=st.data())
def test_honest_q_holds_for_drawn_cases(engine: Engine, data: st.DataObject) -> None:
    run, _ = run_turn(engine, data.draw(cases(engine.capabilities, toy())))
    assert_holds("honest_q", run)


# ----------------------------------------------------------------------------------------------- negative controls


@pytest.mark.parametrize(
    ("mutant", "case", "message"),
    [
        (ReportsUntemperedQ, "plain/rejection/k4/T0.8/p0", r"differs by .* recomputed without a cache"),
        (ReportsUnnormalisedQ, "plain/greedy/k4/T0/p0", r"sums to 2, expected 1: report it after temperature"),
        (TrimsRejectedPlusOne, "mixed/rejection/k4/T0.8/p0", r"differs by .* recomputed without a cache"),
        (NeverTrims, "mixed/rejection/k4/T0.8/p0", r"differs by .* recomputed without a cache"),
    ],
)
def test_honest_q_fails_on_a_q_that_was_not_drawn_from(mutant: type, case: str, message: str) -> None:
    found = violations("honest_q", run_case(with_drafter(mutant), case_named(case)))
    assert re.search(message, found[0].message), found[0]


def _with_first_q(run: Run, *reported: DraftDistribution) -> Run:
    first, second, *rest = run.boundaries
    return replace(run, boundaries=(first, replace(second, draft_distributions=reported), *rest))


def test_honest_q_wants_mass_on_the_drafted_token_and_one_q_for_each() -> None:
    run = run_case(ENGINE, case_named("plain/greedy/k4/T0/p0"))
    boundary = run.boundaries[1]
    assert boundary.round is not None
    assert boundary.draft_distributions is not None
    token, *_ = boundary.round.drafted
    other = DraftDistribution.point_mass((token + 1) % 32, 32)
    (found,) = violations("honest_q", _with_first_q(run, other, *boundary.draft_distributions[1:]))
    assert f"q of proposal 0 gives the drafted token {token} no mass" in found.message
    (found,) = violations("honest_q", _with_first_q(run, other))
    assert "1 distributions were shown for 4 proposals" in found.message


def test_honest_q_knows_that_a_drafter_without_a_model_is_certain() -> None:
    run = run_case(ENGINE, case_named("all_accept/rejection/k4/T0.8/cycle/lookup"))
    boundary = run.boundaries[1]
    assert boundary.round is not None
    assert boundary.draft_distributions is not None
    assert boundary.round.drafted
    assert not violations("honest_q", run)
    spread = DraftDistribution.from_dense(boundary.draft_distributions[0].dense() * 0.5 + 0.5 / 32)
    assert violations("honest_q", _with_first_q(run, spread, *boundary.draft_distributions[1:]))


def test_honest_q_judges_a_block_by_the_drafter_that_made_it() -> None:
    """A lookup that takes turns with a draft model is certain in its own rounds, and in no others."""
    run = run_case(ENGINE, case_named("plain/rejection/k4/T0.8/p0"))
    first, second, *rest = run.boundaries
    assert second.round is not None
    looked_up = tuple(DraftDistribution.point_mass(token, 32) for token in second.round.drafted)
    for reported, proposer, wrong in (
        (second.draft_distributions, "draft_model", False),
        (second.draft_distributions, "prompt_lookup", True),
        (looked_up, "prompt_lookup", False),
        (looked_up, "draft_model", True),
    ):
        told = replace(second, draft_distributions=reported, proposer=proposer)
        assert bool(violations("honest_q", replace(run, boundaries=(first, told, *rest)))) == wrong


def test_honest_q_is_blind_to_how_the_token_was_drawn() -> None:
    """A q that is reported rightly and drawn from wrongly is for `exact_law` to see."""
    assert "honest_q" not in broken(with_drafter(DrawsArgmax), "plain/rejection/k4/T0.8/p0")


@pytest.mark.parametrize("mutant", [AcceptsEverything, KeepsRejectedRows])
def test_honest_q_is_silent_on_defects_of_the_target(mutant: type) -> None:
    for case in ("mixed/rejection/k4/T0.8/p0", "plain/greedy/k4/T0/p0"):
        assert "honest_q" not in broken(with_decoder(mutant), case)
