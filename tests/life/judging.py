"""All invariants of a run, on a piece of a decoder's life."""

from __future__ import annotations

from collections.abc import Callable

from specproof.invariants import RUN_INVARIANTS
from specproof.results import Violation
from specproof.runner import Run


def violations(run: Run) -> list[Violation]:
    """What all invariants that can be seen find in a run."""
    return [
        violation
        for invariant in RUN_INVARIANTS.values()
        if invariant.observable(run.capabilities) and invariant.applies(run)
        for violation in invariant.check(run)
    ]


def assert_all_hold(run: Run, excused: Callable[[Violation], bool] = lambda violation: False) -> None:
    """Fail with every violation in a run.

    Raises:
        AssertionError: there is one that is not excused.
    """
    found = [violation for violation in violations(run) if not excused(violation)]
    if found:
        lines = [f"{violation.invariant}: {violation.message}" for violation in found]
        raise AssertionError("\n".join([f"{run.engine} breaks {lines[0]}", f"in: {run.case}", *lines[1:6]]))
