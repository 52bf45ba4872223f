"""Known bookkeeping defects, by the numbers they leave: what a rollback that is wrong in a known way would give.

Each predicts, from what was proposed and accepted in every round, the whole sequence of rows that a cache holds at the
boundaries of a run. A run whose sequence is the predicted one is said to match the defect; and one more defect is known
by how turns end. The identifiers are those of the defect catalogue.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from specproof.engine import Observation
from specproof.invariants.base import Point
from specproof.runner import Run

CacheName = Literal["target", "draft"]
Tally = tuple[int, int]
"""What is known of a round: (k proposed, a accepted and kept)."""


@dataclass(frozen=True)
class Known:
    """A defect of the catalogue.

    Attributes:
        id: in the catalogue.
        meaning: what the engine does.
        source: where it was public first.
    """

    id: str
    meaning: str
    source: str


@dataclass(frozen=True)
class Place:
    """Where one round begins in one layer of a cache.

    Attributes:
        layer: from 0.
        rows: what it holds.
        committed: what it should hold, the engine's own convention included.
    """

    layer: int
    rows: int
    committed: int


@dataclass(frozen=True)
class Signature(Known):
    """A known defect of one cache's bookkeeping.

    Attributes:
        cache: whose; the other one is kept as it must be.
        rows_after: (place, k proposed, a accepted) -> rows after the round.
        shows: (k, a) -> whether such a round has what the defect gets wrong. A run without one is no evidence.
    """

    cache: CacheName
    rows_after: Callable[[Place, int, int], int]
    shows: Callable[[int, int], bool]

    def sequence(self, rounds: Sequence[Tally], start: int, layer: int) -> tuple[int, ...]:
        """Rows of a layer at every boundary: after prefill, where it holds `start`, and after each of the rounds."""
        held, committed = [start], start
        for k, a in rounds:
            held.append(self.rows_after(Place(layer, held[-1], committed), k, a))
            committed += a + 1
        return tuple(held)


SIGNATURES = (
    Signature(
        id="D01",
        cache="draft",
        meaning="trimming rejected + 1 instead of rejected - 1",
        source="https://github.com/lablup/mlxcel/issues/994",
        rows_after=lambda place, k, a: place.rows + k - min(k - a + 1, k),
        shows=lambda k, a: k > 0,
    ),
    Signature(
        id="D02",
        cache="draft",
        meaning="after a full acceptance the last proposal was never forwarded by the drafter",
        source="https://github.com/lablup/mlxcel/pull/1002",
        rows_after=lambda place, k, a: place.rows + k - max(k - 1 - a, 0),
        shows=lambda k, a: 0 < k == a,
    ),
    Signature(
        id="D04",
        cache="draft",
        meaning="rejected proposals are never trimmed from the drafter's cache",
        source="https://github.com/mlc-ai/mlc-llm/issues/2939",
        rows_after=lambda place, k, a: place.rows + k,
        shows=lambda k, a: k - a > 1,
    ),
    Signature(
        id="D05",
        cache="draft",
        meaning="a round without proposals feeds the drafter nothing",
        source="https://github.com/NVIDIA/TensorRT-LLM/issues/10160",
        rows_after=lambda place, k, a: place.committed + a + 1 if k else place.rows,  # the next round makes up for it
        shows=lambda k, a: k == 0,
    ),
    Signature(
        id="D05",
        cache="draft",
        meaning="a round without proposals feeds the drafter nothing",
        source="https://github.com/NVIDIA/TensorRT-LLM/issues/10160",
        rows_after=lambda place, k, a: place.rows + a + 1 if k else place.rows,  # no round does
        shows=lambda k, a: k == 0,
    ),
    Signature(
        id="D17",
        cache="target",
        meaning="rejected proposals are trimmed from the target's first layer only",
        source="https://github.com/ml-explore/mlx-swift-lm/issues/173",
        rows_after=lambda place, k, a: place.rows + (a if place.layer == 0 else k) + 1,
        shows=lambda k, a: k > a,
    ),
    Signature(
        id="D23",
        cache="target",
        meaning="rejected proposals are never trimmed from the target's cache",
        source="https://github.com/pie-project/pie/issues/197",
        rows_after=lambda place, k, a: place.rows + k + 1,
        shows=lambda k, a: k > a,
    ),
)
"""Those that cannot be told apart by a run are all named. Two of one id are two ways to make the same mistake."""

ENDS_BY_ITS_LAST_TOKEN = Known(
    id="D52",
    meaning="what the caches hold at the end depends on what the last token was",
    source="https://github.com/ml-explore/mlx-lm/blob/main/mlx_lm/generate.py",
)


def offsets_of(observation: Observation, cache: CacheName) -> tuple[int, ...] | None:
    """The rows that every layer of a cache holds; None where that cannot be seen."""
    return observation.target_offsets if cache == "target" else observation.draft_offsets


def tallies(run: Run) -> tuple[Tally, ...] | None:
    """(k, a) of every round; None for a run whose rounds were not all seen.

    Where a stop token cut the block, `a` is what was kept of it: that is what a rollback has to go by.
    """
    rounds = [boundary.round for boundary in run.boundaries[1:]]
    if not rounds or any(done is None for done in rounds):
        return None
    return tuple((len(done.drafted), max(len(done.emitted) - 1, 0)) for done in rounds if done is not None)


def held_rows(run: Run, cache: CacheName) -> tuple[tuple[int, ...], ...] | None:
    """The rows of every layer of a cache at every boundary; None where they were not all seen."""
    held = [offsets_of(boundary.observation, cache) for boundary in run.boundaries]
    if any(not layers for layers in held):
        return None
    return tuple(layers for layers in held if layers)


def predicted(signature: Signature, run: Run) -> tuple[tuple[int, ...], ...] | None:
    """What `held_rows` of its cache is under a defect; None where a run shows too little to say."""
    rounds, held = tallies(run), held_rows(run, signature.cache)
    if rounds is None or held is None:
        return None
    by_layer = [signature.sequence(rounds, start, layer) for layer, start in enumerate(held[0])]
    return tuple(zip(*by_layer, strict=True))


def refutes(run: Run, signature: Signature) -> bool:
    """Whether a run, right or wrong, holds other rows at some boundary than the defect predicts."""
    expected = predicted(signature, run)
    return expected is not None and expected != held_rows(run, signature.cache)


def shows(run: Run, signature: Signature) -> bool:
    """Whether a run holds the rows that the defect predicts, and has a round in which it does something wrong."""
    if predicted(signature, run) is None or refutes(run, signature):
        return False
    return any(signature.shows(k, a) for k, a in tallies(run) or ())


def distinct(signatures: Iterable[Signature]) -> tuple[Signature, ...]:
    """One signature for each defect: of two ways to make the same mistake, the first."""
    return tuple({found.id: found for found in reversed(tuple(signatures))}.values())[::-1]


def ends_by_its_last_token(run: Run, point: Point, cache: CacheName, surplus: int) -> bool:
    """D52: at the end of a turn, nothing is fed or taken back for the sake of its last token.

    A round that ends with an accepted proposal, cut off before its own last token, leaves one row too many; a
    full acceptance leaves a drafter one row short that would have caught up in the next round.
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
        return f"Matches {ENDS_BY_ITS_LAST_TOKEN.id}: {ENDS_BY_ITS_LAST_TOKEN.meaning}."
    matches = distinct(found for found in SIGNATURES if found.cache == cache and shows(run, found))
    if matches:
        return f"Matches {' or '.join(f'{found.id}: {found.meaning}' for found in matches)}."
    if held > expected:
        trim = "k - a" if cache == "target" else "k - 1 - a"
        return f"Trim {trim} rows after a round, and check what the trim returns."
    if cache == "draft":
        return "Forward the last proposal after a full acceptance, and trim no more than was rejected."
    return "Trim no more than was rejected, k - a."
