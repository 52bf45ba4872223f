"""Every layer of both caches holds prompt + emitted - 1 rows, at every round boundary and after every exit."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from controls import broken, case_named, never_agreeing, violations
from hypothesis import given
from hypothesis import strategies as st
from mutants import (
    AcceptsEverything,
    DropsTheWrongRows,
    ForgetsCloseCleanUp,
    ForgetsRollback,
    ReportsUnnormalisedQ,
    SpoilsOneRow,
)
from strategies import cases
from subjects import assert_holds

from specproof.adapters.reference import DEFERRED, EAGER, ENGINE
from specproof.defects.batch import RanksDrawApart
from specproof.defects.draft_cache import NeverCatchesUp, NeverTrims, TrimsRejectedPlusOne
from specproof.defects.exit import EndsByItsLastToken, NeverCommitsStop
from specproof.defects.mutations import with_decoder, with_drafter
from specproof.defects.processors import ShowsLastTokenOnly
from specproof.defects.target_cache import KeepsRejectedRows, TrimsFirstLayerOnly
from specproof.engine import Engine
from specproof.pairs import toy
from specproof.regimes import REGIMES
from specproof.runner import Run, run_case, run_turn


@pytest.mark.invariant("target_cache_offset")
def test_target_cache_offset_is_prompt_plus_emitted_minus_one(run: Run) -> None:
    assert_holds("target_cache_offset", run)


@pytest.mark.invariant("draft_cache_offset")
def test_draft_cache_offset_is_prompt_plus_emitted_minus_one(run: Run) -> None:
    assert_holds("draft_cache_offset", run)


@pytest.mark.invariant("target_cache_offset")
@given(data=st.data())
def test_target_cache_offset_holds_for_drawn_cases(engine: Engine, data: st.DataObject) -> None:
    run, _ = run_turn(engine, data.draw(cases(engine.capabilities, toy())))
    assert_holds("target_cache_offset", run)


@pytest.mark.invariant("draft_cache_offset")
@given(data=st.data())
def test_draft_cache_offset_holds_for_drawn_cases(engine: Engine, data: st.DataObject) -> None:
    run, _ = run_turn(engine, data.draw(cases(engine.capabilities, toy())))
    assert_holds("draft_cache_offset", run)


# ----------------------------------------------------------------------------------------------- negative controls


def test_cache_offset_names_the_mlxcel_defect_with_its_numbers() -> None:
    """lablup/mlxcel#994: one row stays in the drafter's cache, whatever is emitted."""
    run = run_case(with_drafter(TrimsRejectedPlusOne), never_agreeing(num_draft_tokens=4, max_tokens=24))
    assert run.exit.target_offsets == (24, 24, 24)
    assert run.exit.draft_offsets == (1, 1, 1)
    found = violations("draft_cache_offset", run)
    assert found[0].round == 0
    assert found[-1].message == (
        "draft cache holds 1 row, expected 24 = prompt 1 + emitted 24 - 1 (at exit by length, all_reject, k=4): "
        "23 rows too few. Matches D01: trimming rejected + 1 instead of rejected - 1."
    )
    assert not violations("target_cache_offset", run)
    assert not violations("greedy_parity", run), "the output stays right: that is why nobody notices"


@pytest.mark.parametrize("k", [1, 2, 3, 4, 5, 6])
def test_cache_offset_sees_the_mlxcel_defect_for_every_k(k: int) -> None:
    run = run_case(with_drafter(TrimsRejectedPlusOne), never_agreeing(k, max_tokens=8))
    assert run.exit.draft_offsets == (1, 1, 1)
    assert "Matches D01" in violations("draft_cache_offset", run)[0].message


