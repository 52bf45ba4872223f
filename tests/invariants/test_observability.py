"""What an engine does not show is never taken for granted: it is not observable, and counts as nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest
from controls import case_named, violations

from specproof.adapters.reference import ENGINE
from specproof.engine import Boundary, Capabilities, Observation
from specproof.invariants import RUN_INVARIANTS
from specproof.runner import run_case

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


@pytest.mark.parametrize("name", sorted(set(RUN_INVARIANTS) - {"emitted_block", "greedy_parity", "block_table"}))
def test_a_run_that_shows_nothing_is_no_case_and_no_violation(name: str) -> None:
    run = run_case(ENGINE, case_named("mixed/greedy/k4/T0/p0"))
    bare = tuple(Boundary(boundary.emitted, None) for boundary in run.boundaries)
    blind = replace(run, boundaries=bare, exit=Observation(), continuation=None)
    assert RUN_INVARIANTS[name].applies(run)
    assert not RUN_INVARIANTS[name].applies(blind)
    assert not violations(name, blind)


@pytest.mark.parametrize("name", RUN_INVARIANTS)
def test_every_invariant_says_what_it_claims_and_what_it_cannot_see(name: str) -> None:
    invariant = RUN_INVARIANTS[name]
    assert invariant.name == name
    for text in (invariant.statement, invariant.blind_spot):
        assert len(text) > 20
        assert not text.endswith("."), "a clause, to be put into a sentence"
