"""What an engine does not show is never taken for granted: it is not observable, and counts as nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest
from controls import case_named, violations

from specproof.adapters.reference import ENGINE, ReferenceEngine
from specproof.audit import Settings, audit
from specproof.engine import Boundary, Capabilities, Observation
from specproof.invariants import RUN_INVARIANTS
from specproof.report import cell, notes
from specproof.runner import Run, run_case

NEEDS = {
    "target_cache_offset": {"target_offsets": True},
    "draft_cache_offset": {"draft_offsets": True},
    "cache_content": {"cache_contents": True},
    "honest_q": {"rounds": True, "draft_distributions": True},
    "exit_state": {"resumable": True},
    "processor_history": {"rounds": True, "contexts": True},
    "counters": {"rounds": True},
    "block_table": {"block_tables": True},
    "log_probabilities": {"rounds": True, "log_probabilities": True},
    "greedy_parity": {"lossy": False},
    "emitted_block": {},
}


@pytest.mark.parametrize("name", RUN_INVARIANTS)
def test_an_invariant_is_observable_exactly_where_the_engine_declares_what_it_needs(name: str) -> None:
    nothing = Capabilities(rules=frozenset({"greedy"}), rounds=False, lossy=True)
    assert RUN_INVARIANTS[name].observable(replace(nothing, **NEEDS[name]))
    for need, value in NEEDS[name].items():
        assert not RUN_INVARIANTS[name].observable(replace(nothing, **{**NEEDS[name], need: not value}))


OF_CACHES = {"target_cache_offset", "draft_cache_offset", "cache_content", "exit_state"}
NOTHING = {"target_offsets": False, "draft_offsets": False, "cache_contents": False}


def blind_run(**declared: bool) -> Run:
    """A run that shows nothing but tokens, of an engine that declares something else."""
    run = run_case(ENGINE, case_named("mixed/greedy/k4/T0/p0"))
    bare = tuple(Boundary(boundary.emitted, None) for boundary in run.boundaries)
    capabilities = replace(run.capabilities, **declared)
    return replace(run, capabilities=capabilities, boundaries=bare, exit=Observation(), continuation=None)


@pytest.mark.parametrize("name", sorted(set(RUN_INVARIANTS) - {"emitted_block", "greedy_parity", "block_table"}))
def test_a_run_that_shows_nothing_is_no_case_and_no_violation(name: str) -> None:
    assert RUN_INVARIANTS[name].applies(run_case(ENGINE, case_named("mixed/greedy/k4/T0/p0")))
    blind = blind_run(**NOTHING)
    assert not RUN_INVARIANTS[name].applies(blind)
    assert not violations(name, blind)


@pytest.mark.parametrize("name", sorted(OF_CACHES))
def test_an_engine_that_declares_what_it_does_not_show_fails_and_is_told_to_declare_less(name: str) -> None:
    blind = blind_run()
    assert RUN_INVARIANTS[name].applies(blind)
    found = violations(name, blind)
    assert found
    assert all("the engine declares " in told.message and "Declare less." in told.message for told in found)


def test_a_part_that_an_engine_never_shows_is_named_beside_its_result() -> None:
    class NeverResumes(ReferenceEngine):
        @property
        def capabilities(self) -> Capabilities:
            return replace(super().capabilities, resumable=False)

    settings = Settings(quick=True, regimes=("empty",), checks=("exit_state",))
    report = audit({"partial": NeverResumes(), "whole": ENGINE}, settings)
    partial, whole = (report.engines[name].checks["exit_state"] for name in ("partial", "whole"))
    assert partial.result.hidden == ("a second turn",)
    assert cell(partial).startswith("holds in part (")
    assert whole.result.hidden == ()
    assert cell(whole).startswith("holds (")
    assert notes(report) == ["partial exit_state: not shown: a second turn"]


def test_a_part_that_no_case_could_show_is_not_held_against_the_engine() -> None:
    settings = Settings(case_id="plain/rejection/k4/T0.8-penalties/p2", checks=("exit_state",))
    check = audit({"reference": ENGINE}, settings).engines["reference"].checks["exit_state"]
    assert (check.result.status, check.result.hidden) == ("holds", ())


@pytest.mark.parametrize("name", RUN_INVARIANTS)
def test_every_invariant_says_what_it_claims_and_what_it_cannot_see(name: str) -> None:
    invariant = RUN_INVARIANTS[name]
    assert invariant.name == name
    for text in (invariant.statement, invariant.blind_spot):
        assert len(text) > 20
        assert not text.endswith("."), "a clause, to be put into a sentence"
