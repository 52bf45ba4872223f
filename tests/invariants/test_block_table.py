"""A paged cache has exactly the blocks that its rows need, and nobody else has any."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import cases
from subjects import assert_holds

from specproof.adapters.reference import ENGINE
from specproof.adapters.reference_parts import PAGED
from specproof.defects import CATALOGUE
from specproof.engine import BlockTable, Case, Engine
from specproof.invariants import RUN_INVARIANTS
from specproof.invariants.block_table import BLOCK_TABLE
from specproof.pairs import toy
from specproof.regimes import REGIMES
from specproof.results import Violation
from specproof.runner import Run, run_case, run_turn

CASE_IDS = ("mixed/greedy/k3/T0/p2", "all_reject/greedy/k6/T0/p2", "close/greedy/k4/T0/after3")


def case_named(name: str) -> Case:
    every = REGIMES[name.split("/")[0]].cases(toy(), PAGED.capabilities, 0, quick=False)
    return next(case for case in every if case.id == name)


def found_in(engine: Engine) -> list[Violation]:
    return [violation for name in CASE_IDS for violation in BLOCK_TABLE.check(run_case(engine, case_named(name)))]


@given(data=st.data())
def test_block_table_holds_for_drawn_cases(data: st.DataObject) -> None:
    run, _ = run_turn(PAGED, data.draw(cases(PAGED.capabilities, toy().built_as("paged"))))
    assert_holds("block_table", run)


# ----------------------------------------------------------------------------------------------- negative controls


@pytest.mark.parametrize(
    ("defect", "message"),
    [
        ("D25", r"target cache: the table names \d blocks, expected \d = \d+ rows / 4, rounded up"),
        ("D26", r"target cache: \d blocks of the pool are in use, expected the \d of the table"),
    ],
)
def test_block_table_fails_on_a_block_that_is_kept_or_lost(defect: str, message: str) -> None:
    violations = found_in(CATALOGUE[defect].make())
    assert violations
    with pytest.raises(AssertionError, match=message):
        raise AssertionError(violations[0].message)


def test_block_table_fails_on_a_block_that_is_named_twice() -> None:
    run = run_case(PAGED, case_named(CASE_IDS[0]))
    (first, *_), size, in_use = (getattr(run.exit.target_blocks, name) for name in ("blocks", "block_size", "in_use"))
    twice = BlockTable((first,) * in_use, size, in_use)
    (violation,) = BLOCK_TABLE.check(replace(run, exit=replace(run.exit, target_blocks=twice)))
    assert "names a block twice: rows overwrite each other" in violation.message


# ------------------------------------------------------------------------------------------------ no false alarms


def test_block_table_is_silent_on_the_right_engine_and_on_wrong_rows() -> None:
    """D27 gives back as many blocks as it should, and they are the wrong ones: that is for cache_content to see."""
    assert not found_in(PAGED)
    wrong = CATALOGUE["D27"].make()
    runs: list[Run] = [run_case(wrong, case_named(name)) for name in CASE_IDS]
    assert not [violation for run in runs for violation in BLOCK_TABLE.check(run)]
    assert [violation for run in runs for violation in RUN_INVARIANTS["cache_content"].check(run)]


def test_block_table_is_not_observable_on_an_engine_without_pages() -> None:
    assert not BLOCK_TABLE.observable(ENGINE.capabilities)
    assert BLOCK_TABLE.observable(PAGED.capabilities)
