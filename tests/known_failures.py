"""Failures that are expected of engines which are not ours: one file says which, and why.

A line of `known_failures.txt` reads `engine invariant pattern  # reason`. The pattern (of shell wildcards) is matched
with the path of a test's point. A violation in a test that matches is reported as an expected failure. If all tests
that a line matches ran and none failed, the line is out of date, and that is an error. Where an engine breaks an
invariant somewhere, Hypothesis does not draw cases for it: it would find, and shrink, the same failure again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest

from specproof.invariants import RUN_INVARIANTS
from specproof.registry import ENGINES

FILE = Path(__file__).with_suffix(".txt")
PROPERTY = "known_failure"


@dataclass(frozen=True)
class KnownFailure:
    """One line of the file."""

    engine: str
    invariant: str
    pattern: str
    reason: str

    def matches(self, engine: str, invariant: str, path: str) -> bool:
        """Whether a test is expected to fail by this line."""
        return (engine, invariant) == (self.engine, self.invariant) and fnmatchcase(path, self.pattern)

    def __str__(self) -> str:
        return f"{self.engine} {self.invariant} {self.pattern}"


def read(path: Path = FILE) -> tuple[KnownFailure, ...]:
    """All lines of the file.

    Raises:
        ValueError: a line without a reason, or of an engine or invariant that does not exist.
    """
    lines = enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
    return tuple(_parse(line, f"{path.name}:{number}") for number, line in lines if line.split("#")[0].strip())


def _parse(line: str, where: str) -> KnownFailure:
    words, _, reason = line.partition("#")
    fields = words.split()
    if len(fields) != 3 or not reason.strip():
        raise ValueError(f"{where}: {line!r} is not `engine invariant pattern  # reason`; give all four")
    engine, invariant, pattern = fields
    if engine not in ENGINES:
        raise ValueError(f"{where}: no engine is named {engine!r}; give one of {', '.join(ENGINES)}")
    if invariant not in RUN_INVARIANTS:
        raise ValueError(f"{where}: no invariant is named {invariant!r}; give one of {', '.join(RUN_INVARIANTS)}")
    return KnownFailure(engine, invariant, pattern, reason.strip())


class Ledger:
    """A pytest plugin: marks the tests that lines expect to fail, and finds the lines that are out of date."""

    def __init__(self, lines: Sequence[KnownFailure]) -> None:
        self._lines = lines
        self._expected: Counter[str] = Counter()
        self._ran: Counter[str] = Counter()
        self._failed: Counter[str] = Counter()

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Mark the tests that a line expects to fail, and do not run those whose cases are drawn."""
        matched = [(item, line) for item in items for line in self._about(item)]
        counts = Counter(str(line) for _, line in matched)
        for item, line in matched:
            item.user_properties.append((PROPERTY, (str(line), counts[str(line)], line.reason)))
        broken = {(line.engine, line.invariant) for line in self._lines}
        for item in items:
            if (_parameters(item).get("engine"), _invariant(item)) in broken:
                item.add_marker(pytest.mark.xfail(run=False, reason="cases are not drawn: a failure is known"))

    def _about(self, item: pytest.Item) -> list[KnownFailure]:
        """The lines that are about a test, judged by its invariant and its point."""
        point, invariant = _parameters(item).get("point"), _invariant(item)
        if point is None or invariant is None:
            return []
        return [line for line in self._lines if line.matches(point.engine, invariant, point.path)]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Turn a violation into an expected failure; any other exception stays what it is."""
        report = yield
        reasons = [value[2] for name, value in item.user_properties if name == PROPERTY]
        if reasons and call.when == "call" and call.excinfo is not None and call.excinfo.errisinstance(AssertionError):
            report.outcome = "skipped"
            report.wasxfail = reasons[0]
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note what became of a marked test. Under xdist this is the process that gathers the workers' reports."""
        if report.when != "call":
            return
        for name, value in report.user_properties:
            if name == PROPERTY:
                line, expected, _ = value
                self._expected[line] = expected
                self._ran[line] += 1
                self._failed[line] += report.outcome == "skipped"

    def out_of_date(self) -> list[str]:
        """Lines all of whose tests ran, and none failed."""
        return [line for line, count in self._ran.items() if count >= self._expected[line] and not self._failed[line]]

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """A line that is out of date fails the session; not if single tests were asked for."""
        if self.out_of_date() and not any("::" in argument for argument in session.config.args):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Name the lines that are out of date."""
        for line in self.out_of_date():
            terminalreporter.write_line(f"{FILE.name}: nothing fails any more by `{line}`; remove the line", red=True)


def _parameters(item: pytest.Item) -> dict[str, Any]:
    """What a test is parametrised with."""
    return item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}


def _invariant(item: pytest.Item) -> str | None:
    """The invariant that a test is marked with."""
    marker = item.get_closest_marker("invariant")
    return None if marker is None else marker.args[0]
