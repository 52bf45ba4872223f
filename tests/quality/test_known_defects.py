"""Every known defect is found, by the checks that must see it, within a small budget of examples.

The runs of the kill table's plan, in its order, until every run invariant that must see the defect has seen it, and the
laws that must. `specproof defects` makes the whole table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
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

BUDGET = 62
"""Examples that may be spent on a defect: 36 runs of the plan, and 26 cases of the laws (6 exact laws, 1 of
`output_distribution`, 1 of `acceptance_rate`, 6 of `randomness`, 12 bad inputs). They are counted as `examples_needed`
counts them: a run is one, and so is a case of a law, however many outcomes it enumerates or sequences it draws. The
runs were drawn without knowing the defects; the laws' efforts were raised until these were caught (`defects.plan`)."""
LOOKS = (0, 4, 10, 20, 1000)
"""After so many runs it is looked whether that was enough."""


def looked_for(defect: Defect) -> Mapping[str, Cell]:
    """What the checks made of a defect by the time it was caught; the cases of the laws count behind the runs."""
    plan = cases(defect.right().capabilities)
    laws = [name for name in SMALL_LAWS if name in defect.expected or (name == "bad_input" and name in defect.silent)]
    wanted = defect.expected & set(RUN_INVARIANTS)
    caught: dict[str, Cell] = {}
    runs = 0
    for first, last in pairwise(LOOKS):
        if first == LOOKS[0] or wanted - caught.keys():  # once at least: others must be silent, too
            cells = examine(defect.make, plan[first:last], laws=())
            caught |= {name: behind(first, cell) for name, cell in cells.items() if cell.status == "caught"}
            runs = min(last, len(plan))
    found = {name: cell for name, cell in examine(defect.make, (), laws).items() if name in laws}
    return {**caught, **{name: behind(runs, cell) for name, cell in found.items()}}


def behind(count: int, cell: Cell) -> Cell:
    """A cell, after so many examples more."""
    return replace(cell, examples=count + cell.examples) if cell.status == "caught" else cell


def installed(defect: Defect) -> bool:
    return not defect.needs or find_spec(defect.needs.replace("-", "_")) is not None


@pytest.mark.parametrize("name", CATALOGUE)
def test_a_known_defect_is_caught_by_every_check_that_must_see_it_and_by_none_that_must_not(name: str) -> None:
    """Within `BUDGET` examples: by the last of the checks that must see it, not only by the first."""
    defect = CATALOGUE[name]
    if not installed(defect):
        pytest.skip(f"{name} needs the package {defect.needs}")
    row = Row(defect, looked_for(defect))
    assert not row.missed_by, f"{name} ({defect.cause}) is not caught by {', '.join(row.missed_by)}"
    assert not row.accused_by, f"{name} ({defect.cause}) is caught by {', '.join(row.accused_by)}, which cannot see it"
    assert max(row.cells[check].examples for check in defect.expected) <= BUDGET


def test_the_budget_is_what_the_plan_has_and_no_more_than_the_ci_profile_draws_for_an_engine() -> None:
    """N = 62 examples for a defect, 36 runs and 26 cases of laws; the profile draws 80 for an engine.

    Those are the cases that Hypothesis draws in the ten tests `.._for_drawn_cases` of invariants, 8 in each.
    """
    laws = [law.check(ENGINE).cases for law in SMALL_LAWS.values()]
    assert (len(cases(ENGINE.capabilities)), laws) == (36, [6, 1, 1, 6, 12])
    assert sum(laws) + 36 == BUDGET
    assert all(len(cases(defect.right().capabilities)) <= 36 for defect in CATALOGUE.values() if installed(defect))
    files = (Path(__file__).parents[1] / "invariants").glob("test_*.py")
    tests = sum(file.read_text(encoding="utf-8").count("_for_drawn_cases(engine: Engine,") for file in files)
    assert BUDGET <= tests * settings.get_profile("ci").max_examples == 80
