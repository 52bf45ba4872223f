"""Every known defect is found, by the checks that must see it, in a few dozen cases that were drawn without knowing it.

The runs of the kill table's plan, in its order, until every run invariant that must see the defect has seen it, and the
laws that must. `specproof defects` makes the whole table.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import settings

from specproof.adapters.reference import ENGINE
from specproof.defects import CATALOGUE, Defect
from specproof.defects.kill_table import Cell, Row, examine
from specproof.defects.plan import SMALL_LAWS, cases
from specproof.invariants import RUN_INVARIANTS

LOOKS = (0, 4, 10, 20, 1000)
"""After so many runs it is looked whether that was enough."""


def looked_for(defect: Defect) -> Mapping[str, Cell]:
    """What the checks made of a defect by the time it was caught."""
    plan = cases(defect.right().capabilities)
    laws = [name for name in SMALL_LAWS if name in defect.expected or (name == "bad_input" and name in defect.silent)]
    wanted = defect.expected & set(RUN_INVARIANTS)
    found = {name: cell for name, cell in examine(defect.make, (), laws).items() if name in laws}
    caught: dict[str, Cell] = {}
    for first, last in pairwise(LOOKS):
        if first == LOOKS[0] or wanted - caught.keys():  # once at least: others must be silent, too
            cells = examine(defect.make, plan[first:last], laws=())
            caught |= {name: cell for name, cell in cells.items() if cell.status == "caught"}
    return {**caught, **found}


def installed(defect: Defect) -> bool:
    return not defect.needs or find_spec(defect.needs.replace("-", "_")) is not None


@pytest.mark.parametrize("name", CATALOGUE)
def test_a_known_defect_is_caught_by_every_check_that_must_see_it_and_by_none_that_must_not(name: str) -> None:
    defect = CATALOGUE[name]
    if not installed(defect):
        pytest.skip(f"{name} needs the package {defect.needs}")
    row = Row(defect, looked_for(defect))
    assert not row.missed_by, f"{name} ({defect.cause}) is not caught by {', '.join(row.missed_by)}"
    assert not row.accused_by, f"{name} ({defect.cause}) is caught by {', '.join(row.accused_by)}, which cannot see it"


def test_the_plan_is_no_longer_than_what_the_ci_profile_draws_for_an_engine() -> None:
    """A run of the plan is an example, and so is a case that Hypothesis draws in a test of an invariant."""
    files = (Path(__file__).parents[1] / "invariants").glob("test_*.py")
    drawn = sum(file.read_text(encoding="utf-8").count("@given") for file in files)
    budget = drawn * settings.get_profile("ci").max_examples
    assert 0 < len(cases(ENGINE.capabilities)) <= budget
