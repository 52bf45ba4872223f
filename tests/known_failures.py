"""Failures that are expected of engines which are not ours: one file says which, and why.

A line of `known_failures.txt` reads `engine invariant pattern ... : message  # reason`. Each pattern (of shell
wildcards) is matched with the path of a test's point, the message with a part of a violation's message, wildcards
allowed. Where all violations of a point are in lines about it, it fails as expected. Any other violation fails the
suite, and so does a point that does not show what a line says of it, and a pattern that no point matches. Where an
engine breaks an invariant somewhere, Hypothesis does not draw cases for it: it would find, and shrink, the same again.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
from subjects import Broken

from specproof.invariants import RUN_INVARIANTS
from specproof.registry import ENGINES

FILE = Path(__file__).with_suffix(".txt")


@dataclass(frozen=True)
class KnownFailure:
    """One line of the file."""

    engine: str
    invariant: str
    patterns: tuple[str, ...]
    message: str
    reason: str

    def is_about(self, engine: str, invariant: str, path: str) -> bool:
        """Whether a test is expected to fail by this line."""
        same = (engine, invariant) == (self.engine, self.invariant)
        return same and any(fnmatchcase(path, pattern) for pattern in self.patterns)

    def excuses(self, message: str) -> bool:
        """Whether a violation is the one that this line speaks of."""
        return fnmatchcase(message, f"*{self.message}*")


def read(path: Path = FILE) -> tuple[KnownFailure, ...]:
    """All lines of the file.

    Raises:
        ValueError: a line without a message or a reason, or of an engine or invariant that does not exist.
    """
    lines = enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
    return tuple(_parse(line, f"{path.name}:{number}") for number, line in lines if line.split("#")[0].strip())


def _parse(line: str, where: str) -> KnownFailure:
    expected, _, reason = line.partition("#")
    names, _, message = expected.partition(" : ")
    words = names.split()
    if len(words) < 3 or not message.strip() or not reason.strip():
        raise ValueError(f"{where}: {line!r} is not `engine invariant pattern ... : message  # reason`; give all five")
    engine, invariant, *patterns = words
    if engine not in ENGINES:
        raise ValueError(f"{where}: no engine is named {engine!r}; give one of {', '.join(ENGINES)}")
    if invariant not in RUN_INVARIANTS:
        raise ValueError(f"{where}: no invariant is named {invariant!r}; give one of {', '.join(RUN_INVARIANTS)}")
    return KnownFailure(engine, invariant, tuple(patterns), message.strip(), reason.strip())


class Ledger:
    """A pytest plugin: tells the failures that lines expect from all others, and lines that are right from others."""

    def __init__(self, lines: Sequence[KnownFailure]) -> None:
        self._lines = lines

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Do not run tests whose cases are drawn where a failure is known.

        Raises:
            pytest.UsageError: all points that a pattern may match were collected, and it matches none of them.
        """
        broken = {(line.engine, line.invariant) for line in self._lines}
        for item in items:
            if (_parameters(item).get("engine"), _invariant(item)) in broken:
                item.add_marker(pytest.mark.xfail(run=False, reason="cases are not drawn: a failure is known"))
        if not config.getoption("lf", False) and not any("::" in argument for argument in config.args):
            unmatched = self._unmatched(items)
            if unmatched:
                raise pytest.UsageError("\n".join(unmatched))

    def _unmatched(self, items: Sequence[pytest.Item]) -> list[str]:
        """The patterns that no point matches, of engines and invariants that have any."""
        paths: dict[tuple[str, str], set[str]] = {}
        for item in items:
            point, invariant = _parameters(item).get("point"), _invariant(item)
            if hasattr(point, "path") and invariant is not None:  # without points pytest has a token of its own there
                paths.setdefault((point.engine, invariant), set()).add(point.path)
        return [
            f"{FILE.name}: no point matches `{line.engine} {line.invariant} {pattern}`; remove the pattern"
            for line in self._lines
            for pattern in line.patterns
            if (found := paths.get((line.engine, line.invariant)))
            and not any(fnmatchcase(path, pattern) for path in found)
        ]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Turn violations that lines expect into an expected failure, and an expectation that is not met into one.

        A violation that no line expects, and any other exception, stay what they are. Of one that is expected no
        traceback is made, unless it was asked for (`--xfail-tb`): pytest would read the whole test file for each.
        """
        lines = self._about(item) if call.when == "call" else []
        raised = call.excinfo.value if call.excinfo is not None else None
        messages = [violation.message for violation in raised.violations] if isinstance(raised, Broken) else []
        expected = all(any(line.excuses(message) for line in lines) for message in messages)
        if not lines or not expected or not (raised is None or isinstance(raised, Broken)):
            return (yield)
        unmet = [line for line in lines if not any(map(line.excuses, messages))]
        if not unmet and not item.config.getoption("xfail_tb", False):
            call.excinfo = None
        report = yield
        if unmet:
            said = "\n".join(f"{line.engine} {line.invariant} ... : {line.message}" for line in unmet)
            report.outcome = "failed"
            report.longrepr = f"{FILE.name} expects of {_parameters(item)['point'].path} what does not happen:\n{said}"
        else:
            report.outcome = "skipped"
            report.wasxfail = "; ".join(dict.fromkeys(line.reason for line in lines))
        return report

    def _about(self, item: pytest.Item) -> list[KnownFailure]:
        """The lines that are about a test, judged by its invariant and its point."""
        point, invariant = _parameters(item).get("point"), _invariant(item)
        if point is None or invariant is None:
            return []
        return [line for line in self._lines if line.is_about(point.engine, invariant, point.path)]


def _parameters(item: pytest.Item) -> dict[str, Any]:
    """What a test is parametrised with."""
    return item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}


def _invariant(item: pytest.Item) -> str | None:
    """The invariant that a test is marked with."""
    marker = item.get_closest_marker("invariant")
    return None if marker is None else marker.args[0]
