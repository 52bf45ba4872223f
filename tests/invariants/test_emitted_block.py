"""A round emits its accepted proposals and one more token, unless a stop token or the budget cut the block."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from controls import broken, case_named, violations
from hypothesis import given
from hypothesis import strategies as st
from mutants import DropsBonus, DropsTheWrongRows, ReportsUnnormalisedQ
from strategies import cases
from subjects import assert_holds

from specproof.adapters.reference import ENGINE
from specproof.defects.draft_cache import TrimsRejectedPlusOne
from specproof.defects.mutations import with_decoder, with_drafter
from specproof.defects.stop import IgnoresBudget, TestsLastTokenForStop
from specproof.defects.target_cache import TrimsFirstLayerOnly
from specproof.engine import Engine
from specproof.pairs import toy
from specproof.runner import OVERRUN, Run, run_case, run_turn


@pytest.mark.invariant("emitted_block")
def test_emitted_block_is_the_accepted_proposals_and_one_more(run: Run) -> None:
    assert_holds("emitted_block", run)


@pytest.mark.invariant("emitted_block")
@given(data=st.data())
def test_emitted_block_holds_for_drawn_cases(engine: Engine, data: st.DataObject) -> None:
    run, _ = run_turn(engine, data.draw(cases(engine.capabilities, toy())))
    assert_holds("emitted_block", run)


# ----------------------------------------------------------------------------------------------- negative controls


@pytest.mark.parametrize(
    ("mutant", "case", "message"),
    [
        (TestsLastTokenForStop, "stop/greedy/k4/T0/accepted-at3", r"\d tokens follow stop token \d+ \(emitted at 3\)"),
        (IgnoresBudget, "budget/greedy/k4/T0/n4", r"tokens were emitted, expected at most max_tokens = 4"),
        (DropsBonus, "all_accept/greedy/k3/T0/p2", r"3 tokens were emitted, expected 4 = accepted 3 \+ 1: no"),
        (TrimsFirstLayerOnly, "mixed/greedy/k4/T0/p0", r"raised where no fault was injected: CacheLengthError: "),
    ],
)  # fmt: skip
def test_emitted_block_fails_on_wrong_blocks(mutant: type, case: str, message: str) -> None:
    found = violations("emitted_block", run_case(with_decoder(mutant), case_named(case)))
    assert any(re.search(message, violation.message) for violation in found), found


def test_emitted_block_judges_the_rounds_as_reported() -> None:
    run = run_case(ENGINE, case_named("mixed/greedy/k4/T0/p0"))
    first, second, *rest = run.boundaries
    done = second.round
    assert done is not None
    wrong = {
        r"5 of 4 proposals are reported as accepted": replace(done, num_accepted=5),
        r"where the \d accepted proposals are": replace(done, drafted=(31, 31, 31, 31), num_accepted=4),
        r"5 tokens were emitted, expected 1 = accepted 0": replace(done, num_accepted=0, emitted=(1, 2, 3, 4, 5)),
        r"5 tokens were proposed where num_draft_tokens is 4": replace(done, drafted=(1, 2, 3, 4, 5)),
        r"the turn's tokens are .* after a round that emitted": replace(done, emitted=(*done.emitted[:-1], 31)),
    }
    for message, reported in wrong.items():
        changed = replace(run, boundaries=(first, replace(second, round=reported), *rest))
        found = violations("emitted_block", changed)
        assert re.search(message, found[0].message), found
        assert found[0].round == 0


def test_emitted_block_wants_a_cause_for_every_end_and_tokens_of_the_vocabulary() -> None:
    run = run_case(ENGINE, case_named("plain/greedy/k4/T0/p0"))
    early = replace(run, emitted=run.emitted[:-1], boundaries=())
    assert violations("emitted_block", early)[0].message == (
        "the turn ended by itself after 7 of 8 tokens, none a stop token (plain, k=4, ended by length)."
    )
    odd = replace(run, emitted=(*run.emitted[:-1], 32), boundaries=())
    assert "token 32 (emitted at 7) is outside the vocabulary 0..31" in violations("emitted_block", odd)[0].message
    lost = replace(run, emitted=(*run.emitted[:-1], (run.emitted[-1] + 1) % 32))
    assert "the caller received" in violations("emitted_block", lost)[0].message


def test_an_engine_that_never_ends_is_cut_off_and_reported() -> None:
    run = run_case(with_decoder(IgnoresBudget), case_named("budget/greedy/k4/T0/n4"))
    assert len(run.emitted) == run.case.max_tokens + OVERRUN


@pytest.mark.parametrize(
    "mutant", [with_drafter(TrimsRejectedPlusOne), with_drafter(ReportsUnnormalisedQ), with_decoder(DropsTheWrongRows)],
    ids=lambda mutant: mutant.name,
)  # fmt: skip
def test_emitted_block_is_silent_on_defects_of_other_kinds(mutant: Engine) -> None:
    for case in ("mixed/greedy/k4/T0/p0", "all_accept/greedy/k3/T0/p2", "stop/greedy/k4/T0/accepted-at3"):
        assert "emitted_block" not in broken(mutant, case)
