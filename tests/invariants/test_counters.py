"""What an engine reports of its rounds adds up, and equals what the models say."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from controls import broken, case_named, violations
from hypothesis import given
from hypothesis import strategies as st
from mutants import AcceptsEverything, HidesProposals, ReadsPOneRowLate
from strategies import cases
from subjects import assert_holds

from reference.values import Round
from specproof.adapters.reference import ENGINE
from specproof.defects.draft_cache import NeverTrims, TrimsRejectedPlusOne
from specproof.defects.metrics import CountsOneMore
from specproof.defects.mutations import with_decoder, with_drafter
from specproof.defects.stop import NeverDraftsGreedily
from specproof.engine import Engine
from specproof.invariants.counting import Counts, count
from specproof.pairs import toy
from specproof.runner import Run, run_case, run_turn


@pytest.mark.invariant("counters")
def test_counters_reconcile_and_equal_what_the_models_say(run: Run) -> None:
    assert_holds("counters", run)


@pytest.mark.invariant("counters")
@given(data=st.data())
def test_counters_hold_for_drawn_cases(engine: Engine, data: st.DataObject) -> None:
    run, _ = run_turn(engine, data.draw(cases(engine.capabilities, toy())))
    assert_holds("counters", run)


def test_counters_count_a_position_only_where_it_was_reached() -> None:
    rounds = [
        Round(drafted=(1, 2, 3), num_accepted=0, emitted=(9,)),
        Round(drafted=(1, 2, 3), num_accepted=2, emitted=(1, 2, 9)),
        Round(drafted=(), num_accepted=0, emitted=(9,)),
        Round(drafted=(1, 2), num_accepted=2, emitted=(1,), finish="stop"),
    ]
    assert count(rounds) == Counts(
        proposed=8, tested=1 + 3 + 0 + 2, accepted=4, cut=2, reached=(3, 2, 1), accepted_at=(2, 2, 0)
    )


# ----------------------------------------------------------------------------------------------- negative controls


@pytest.mark.parametrize(
    ("mutant", "message"),
    [
        (CountsOneMore, r"p has 5 entries, expected 4 \(4 proposed, \d tested\)"),
        (ReadsPOneRowLate, r"p of proposal \d is reported as .*, the models' logits give"),
    ],
)
def test_counters_fail_on_wrong_figures(mutant: type, message: str) -> None:
    found = violations("counters", run_case(with_decoder(mutant), case_named("plain/rejection/k4/T0.8/p0")))
    assert re.search(message, found[0].message), found[0]


def test_counters_judge_the_rounds_as_reported() -> None:
    run = run_case(ENGINE, case_named("mixed/rejection/k4/T0.8/p0"))
    *others, last = run.boundaries
    assert last.round is not None
    assert others[1].round is not None

    def with_second(reported: Round) -> Run:
        return replace(run, boundaries=(others[0], replace(others[1], round=reported), *others[2:], last))

    second = others[1].round
    wrong = {
        "the turn is reported as finished (stop), and another round follows": with_second(
            replace(second, finish="stop")
        ),
        "tokens were not emitted, and another round follows": with_second(
            replace(second, num_accepted=len(second.drafted), emitted=second.emitted[:1], sum_min=(), sum_prod=())
        ),
        "sum_min of proposal 0 is reported as 0.123": with_second(
            replace(second, sum_min=(0.123, *second.sum_min[1:]))
        ),
        "the turn is reported as finished by stop, and its last token says length": replace(
            run, boundaries=(*others, replace(last, round=replace(last.round, finish="stop")))
        ),
        "tokens were received, expected": replace(run, emitted=(*run.emitted, 1)),
        f"{len(second.drafted)} tokens were proposed, and the round was allowed 0": replace(
            run, boundaries=(others[0], replace(others[1], allowed=0), *others[2:], last)
        ),
    }
    for message, changed in wrong.items():
        assert any(message in violation.message for violation in violations("counters", changed)), message


def test_counters_excuse_a_drafter_that_proposes_nothing_only_in_the_rounds_of_a_pause() -> None:
    run = run_case(with_drafter(NeverDraftsGreedily), case_named("plain/greedy/k4/T0/p0"))
    first, *rounds = run.boundaries
    assert "the drafter proposed nothing" in violations("counters", run)[0].message
    pauses = [replace(boundary, allowed=0) for boundary in rounds]
    assert not violations("counters", replace(run, boundaries=(first, *pauses)))
    asked = replace(rounds[0], allowed=4)
    (found,) = violations("counters", replace(run, boundaries=(first, asked, *pauses[1:])))
    assert "the drafter proposed nothing in 1 rounds" in found.message


@pytest.mark.parametrize("mutant", [TrimsRejectedPlusOne, NeverTrims])
def test_counters_are_silent_on_defects_of_the_drafter(mutant: type) -> None:
    for case in ("mixed/rejection/k4/T0.8/p0", "all_accept/greedy/k3/T0/p2"):
        assert "counters" not in broken(with_drafter(mutant), case)


@pytest.mark.parametrize("mutant", [AcceptsEverything, HidesProposals])
def test_counters_are_silent_on_defects_of_other_kinds(mutant: type) -> None:
    assert "counters" not in broken(with_decoder(mutant), "mixed/greedy/k4/T0/p0")
