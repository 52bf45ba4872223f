"""Engines with parts: what they show is what the oracle of their architecture says, and no plain Llama's."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from subjects import assert_holds

from specproof.adapters.reference_parts import BATCH, GRAMMAR, MATCHER, PARTS, RECURRENT, WINDOWED
from specproof.architectures import ARCHITECTURES
from specproof.engine import Case, Engine
from specproof.invariants import RUN_INVARIANTS
from specproof.oracle import Oracle
from specproof.pairs import toy
from specproof.regimes import REGIMES
from specproof.runner import run_case

NAMES = ("mixed/greedy/k3/T0/p2", "mixed/rejection/k3/T0.8/p2", "close/greedy/k4/T0/after3")


def cases_of(engine: Engine) -> list[Case]:
    every = (REGIMES[name].cases(toy(), engine.capabilities, 0, quick=False) for name in ("mixed", "close"))
    return [case for cases in every for case in cases if case.id in NAMES]


@pytest.mark.parametrize("subject", PARTS, ids=lambda subject: subject.name)
def test_every_invariant_that_is_observable_holds(subject: Engine) -> None:
    for case in cases_of(subject):
        run = run_case(subject, case)
        assert run.error is None
        for name, check in RUN_INVARIANTS.items():
            if check.observable(subject.capabilities) and check.applies(run):
                assert_holds(name, run)


@pytest.mark.parametrize("subject", PARTS, ids=lambda subject: subject.name)
def test_cases_are_of_the_architecture_that_the_engine_declares(subject: Engine) -> None:
    assert subject.capabilities.architecture in ARCHITECTURES
    assert {case.target.architecture for case in cases_of(subject)} == {subject.capabilities.architecture}


@pytest.mark.parametrize("subject", [WINDOWED, RECURRENT], ids=lambda subject: subject.name)
def test_rows_are_not_those_of_a_plain_llama(subject: Engine) -> None:
    """Judged by the wrong oracle, a right engine is accused: the oracle has to know what is made of the weights."""
    run = run_case(subject, cases_of(subject)[0])
    plain = replace(run.case, target=replace(run.case.target, architecture="llama"))
    with pytest.raises((AssertionError, ValueError)):
        assert_holds("cache_content", replace(run, case=plain))


def test_a_state_is_shown_as_the_row_of_the_last_position() -> None:
    run = run_case(RECURRENT, cases_of(RECURRENT)[0])
    assert run.exit.target_rows is not None
    state, rows, _ = run.exit.target_rows
    assert (state.first, state.keys.shape[1]) == (len(run.history) - 2, 1)
    assert (rows.first, rows.keys.shape[1]) == (0, len(run.history) - 1)


def test_the_oracle_of_a_grammar_gives_no_mass_to_what_is_not_allowed() -> None:
    spec = toy().built_as("grammar").target_spec()
    (allowed,) = Oracle(spec).logits((2,))  # the marker: a formula is open, and no bracket to close
    assert np.isneginf(allowed[1::4]).all()
    assert np.isfinite(allowed[0::4]).all()


@pytest.mark.parametrize("subject", [MATCHER, BATCH], ids=lambda subject: subject.name)
def test_an_engine_whose_state_cannot_be_copied_declares_no_exact_law(subject: Engine) -> None:
    assert not subject.capabilities.injectable_choices
    assert GRAMMAR.capabilities.injectable_choices
