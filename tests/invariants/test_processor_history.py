"""Logits processors see, before each token, the whole sequence up to it, as in plain decoding."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from controls import broken, case_named, violations
from hypothesis import given
from hypothesis import strategies as st
from mutants import AcceptsEverything, HidesProposals
from strategies import cases
from subjects import assert_holds

from specproof.adapters.reference import ENGINE
from specproof.defects.draft_cache import TrimsRejectedPlusOne
from specproof.defects.mutations import with_decoder, with_drafter
from specproof.defects.processors import ShowsLastTokenOnly
from specproof.defects.target_cache import KeepsRejectedRows
from specproof.engine import Engine
from specproof.invariants import RUN_INVARIANTS
from specproof.pairs import toy
from specproof.runner import Run, run_case, run_turn


@pytest.mark.invariant("processor_history")
def test_processor_history_is_that_of_plain_decoding(run: Run) -> None:
    assert_holds("processor_history", run)


@pytest.mark.invariant("processor_history")
@given(data=st.data())
def test_processor_history_holds_for_drawn_cases(engine: Engine, data: st.DataObject) -> None:
    run, _ = run_turn(engine, data.draw(cases(engine.capabilities, toy())))
    assert_holds("processor_history", run)


# ----------------------------------------------------------------------------------------------- negative controls


@pytest.mark.parametrize(
    ("mutant", "message"),
    [
        (
            ShowsLastTokenOnly,
            r"processors saw 1 token \[\d+\] for the token at place 0 of the block, expected 3 tokens",
        ),
        (HidesProposals, r"processors saw 5 tokens .* for the token at place 1 of the block, expected 6 tokens"),
    ],
)
def test_processor_history_fails_on_another_history(mutant: type, message: str) -> None:
    found = violations("processor_history", run_case(with_decoder(mutant), case_named("plain/rejection/k4/T0/p1")))
    assert re.search(message, found[0].message), found[0]
    assert found[0].message.endswith("Plain decoding shows the whole sequence before each token.")


def test_processor_history_may_stop_behind_the_first_rejection_but_not_before() -> None:
    run = run_case(ENGINE, case_named("all_reject/greedy/k4/T0/p0"))
    first, second, *rest = run.boundaries
    assert second.contexts is not None
    for count, problems in ((5, 0), (1, 0), (0, 1)):
        shown = replace(run, boundaries=(first, replace(second, contexts=second.contexts[:count]), *rest))
        assert len(violations("processor_history", shown)) == problems
    found = violations("processor_history", shown)
    assert "the processors ran for 0 tokens, expected 1 to 5 (round 0" in found[0].message


def test_processor_history_allows_an_engine_to_keep_the_prompts_last_token_pending() -> None:
    """Nothing is drawn in prefill then, and the first round begins at the prompt."""
    run = run_case(ENGINE, replace(case_named("budget/greedy/k4/T0/n0")))
    assert run.boundaries[0].emitted == ()
    assert not violations("processor_history", run)
    shown = replace(run, boundaries=(replace(run.boundaries[0], contexts=((1, 2),)),))
    assert violations("processor_history", shown)[0].message.startswith("processors saw 2 tokens [1 2]")


def test_processor_history_does_not_apply_where_no_processor_ran() -> None:
    run = run_case(ENGINE, case_named("plain/greedy/k4/T0/p0"))
    unseen = replace(run, boundaries=tuple(replace(boundary, contexts=None) for boundary in run.boundaries))
    assert not RUN_INVARIANTS["processor_history"].applies(unseen)
    assert not violations("processor_history", unseen)


@pytest.mark.parametrize(
    "mutant", [with_decoder(AcceptsEverything), with_decoder(KeepsRejectedRows), with_drafter(TrimsRejectedPlusOne)],
    ids=lambda mutant: mutant.name,
)  # fmt: skip
def test_processor_history_is_silent_on_defects_of_other_kinds(mutant: Engine) -> None:
    for case in ("plain/rejection/k4/T0.8-penalties/p2", "mixed/greedy/k4/T0/p0"):
        assert "processor_history" not in broken(mutant, case)
