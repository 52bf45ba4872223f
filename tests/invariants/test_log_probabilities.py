"""The log-probability beside a token is the one with which plain decoding draws it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from controls import broken, case_named, violations
from hypothesis import given
from hypothesis import strategies as st
from mutants import ReportsUnnormalisedQ
from strategies import cases
from subjects import assert_holds

from specproof.adapters.reference import ENGINE
from specproof.defects.acceptance import IgnoresTemperature, SoftmaxTwice
from specproof.defects.draft_cache import NeverTrims
from specproof.defects.metrics import CountsOneMore, LeavesLogProbabilitiesEmpty
from specproof.defects.mutations import with_decoder, with_drafter
from specproof.engine import Engine
from specproof.invariants import RUN_INVARIANTS
from specproof.pairs import toy
from specproof.runner import Run, run_case, run_turn

WARM = "mixed/rejection/k4/T0.8/p1"


@pytest.mark.invariant("log_probabilities")
def test_log_probabilities_are_those_of_plain_decoding(run: Run) -> None:
    assert_holds("log_probabilities", run)


@pytest.mark.invariant("log_probabilities")
@given(data=st.data())
def test_log_probabilities_hold_for_drawn_cases(engine: Engine, data: st.DataObject) -> None:
    if RUN_INVARIANTS["log_probabilities"].observable(engine.capabilities):
        run, _ = run_turn(engine, data.draw(cases(engine.capabilities, toy())))
        assert_holds("log_probabilities", run)


# ----------------------------------------------------------------------------------------------- negative controls


@pytest.mark.parametrize("mutant", [LeavesLogProbabilitiesEmpty, IgnoresTemperature, SoftmaxTwice])
def test_log_probabilities_fail_where_they_are_not_those_of_the_draw(mutant: type) -> None:
    found = violations("log_probabilities", run_case(with_decoder(mutant), case_named(WARM)))
    assert "the log-probability of token " in found[0].message
    assert "is reported as " in found[0].message


def test_log_probabilities_name_token_place_and_both_figures() -> None:
    """ggml-org/llama.cpp#27972: accepted proposals have the 0 that their record began with."""
    run = run_case(with_decoder(LeavesLogProbabilitiesEmpty), case_named(WARM))
    found = violations("log_probabilities", run)
    assert "emitted at place 0, is reported as 0, expected -" in found[0].message
    assert found[0].round is not None


def test_the_figure_of_the_token_that_prefill_draws_is_judged_too() -> None:
    """It belongs to no round, and is the only token of a turn whose budget is 1."""
    run = run_case(ENGINE, case_named(WARM))
    first, *rest = run.boundaries
    assert first.log_probabilities is not None
    wrong = replace(first, log_probabilities=(first.log_probabilities[0] - 0.5,))
    (found,) = violations("log_probabilities", replace(run, boundaries=(wrong, *rest)))
    assert found.round is None
    assert "emitted at place 0, is reported as " in found.message
    assert "(prefill, " in found.message


def test_a_missing_figure_is_a_violation() -> None:
    run = run_case(ENGINE, case_named(WARM))
    first, second, *rest = run.boundaries
    assert second.log_probabilities is not None
    short = replace(second, log_probabilities=second.log_probabilities[:-1])
    found = violations("log_probabilities", replace(run, boundaries=(first, short, *rest)))
    count = len(second.log_probabilities)
    assert f"{count - 1} log-probabilities are reported for {count} emitted tokens" in found[0].message


@pytest.mark.parametrize(
    "mutant", [with_decoder(CountsOneMore), with_drafter(ReportsUnnormalisedQ), with_drafter(NeverTrims)],
    ids=lambda mutant: mutant.name,
)  # fmt: skip
def test_log_probabilities_are_silent_on_defects_of_other_kinds(mutant: Engine) -> None:
    for case in (WARM, "mixed/greedy/k4/T0/p0"):
        assert "log_probabilities" not in broken(mutant, case)
