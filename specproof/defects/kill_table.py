"""The kill table: which check sees which defect, and that none sees anything in a right engine.

Every defect is run through the same plan (`plan`). What it must show is in the catalogue; this module only compares.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from importlib.util import find_spec
from multiprocessing import get_context
from typing import Literal

from specproof.defects import CATALOGUE, LEFT_OUT, Defect
from specproof.defects.plan import SMALL_LAWS, cases
from specproof.engine import Case, Engine
from specproof.invariants import RUN_INVARIANTS, RunInvariant
from specproof.invariants.base import look
from specproof.results import CheckResult, Violation
from specproof.runner import ENGINE_ERRORS, Run, error_text, observed_run

PROCESSES = 2
COLUMNS = (*RUN_INVARIANTS, *SMALL_LAWS)
"""The checks, in the order of the audit."""

Status = Literal["caught", "silent", "not_applicable"]
OnRow = Callable[[int, int, str], None]
"""(engines done, of how many, the name of the last one)."""


@dataclass(frozen=True)
class Cell:
    """What one check made of one engine.

    Attributes:
        status: `not_applicable` where the engine cannot show what the check looks at, or no run showed it.
        examples: how many examples had been looked at when it first caught the engine; 0 unless it did. A run is an
            example, and every case of a law.
    """

    status: Status
    examples: int = 0


@dataclass(frozen=True)
class Row:
    """One defect, and what the checks made of it."""

    defect: Defect
    cells: Mapping[str, Cell]

    @property
    def caught_by(self) -> tuple[str, ...]:
        """The checks that saw it."""
        return tuple(name for name, cell in self.cells.items() if cell.status == "caught")

    @property
    def missed_by(self) -> tuple[str, ...]:
        """The checks that had to see it, and did not."""
        return tuple(sorted(self.defect.expected - set(self.caught_by)))

    @property
    def accused_by(self) -> tuple[str, ...]:
        """The checks that had to be silent, and were not."""
        return tuple(sorted(self.defect.silent & set(self.caught_by)))

    @property
    def caught(self) -> bool:
        """Whether every check saw it that had to."""
        return not self.missed_by

    @property
    def as_expected(self) -> bool:
        """Whether it was caught, and no check that had to be silent saw it."""
        return self.caught and not self.accused_by

    @property
    def examples_needed(self) -> int:
        """Examples until any check saw it; 0 if none did."""
        return min((cell.examples for cell in self.cells.values() if cell.status == "caught"), default=0)


@dataclass(frozen=True)
class KillTable:
    """All rows.

    Attributes:
        rows: in the order of the ids.
        alarms: for every right engine, by name, the checks that saw something in it.
        left_out: id -> why it has no row.
    """

    rows: tuple[Row, ...]
    alarms: Mapping[str, tuple[str, ...]]
    left_out: Mapping[str, str]

    @property
    def false_alarms(self) -> int:
        """Checks that accuse a right engine, over all of these."""
        return sum(map(len, self.alarms.values()))

    @property
    def complete(self) -> bool:
        """Whether every row is as expected and no alarm is false."""
        return all(row.as_expected for row in self.rows) and self.false_alarms == 0


def kill_table(ids: Sequence[str] = (), on_row: OnRow = lambda done, total, name: None) -> KillTable:
    """Run the plan on the defects of these ids (none given: all), and on the right engines behind them.

    Args:
        ids: keys of `CATALOGUE`.
        on_row: called for every engine that is done.
    """
    chosen = [CATALOGUE[name] for name in ids] or list(CATALOGUE.values())
    missing = {found.id: f"needs the package {found.needs}" for found in chosen if not _installed(found.needs)}
    found = [defect for defect in chosen if defect.id not in missing]
    rights = _right_engines(found)
    with ProcessPoolExecutor(PROCESSES, mp_context=get_context("spawn")) as pool:
        # The right engines first: they take as long as any, and the others wait for nothing.
        clean = {name: pool.submit(_examine_right, id_) for name, id_ in rights.items()}
        futures = {defect.id: pool.submit(_examine_defect, defect.id) for defect in found}
        every = [*clean.items(), *futures.items()]
        for done, (name, future) in enumerate(every, 1):
            future.result()
            on_row(done, len(every), name)
    rows = tuple(Row(defect, futures[defect.id].result()) for defect in found)
    alarms = {name: _caught(future.result()) for name, future in clean.items()}
    left_out = {**missing, **(LEFT_OUT if not ids else {})}
    return KillTable(rows, alarms, left_out)


def _installed(package: str) -> bool:
    return not package or find_spec(package.replace("-", "_")) is not None


def _right_engines(defects: Iterable[Defect]) -> dict[str, str]:
    """The right engines by name, each with the id of a defect that has it."""
    return {defect.right().name: defect.id for defect in defects}


def _caught(cells: Mapping[str, Cell]) -> tuple[str, ...]:
    return tuple(name for name, cell in cells.items() if cell.status == "caught")


def _examine_right(id_: str) -> dict[str, Cell]:
    return examine(CATALOGUE[id_].right, cases(CATALOGUE[id_].right().capabilities))


def _examine_defect(id_: str) -> dict[str, Cell]:
    return examine(CATALOGUE[id_].make, cases(CATALOGUE[id_].right().capabilities))


def examine(make: Callable[[], Engine], plan: Sequence[Case], laws: Iterable[str] = SMALL_LAWS) -> dict[str, Cell]:
    """What every run invariant, and these laws, make of an engine. A check stays caught by its first example.

    Args:
        make: makes the engine; called anew for every law, as some engines remember.
        plan: the cases to run.
        laws: names in `SMALL_LAWS`.
    """
    cells = _run_cells(make(), plan)
    examples = len(plan)
    for name in laws:
        try:
            result = SMALL_LAWS[name].check(make())
        except ENGINE_ERRORS as error:  # as an audit takes it
            result = CheckResult.judged(1, [Violation(name, name, None, f"the engine raised {error_text(error)}")])
        examples += result.cases
        cells[name] = _law_cell(result, examples)
    return cells


def _run_cells(engine: Engine, plan: Sequence[Case]) -> dict[str, Cell]:
    cells = dict.fromkeys(RUN_INVARIANTS, Cell("not_applicable"))
    watching = [check for check in RUN_INVARIANTS.values() if check.observable(engine.capabilities)]
    for number, case in enumerate(plan, 1):
        run = observed_run(engine, case)
        for check in watching:
            if cells[check.name].status != "caught":
                status = _status(check, run)
                cells[check.name] = _later(cells[check.name], status, number)
    return cells


def _status(check: RunInvariant, run: Run) -> Status:
    """As an audit sees it: a run that the engine broke off holds nothing, and malformed observations are a failure."""
    if run.error is not None and not run.injected:
        return "caught"
    seen = look(check, run)
    if not seen.applies:
        return "not_applicable"
    return "caught" if seen.violations else "silent"


def _later(before: Cell, status: Status, number: int) -> Cell:
    if status == "caught":
        return Cell("caught", number)
    return Cell("silent") if "silent" in (status, before.status) else before


def _law_cell(result: CheckResult, examples: int) -> Cell:
    if result.status == "not_observable":
        return Cell("not_applicable")
    return Cell("caught", examples) if result.violations else Cell("silent")
