"""`cache_content`: every cached row equals the one that a fresh, cache-free prefill of the committed tokens gives."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from specproof.engine import CacheRows, Capabilities, Floats
from specproof.invariants.base import (
    ABSOLUTE,
    Part,
    Point,
    RunInvariant,
    always,
    boundary_points,
    exit_point,
    has_draft,
    never_started,
    place,
)
from specproof.oracle import Oracle
from specproof.results import Violation
from specproof.runner import Run


def content_violations(run: Run, points: list[Point], invariant: str) -> Iterator[Violation]:
    """The first wrong row of each cache at each of the points."""
    for point in points:
        caches = (
            (run.target, point.observation.target_rows, "target"),
            (run.draft, point.observation.draft_rows, "draft"),
        )
        for oracle, held, cache in caches:
            if oracle is not None and held is not None:
                yield from _wrong_row(run, point, cache, held, oracle, invariant)
            elif oracle is not None and _must_show(run, point, cache):
                problem = f"the engine declares cache_contents and shows no rows of the {cache} cache here"
                yield Violation(invariant, run.case.id, point.round, f"{problem} ({place(run, point)}). Declare less.")


def _must_show(run: Run, point: Point, cache: str) -> bool:
    """Whether the rows of a cache are declared to be seen here. A drafter that hides its length may hide its rows."""
    shown = cache == "target" or run.capabilities.draft_offsets
    return run.capabilities.cache_contents and shown and not never_started(run, point)


def _wrong_row(
    run: Run, point: Point, cache: str, held: tuple[CacheRows, ...], oracle: Oracle, invariant: str
) -> Iterator[Violation]:
    """The first row, over all layers, that differs from the oracle's. Only rows that both have are compared."""
    sequence = run.case.prompt + point.emitted
    tolerance = ABSOLUTE[run.capabilities.precision]
    worst: tuple[int, int, str, float] | None = None
    for layer, (seen, wanted) in enumerate(zip(held, oracle.rows(_longest(run, sequence)), strict=True)):
        for name in ("keys", "values"):
            error = _row_errors(getattr(seen, name), getattr(wanted, name)[:, seen.first : len(sequence)], tolerance)
            bad = np.flatnonzero(~(error <= tolerance))  # NaN is bad too
            if len(bad) and (worst is None or seen.first + bad[0] < worst[0]):
                worst = (seen.first + int(bad[0]), layer, name, float(error[bad[0]]))
    if worst is not None:
        row, layer, name, error_there = worst
        yield Violation(
            invariant,
            run.case.id,
            point.round,
            f"{cache} cache, layer {layer}, row {row}: {name} differ by {error_there:.3g} (tolerance {tolerance:g}) "
            f"from a cache-free prefill of the committed tokens, where row {row} belongs to token {sequence[row]} "
            f"({place(run, point)}). The row is that of another token, or was computed after other rows than these.",
            {"row": row, "layer": layer, "error": error_there, "tolerance": tolerance},
        )


def _longest(run: Run, sequence: tuple[int, ...]) -> tuple[int, ...]:
    """The run's longest history if it begins with `sequence`: one pass over it then serves all points of the run."""
    longest = run.case.prompt + max((run.emitted, *(b.emitted for b in run.boundaries)), key=len)
    return longest if longest[: len(sequence)] == sequence else sequence


def _row_errors(seen: Floats, wanted: Floats, tolerance: float) -> Floats:
    """Largest relative difference in each row that both have: [n_kv_heads, T, head_dim] twice -> [min(T, T')].

    Nothing at all where no difference anywhere is above the tolerance: that is nearly always, and quicker.
    """
    count = min(seen.shape[1], wanted.shape[1])
    if count == 0:
        return np.zeros(0)
    error = np.abs(seen[:, :count] - wanted[:, :count])  # [n_kv_heads, count, head_dim]
    if error.max() <= tolerance:
        return np.zeros(0)
    by_row: Floats = error.max(axis=(0, 2)) / max(1.0, float(np.abs(wanted).max()))
    return by_row


def _check(run: Run) -> list[Violation]:
    return list(content_violations(run, [*boundary_points(run), exit_point(run)], "cache_content"))


def _observable(capabilities: Capabilities) -> bool:
    return capabilities.cache_contents


def _applies(run: Run) -> bool:
    points = (*boundary_points(run), exit_point(run))
    return any(p.observation.target_rows is not None or _must_show(run, p, "target") for p in points)


CACHE_CONTENT = RunInvariant(
    name="cache_content",
    statement="every cached key and value equals, row by row, the one that a fresh cache-free prefill of the committed "
    "tokens gives (float64: 1e-9; float32: 1e-4 relative)",
    blind_spot="rows that are missing or superfluous (the offset invariants see those), and errors that the "
    "reading of the checkpoint shares with the oracle",
    observable=_observable,
    applies=_applies,
    check=_check,
    parts=(
        Part("the target's rows", lambda run: run.exit.target_rows is not None, always),
        Part("the drafter's rows", lambda run: run.exit.draft_rows is not None, has_draft),
        Part("round boundaries", lambda run: any(b.observation.target_rows for b in run.boundaries), always),
    ),
)
