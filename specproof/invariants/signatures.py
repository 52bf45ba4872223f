"""Known bookkeeping defects, by the numbers they leave: what a rollback that is wrong in a known way would give.

Each predicts the rows a cache holds after a round from those before it. A run that breaks an offset invariant, and
follows one of these in every round, is said to match it; and one defect is known by how turns end. The identifiers are
those of the defect catalogue.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from reference.values import Round
from specproof.engine import Observation
from specproof.invariants.base import Point
from specproof.runner import Run

CacheName = Literal["target", "draft"]


@dataclass(frozen=True)
class Signature:
    """A known defect of one cache's bookkeeping.

    Attributes:
        id: in the defect catalogue.
        cache: whose.
        meaning: what the engine does, and what is right.
        source: where it was public first.
        rows_after: (rows before, k proposed, a accepted) -> rows after the round.
        shows: (k, a) -> whether such a round has what the defect gets wrong. A run without one is no evidence.
    """

    id: str
    cache: CacheName
    meaning: str
    source: str
    rows_after: Callable[[int, int, int], int]
    shows: Callable[[int, int], bool]


SIGNATURES = (
    Signature(
        id="D01",
        cache="draft",
        meaning="trimming rejected + 1 instead of rejected - 1",
        source="https://github.com/lablup/mlxcel/issues/994",
        rows_after=lambda before, k, a: before + k - min(k - a + 1, k),
        shows=lambda k, a: k > 0,
    ),
    Signature(
        id="D02",
        cache="draft",
        meaning="after a full acceptance the last proposal was never forwarded by the drafter",
        source="https://github.com/lablup/mlxcel/pull/1002",
        rows_after=lambda before, k, a: before + k - max(k - 1 - a, 0),
        shows=lambda k, a: 0 < k == a,
    ),
    Signature(
        id="D04",
        cache="draft",
        meaning="rejected proposals are never trimmed from the drafter's cache",
        source="https://github.com/mlc-ai/mlc-llm/issues/2939",
        rows_after=lambda before, k, a: before + k,
        shows=lambda k, a: k - a > 1,
    ),
    Signature(
        id="D23",
        cache="target",
        meaning="rejected proposals are never trimmed from the target's cache",
        source="https://github.com/pie-project/pie/issues/197",
        rows_after=lambda before, k, a: before + k + 1,
        shows=lambda k, a: k > a,
    ),
)


def offsets_of(observation: Observation, cache: CacheName) -> tuple[int, ...] | None:
    """The rows that every layer of a cache holds; None where that cannot be seen."""
    return observation.target_offsets if cache == "target" else observation.draft_offsets


def matching(run: Run, cache: CacheName) -> tuple[Signature, ...]:
    """The signatures that every round of the run follows, and at least one round is evidence for.

    None for a run without rounds, or with layers of unequal length.
    """
    held = [offsets_of(boundary.observation, cache) for boundary in run.boundaries]
    if len(held) < 2 or any(layers is None or len(set(layers)) != 1 for layers in held):
        return ()
    rows = [layers[0] for layers in held if layers]
    rounds = [boundary.round for boundary in run.boundaries[1:] if boundary.round is not None]
    if len(rounds) != len(rows) - 1:
        return ()
    steps = list(zip(rows[:-1], rows[1:], rounds, strict=True))
    return tuple(
        signature
        for signature in SIGNATURES
        if signature.cache == cache
        and all(after == _predicted(signature, before, done) for before, after, done in steps)
        and any(signature.shows(len(done.drafted), done.num_accepted) for done in rounds)
    )


def _predicted(signature: Signature, before: int, done: Round) -> int:
    return signature.rows_after(before, len(done.drafted), done.num_accepted)


def ends_by_its_last_token(run: Run, point: Point, cache: CacheName, surplus: int) -> bool:
    """D52: at the end of a turn, nothing is fed or taken back for the sake of its last token.

    A round that ends with an accepted proposal, cut off before its own last token, leaves one row too many; a
    full acceptance leaves a drafter one row short that would have caught up in the next round
    (`speculative_generate_step` in https://github.com/ml-explore/mlx-lm/blob/main/mlx_lm/generate.py).
    """
    last = run.boundaries[-1].round if run.boundaries else None
    at_end = point.boundary is None or (last is not None and point.boundary.round is last and last.finish is not None)
    if not run.boundaries or not at_end or run.ending == "abort":
        return False
    inside = len(run.emitted) != len(run.boundaries[-1].emitted)  # what was received ends between two boundaries
    cut = inside or (last is not None and len(last.emitted) <= last.num_accepted)
    full = last is not None and not cut and last.num_accepted == len(last.drafted) > 0
    return (surplus == 1 and cut) or (surplus == -1 and full and cache == "draft")


def advice(run: Run, point: Point, cache: CacheName, held: int, expected: int) -> str:
    """The last sentence of a message on offsets: the known defect it matches, or what to look at."""
    if ends_by_its_last_token(run, point, cache, held - expected):
        return "Matches D52: what the caches hold at the end depends on what the last token was."
    known = " or ".join(f"{found.id}: {found.meaning}" for found in matching(run, cache))
    if known:
        return f"Matches {known}."
    if held > expected:
        trim = "k - a" if cache == "target" else "k - 1 - a"
        return f"Trim {trim} rows after a round, and check what the trim returns."
    if cache == "draft":
        return "Forward the last proposal after a full acceptance, and trim no more than was rejected."
    return "Trim no more than was rejected, k - a."
