"""After any exit the decoder is at a round boundary, and going on gives what never stopping gives."""

from __future__ import annotations

from dataclasses import replace

import pytest
from controls import broken, case_named, violations
from hypothesis import given
from hypothesis import strategies as st
from mutants import ForgetsCloseCleanUp, ForgetsRollback, HidesProposals, ReportsUnnormalisedQ, SpoilsOneRow
from strategies import cases
from subjects import assert_holds

from specproof.adapters.reference import ENGINE
from specproof.defects.draft_cache import TrimsRejectedPlusOne
from specproof.defects.exit import EndsByItsLastToken, NeverCommitsStop
from specproof.defects.metrics import CountsOneMore
from specproof.defects.mutations import with_decoder, with_drafter
from specproof.defects.target_cache import KeepsRejectedRows
from specproof.engine import Engine
from specproof.pairs import toy
from specproof.runner import CONTINUED_TOKENS, Continuation, Run, run_case


@pytest.mark.invariant("exit_state")
def test_exit_state_is_a_round_boundary_that_can_be_continued_from(continued_run: Run) -> None:
    assert_holds("exit_state", continued_run)


@pytest.mark.invariant("exit_state")
@given(data=st.data())
def test_exit_state_holds_for_drawn_cases(engine: Engine, data: st.DataObject) -> None:
    assert_holds("exit_state", run_case(engine, data.draw(cases(engine.capabilities, toy()))))


# ----------------------------------------------------------------------------------------------- negative controls


@pytest.mark.parametrize(
    ("mutant", "case", "end"),
    [
        (with_decoder(ForgetsCloseCleanUp), "close/greedy/k4/T0/after2", "at exit by close"),
        (with_decoder(ForgetsRollback), "abort/greedy/k4/T0/target1-after", "at exit by abort"),
        (with_decoder(ForgetsRollback), "abort/greedy/k4/T0/draft3-after", "at exit by abort"),
        (with_decoder(EndsByItsLastToken), "stop/greedy/k4/T0/accepted-at3", "at exit by stop"),
        (with_decoder(NeverCommitsStop), "stop/greedy/k4/T0/accepted-at3", "at exit by stop"),
        (with_decoder(NeverCommitsStop), "stop/greedy/k4/T0/correction-at2", "at exit by stop"),
        (with_decoder(KeepsRejectedRows), "all_reject/greedy/k4/T0/p0", "at exit by length"),
        (with_drafter(TrimsRejectedPlusOne), "all_reject/greedy/k4/T0/p0", "at exit by length"),
        (with_drafter(SpoilsOneRow), "close/greedy/k4/T0/after5", "at exit by close"),
    ],
)
def test_exit_state_fails_on_caches_that_hold_other_tokens(mutant: Engine, case: str, end: str) -> None:
    found = violations("exit_state", run_case(mutant, case_named(case)))
    assert end in found[0].message
    assert found[0].round is None


def test_exit_state_fails_on_a_further_turn_that_goes_another_way() -> None:
    run = run_case(ENGINE, case_named("close/greedy/k4/T0/after2"))
    assert run.continuation is not None
    emitted = run.continuation.emitted
    wrong = Continuation((), (emitted[0], (emitted[1] + 1) % 32, *emitted[2:]))
    found = violations("exit_state", replace(run, continuation=wrong))
    assert "next turn on the caches left at exit by close" in found[0].message
    assert found[0].message.endswith("the caches do not hold exactly the committed tokens.")
    short = violations("exit_state", replace(run, continuation=Continuation((), emitted[:2])))
    assert "2 tokens were emitted, expected 3 (next turn" in short[0].message
    stuck = violations("exit_state", replace(run, continuation=Continuation((), (), "CacheLengthError: too long")))
    assert "the engine could not go on: CacheLengthError: too long" in stuck[0].message


def test_exit_state_sees_the_further_turn_even_where_caches_are_hidden() -> None:
    """An engine that shows nothing but tokens still shows that its caches were wrong."""
    run = run_case(with_decoder(ForgetsRollback), case_named("abort/greedy/k4/T0/target1-after"))
    blind = replace(run, exit=type(run.exit)(), boundaries=())
    assert "the engine could not go on: CacheLengthError" in violations("exit_state", blind)[0].message


@pytest.mark.parametrize(
    "mutant", [with_decoder(CountsOneMore), with_decoder(HidesProposals), with_drafter(ReportsUnnormalisedQ)],
    ids=lambda mutant: mutant.name,
)  # fmt: skip
def test_exit_state_is_silent_on_defects_of_other_kinds(mutant: Engine) -> None:
    for case in ("close/greedy/k4/T0/after2", "mixed/greedy/k4/T0/p0", "stop/greedy/k4/T0/accepted-at3"):
        assert "exit_state" not in broken(mutant, case)


def test_a_turn_is_continued_after_every_kind_of_end() -> None:
    added = {}
    for name in ("stop/greedy/k4/T0/accepted-at3", "budget/greedy/k4/T0/n4", "close/greedy/k4/T0/after2",
                 "abort/greedy/k4/T0/target1-after", "abort/greedy/k4/T0/draft0-before"):  # fmt: skip
        run = run_case(ENGINE, case_named(name))
        assert run.continuation is not None
        assert run.continuation.error is None
        assert len(run.continuation.emitted) == CONTINUED_TOKENS
        added[run.ending] = len(run.continuation.added)
    assert added == {"stop": 2, "length": 2, "close": 0, "abort": 0}, "after a natural end, the next turn adds tokens"