@pytest.mark.parametrize(
    ("mutant", "case", "message"),
    [
        (with_drafter(NeverCatchesUp), "all_accept/greedy/k3/T0/p2", r"1 row too few\. Matches D02: after a full"),
        (with_drafter(NeverTrims), "mixed/greedy/k4/T0/p0", r"rows too many\. Matches D04: rejected proposals"),
        (with_decoder(KeepsRejectedRows), "mixed/greedy/k4/T0/p0", r"rows? too many\. Matches D23: rejected proposals"),
        (with_decoder(TrimsFirstLayerOnly), "mixed/greedy/k4/T0/p0", r"holds \d+ rows in layer 1 of 3, expected \d+ ="),
        (with_decoder(EndsByItsLastToken), "stop/greedy/k4/T0/accepted-at3", r"too many\. Matches D52: what the"),
        (with_decoder(NeverCommitsStop), "stop/greedy/k4/T0/accepted-at3", r"too few\. Matches D53: a turn that ends"),
        (with_decoder(RanksDrawApart), "mixed/coupled/k4/T0.8-window/p2", r"Trim no more than was rejected, k - a\."),
        (with_decoder(ForgetsCloseCleanUp), "close/greedy/k4/T0/after2", r"at exit by close.*Trim k - a rows after a"),
        (with_decoder(ForgetsRollback), "abort/greedy/k4/T0/target1-after", r"at exit by abort, abort, k=4\): \d row"),
    ],
)  # fmt: skip
def test_cache_offset_fails_on_wrong_bookkeeping(mutant: Engine, case: str, message: str) -> None:
    run = run_case(mutant, case_named(case))
    found = [*violations("target_cache_offset", run), *violations("draft_cache_offset", run)]
    assert any(re.search(message, violation.message) for violation in found), found


@pytest.mark.parametrize(
    "mutant",
    [
        with_decoder(DropsTheWrongRows),
        with_decoder(AcceptsEverything),
        with_decoder(ShowsLastTokenOnly),
        with_drafter(SpoilsOneRow),
        with_drafter(ReportsUnnormalisedQ),
    ],
    ids=lambda mutant: mutant.name,
)
def test_cache_offset_is_silent_on_defects_of_other_kinds(mutant: Engine) -> None:
    for case in ("mixed/greedy/k4/T0/p0", "all_accept/greedy/k3/T0/p2", "plain/sampler_match/k4/T0.8/p1"):
        assert not broken(mutant, case) & {"target_cache_offset", "draft_cache_offset"}


@pytest.mark.parametrize("scheduled", [EAGER, DEFERRED], ids=lambda scheduled: scheduled.name)
@pytest.mark.parametrize("regime", REGIMES)
def test_cache_offset_holds_for_the_other_draft_schedules(scheduled: Engine, regime: str) -> None:
    for case in REGIMES[regime].cases(toy(), scheduled.capabilities, 0, quick=True):
        if case.rule == "rejection" and case.drafter == "draft_model":
            run, _ = run_turn(scheduled, case)
            assert_holds("target_cache_offset", run)
            assert_holds("draft_cache_offset", run)


def test_draft_cache_offset_allows_a_lag_only_to_engines_that_declare_a_deferred_drafter() -> None:
    run = run_case(DEFERRED, case_named("all_accept/greedy/k3/T0/p2"))
    assert not violations("draft_cache_offset", run)
    undeclared = violations("draft_cache_offset", replace(run, capabilities=ENGINE.capabilities))
    assert "1 row too few. Forward the last proposal after a full acceptance" in undeclared[0].message


def test_cache_offset_is_judged_by_the_declared_convention() -> None:
    run = run_case(ENGINE, case_named("plain/greedy/k4/T0/p0"))
    ahead = replace(run, capabilities=replace(run.capabilities, offset_convention=1))
    found = violations("target_cache_offset", ahead)
    assert len(found) == len(run.boundaries) + 1
    assert "- 1 + 1 (the engine's convention)" in found[0].message


def test_cache_offset_accepts_no_rows_after_an_exception_in_prefill_but_not_unequal_layers() -> None:
    run = run_case(ENGINE, case_named("abort/greedy/k4/T0/target0-after"))
    assert run.exit.target_offsets == (0, 0, 0)
    assert not violations("target_cache_offset", run)
    torn = replace(run, exit=replace(run.exit, target_offsets=(3, 3, 2)))
    (found,) = violations("target_cache_offset", torn)
    assert found.message.startswith("target cache holds (3, 3, 2) rows by layer after an exception in prefill")
