"""What a failure ends in: the command that shows it again. A pytest plugin.

A case of the audit is named; a case that was drawn is saved in `found/`, as `specproof fuzz` saves what it finds, and
replayed from there. What no command of the package can run, a life above all, is told by its test: `dev` and `ci` draw
the same examples every time, and `fuzz` keeps what failed in `.hypothesis` and prints how to decorate the test with it.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Generator, Mapping
from typing import Any

import pytest
from subjects import Broken

from reference.errors import InvalidSetting
from specproof.fuzzing.reproduction import Reproduction

FOLDER = "found"
"""Where drawn cases are saved, below the folder that pytest was called in."""


class Again:
    """Adds the command to the exception, so that it stands wherever the message stands.

    Only when a test has failed for good: Hypothesis fails many times until it has found its smallest example.
    """

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Before the report is made of the exception."""
        raised = call.excinfo.value if call.excinfo is not None and call.when == "call" else None
        if isinstance(raised, Broken):
            raised.add_note(f"again: {_of_broken(item, raised)}")
        elif getattr(raised, "__notes__", None):  # what Hypothesis says of its example
            raised.add_note(f"again: {of_test(item)}")
        return (yield)


def _of_broken(item: pytest.Item, broken: Broken) -> str:
    """By the name that the engine was asked for by, which need not be its own."""
    parameters: Mapping[str, Any] = item.callspec.params if hasattr(item, "callspec") else {}
    point, engine = parameters.get("point"), parameters.get("engine")
    if point is not None:
        return shlex.join(["specproof", "audit", point.engine, "--case", broken.violations[0].case_id])
    if engine is None or broken.run is None:
        return of_test(item)
    first = broken.violations[0]
    found = Reproduction(engine, first.invariant, "docs/design.md#invariants", first.message, None, broken.run.case)
    folder = item.config.invocation_params.dir
    try:
        file = found.save(folder / FOLDER)
    except (OSError, InvalidSetting) as error:
        return f"{of_test(item)} (the case cannot be saved: {error})"
    return shlex.join(["specproof", "fuzz", "--replay", str(file.relative_to(folder)), "--engine", engine])


def of_test(item: pytest.Item) -> str:
    """The test alone, with the profile and the engines of this session."""
    profile = os.environ.get("HYPOTHESIS_PROFILE", "dev")
    engines = [word for name in item.config.getoption("--engine") for word in ("--engine", name)]
    file = os.path.relpath(item.path, item.config.invocation_params.dir)
    name = item.nodeid.partition("::")[2]
    return f"HYPOTHESIS_PROFILE={profile} {shlex.join(['pytest', f'{file}::{name}', *engines])}"
