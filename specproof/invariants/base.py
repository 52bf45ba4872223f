"""What an invariant of a single run is, and how its messages name the place they speak of."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from specproof.engine import Boundary, Capabilities, Case, Floats, Observation
from specproof.oracle import Oracle
from specproof.results import Violation
from specproof.runner import Run, error_text

ABSOLUTE = {"float64": 1e-9, "float32": 1e-4}
"""Largest distance from the oracle that is put down to rounding, relative to the largest value (at least 1)."""

LOGIT_NOISE = {"float64": 1e-9, "float32": 1e-3}
"""Logit gaps up to this do not settle an argmax: another kernel, or another batch shape, may turn it."""


TURNED = 10.0
"""How many times the logit noise a probability may be off where rounding changed which tokens have any."""


@dataclass(frozen=True)
class Part:
    """A part of what an invariant looks at.

    Attributes:
        name: in reports.
        shown: whether a run shows it.
        possible: whether a run of this kind has it at all.
    """

    name: str
    shown: Callable[[Run], bool]
    possible: Callable[[Run], bool]


@dataclass(frozen=True)
class RunInvariant:
    """A law that every single run obeys.

    Attributes:
        name: its key in `RUN_INVARIANTS`.
        statement: what must hold.
        blind_spot: what this check cannot see.
        observable: whether an engine of these capabilities can show what it looks at.
        applies: whether this very run shows it: only such runs count as cases.
        check: all violations in a run, in order.
        parts: of what it looks at. One that a run could have shown, and none did, is named beside the result: such a
            check holds for the rest only.
    """

    name: str
    statement: str
    blind_spot: str
    observable: Callable[[Capabilities], bool]
    applies: Callable[[Run], bool]
    check: Callable[[Run], list[Violation]]
    parts: tuple[Part, ...] = ()


@dataclass(frozen=True)
class Look:
    """What an invariant made of one run.

    Attributes:
        applies: whether the run is a case of it.
        violations: all that it found, in order.
        shown, possible: names of its parts that the run shows, and that a run of this kind has.
    """

    applies: bool
    violations: list[Violation]
    shown: frozenset[str] = frozenset()
    possible: frozenset[str] = frozenset()


def look(check: RunInvariant, run: Run) -> Look:
    """Hold a run against an invariant. What an engine shows may be malformed: that is a violation, never a pass."""
    try:
        applies = check.applies(run)
        return Look(
            applies,
            check.check(run) if applies else [],
            frozenset(part.name for part in check.parts if part.shown(run)),
            frozenset(part.name for part in check.parts if part.possible(run)),
        )
    except Exception as error:
        problem = f"what the engine shows cannot be judged: {error_text(error)}"
        return Look(True, [Violation(check.name, run.case.id, None, problem)])


@dataclass(frozen=True)
class Point:
    """A place where caches can be looked at: a round boundary, or the exit of the turn.

    Attributes:
        boundary: None for the exit.
        index: of the boundary, 0 being the one that prefill left; for the exit, of the last one.
        emitted: E tokens of the turn up to here.
        observation: the caches.
    """

    boundary: Boundary | None
    index: int
    emitted: tuple[int, ...]
    observation: Observation

    @property
    def round(self) -> int | None:
        """Index of the round that led here, from 0; None for prefill and exit."""
        return self.index - 1 if self.boundary is not None and self.index > 0 else None


def boundary_points(run: Run) -> Iterator[Point]:
    """Every round boundary of the run."""
    for index, boundary in enumerate(run.boundaries):
        yield Point(boundary, index, boundary.emitted, boundary.observation)


def exit_point(run: Run) -> Point:
    """The end of the run, whatever kind it was."""
    return Point(None, len(run.boundaries) - 1, run.emitted, run.exit)


def has_draft(run: Run) -> bool:
    """Whether a draft model proposes: another drafter may have no cache."""
    return run.case.draft is not None


def proposing_model(run: Run, boundary: Boundary) -> Oracle | None:
    """The model that made the proposals of the round before a boundary; None where they came without one."""
    return None if boundary.proposer == "prompt_lookup" else run.draft


def never_started(run: Run, point: Point) -> bool:
    """Whether this is the exit of a run that broke off before its first boundary: there may be nothing to look at."""
    return point.boundary is None and not run.boundaries and run.ending == "abort"


def place(run: Run, point: Point) -> str:
    """Where in the run, in words: `round 2, all_reject, k=4`."""
    if point.boundary is None:
        where = f"at exit by {run.ending}"
    else:
        where = "after prefill" if point.round is None else f"round {point.round}"
    return f"{where}, {setting(run.case)}"


def round_place(run: Run, index: int) -> str:
    """As `place`, for a round."""
    return f"round {index}, {setting(run.case)}"


def setting(case: Case) -> str:
    """The regime and block size of a case, in words."""
    return f"{case.regime}, k={case.num_draft_tokens}"


def rows_expected(run: Run, point: Point) -> tuple[int, str]:
    """The rows a cache must hold at a point, P + E - 1 and the engine's constant, and the formula with its numbers."""
    prompt, emitted, convention = len(run.case.prompt), len(point.emitted), run.capabilities.offset_convention
    shift = f" + {convention} (the engine's convention)" if convention else ""
    return prompt + emitted - 1 + convention, f"prompt {prompt} + emitted {emitted} - 1{shift}"


def rows(count: int) -> str:
    """A number of rows, in words."""
    return f"{count} row" if count == 1 else f"{count} rows"


def near(value: Floats, others: Iterable[Floats], precision: str) -> bool:
    """Whether rounding explains a distribution [V]: it is one of `Oracle.alternatives`, give or take the noise."""
    return any(bool(np.abs(value - other).max() <= TURNED * LOGIT_NOISE[precision]) for other in others)


def always(run: Run) -> bool:
    """For invariants that every run shows."""
    return True


def has_rounds(run: Run) -> bool:
    """For invariants of rounds: whether any was seen."""
    return any(boundary.round is not None for boundary in run.boundaries)
