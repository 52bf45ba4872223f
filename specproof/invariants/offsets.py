"""`target_cache_offset` and `draft_cache_offset`: how many rows each layer holds, at every boundary and at the exit."""

from __future__ import annotations

from functools import partial
from itertools import takewhile

from specproof.engine import Capabilities
from specproof.invariants.base import (
    Part,
    Point,
    RunInvariant,
    always,
    boundary_points,
    exit_point,
    has_draft,
    never_started,
    place,
    rows,
    rows_expected,
)
from specproof.invariants.signatures import CacheName, advice, offsets_of
from specproof.results import Violation
from specproof.runner import Run


def offset_violation(run: Run, point: Point, cache: CacheName, invariant: str) -> Violation | None:
    """What is wrong with the length of a cache at a point; None if nothing is, or nothing need be seen."""
    layers = offsets_of(point.observation, cache)
    expected, formula = rows_expected(run, point)
    if layers is None:
        if not _must_show(run, point, cache):
            return None
        problem = f"the engine declares {cache}_offsets and shows none here, expected {rows(expected)}"
        return Violation(invariant, run.case.id, point.round, f"{problem} ({place(run, point)}). Declare less.")
    if not layers:
        problem = f"{cache} cache shows no layers at all, expected {rows(expected)} in each ({place(run, point)})."
        return Violation(invariant, run.case.id, point.round, f"{problem} Show every layer, or declare less.")
    if never_started(run, point):
        return _before_first_boundary(run, point, cache, invariant, layers, expected)
    least = expected - (_lag_allowed(run, point) if cache == "draft" else 0)
    wrong = [(layer, held) for layer, held in enumerate(layers) if not least <= held <= expected]
    if not wrong:
        return None
    layer, held = wrong[0]
    which = "" if len(wrong) == len(layers) else f" in layer {layer} of {len(layers)}"
    many = f"{rows(abs(held - expected))} too {'many' if held > expected else 'few'}"
    return Violation(
        invariant,
        run.case.id,
        point.round,
        f"{cache} cache holds {rows(held)}{which}, expected {expected} = {formula} ({place(run, point)}): {many}. "
        + advice(run, point, cache, held, expected),
        {"held": held, "expected": expected, "prompt": len(run.case.prompt), "emitted": len(point.emitted),
         "layer": layer},
    )  # fmt: skip


def _must_show(run: Run, point: Point, cache: CacheName) -> bool:
    """Whether the length of a cache is declared to be seen here: a drafter without a model may have none."""
    declared = _observable(cache, run.capabilities) and (cache == "target" or run.case.draft is not None)
    return declared and not never_started(run, point)


def _before_first_boundary(
    run: Run, point: Point, cache: CacheName, invariant: str, layers: tuple[int, ...], most: int
) -> Violation | None:
    """After an exception in prefill nothing is committed: any number of rows short of the prompt's end will do."""
    if len(set(layers)) == 1 and layers[0] <= most:
        return None
    return Violation(
        invariant,
        run.case.id,
        None,
        f"{cache} cache holds {layers} rows by layer after an exception in prefill, expected one number for all, "
        f"at most {most} = prompt {len(run.case.prompt)} - 1 ({place(run, point)}). "
        "Roll every layer back to where the call began.",
        {"held": max(layers), "most": most},
    )


def _lag_allowed(run: Run, point: Point) -> int:
    """How many rows a drafter may be short of, inside a turn or after an exception, which returns to a boundary.

    A deferred one of the last accepted proposal after a full acceptance: it forwards that in the next round. Any one of
    what was emitted in a pause, in rounds in which the engine let it propose nothing.
    """
    at_boundary = point.boundary is not None or run.ending == "abort"
    past = run.boundaries[1 : point.index + 1] if at_boundary else ()
    if not past or past[-1].round is None or past[-1].round.finish is not None:
        return 0
    pause = list(takewhile(lambda boundary: boundary.allowed == 0, reversed(past)))
    before = run.boundaries[point.index - len(pause)]
    is_full = before.round is not None and before.round.num_accepted == len(before.round.drafted)
    owed = 1 if run.capabilities.draft_schedule == "deferred" and is_full else 0
    return owed + len(past[-1].emitted) - len(before.emitted)


def _check(cache: CacheName, run: Run) -> list[Violation]:
    points = [*boundary_points(run), exit_point(run)]
    found = [offset_violation(run, point, cache, f"{cache}_cache_offset") for point in points]
    return [violation for violation in found if violation]


def _observable(cache: CacheName, capabilities: Capabilities) -> bool:
    return capabilities.target_offsets if cache == "target" else capabilities.draft_offsets


def _applies(cache: CacheName, run: Run) -> bool:
    points = (*boundary_points(run), exit_point(run))
    return any(offsets_of(point.observation, cache) is not None or _must_show(run, point, cache) for point in points)


def _parts(cache: CacheName) -> tuple[Part, ...]:
    def at_boundaries(run: Run) -> bool:
        return any(offsets_of(boundary.observation, cache) is not None for boundary in run.boundaries)

    def at_exit(run: Run) -> bool:
        return offsets_of(run.exit, cache) is not None

    possible = always if cache == "target" else has_draft
    return Part("round boundaries", at_boundaries, possible), Part("exits", at_exit, possible)


TARGET_CACHE_OFFSET = RunInvariant(
    name="target_cache_offset",
    statement="every target layer holds exactly prompt + emitted - 1 rows at every round boundary and after every exit",
    blind_spot="what the rows hold: a cache of the right length may carry the rows of rejected tokens",
    observable=partial(_observable, "target"),
    applies=partial(_applies, "target"),
    check=partial(_check, "target"),
    parts=_parts("target"),
)

DRAFT_CACHE_OFFSET = RunInvariant(
    name="draft_cache_offset",
    statement="every drafter layer holds exactly prompt + emitted - 1 rows at every round boundary and after every "
    "exit (a deferred drafter may be one short inside a turn after a full acceptance, and any in a pause)",
    blind_spot="what the rows hold; and a drafter without a cache, or one that hides it",
    observable=partial(_observable, "draft"),
    applies=partial(_applies, "draft"),
    check=partial(_check, "draft"),
    parts=_parts("draft"),
)
