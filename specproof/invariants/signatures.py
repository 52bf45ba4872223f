"""Known bookkeeping defects, by the numbers they leave: what a rollback that is wrong in a known way would give.

Each predicts, from what was proposed and accepted in every round, the whole sequence of rows that a cache holds at the
boundaries of a run, and some of them what it holds after a close or an exception. A run whose sequence is the predicted
one is said to match the defect; and one more defect, D52, is known by how turns end. The identifiers are those of the
defect catalogue. Of the defects there that leave a wrong number of rows, two have no prediction of their own:

- D46, a batch whose rows all advance by the whole block: in a run, which shows one of them, this is D24.
- D94, ranks that accept by coins of their own: how many the second one accepts is in no trace.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from reference.values import Finish
from specproof.engine import Observation
from specproof.invariants.base import Point, exit_point, rows_expected
from specproof.runner import Run

CacheName = Literal["target", "draft"]
WINDOWED = frozenset({"windowed", "mlx-llama_rotating", "mlx-gemma3_text", "mlx-gemma4_text"})
"""The architectures with sliding layers."""


class Tally(NamedTuple):
    """What is known of a round.

    Attributes:
        k: proposed.
        a: accepted and kept.
        accepted: the same, with those that a stop token cut off.
        most: how many might have been proposed.
        finish: by what the turn ended in it, if it did.
    """

    k: int
    a: int
    accepted: int
    most: int
    finish: Finish | None = None


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
class Left:
    """What is known of one layer of a cache after a close or an injected fault.

    Attributes:
        rows: what it held at the last boundary.
        committed: what it should hold, the engine's own convention included.
        written: what the round that raised may have added; 0 after a close.
        unused: proposals of the last round that were not accepted and received, of as many as might have been made.
    """

    rows: int
    committed: int
    written: range
    unused: int


@dataclass(frozen=True)
class Signature(Known):
    """A known defect of one cache's bookkeeping.

    Attributes:
        cache: whose; the other one is kept as it must be.
        rows_after: (place, round) -> rows after the round.
        shows: whether such a round has what the defect gets wrong. A run without one is no evidence.
        begins_late: whether rounds before some round, which may be the first, are right.
        of_windows: whether it takes a model with sliding layers.
        rows_left: the rows that may be left by a close or an exception; None if it predicts nothing about these.
        of_ends: whether all that is wrong is how turns end.
    """

    cache: CacheName
    rows_after: Callable[[Place, Tally], int]
    shows: Callable[[Tally], bool]
    begins_late: bool = False
    of_windows: bool = False
    rows_left: Callable[[Left], Container[int]] | None = None
    of_ends: bool = False

    def sequence(self, rounds: Sequence[Tally], start: int, layer: int, begins: int = 0) -> tuple[int, ...]:
        """Rows of a layer at every boundary: after prefill, where it holds `start`, and after each of the rounds.

        Rounds before the one numbered `begins` are right.
        """
        held, committed = [start], start
        for number, done in enumerate(rounds):
            rows_after = self.rows_after if number >= begins else _right
            held.append(rows_after(Place(layer, held[-1], committed), done))
            committed += done.a + 1
        return tuple(held)


def _right(place: Place, done: Tally) -> int:
    return place.rows + done.a + 1


SIGNATURES = (
    Signature(
        id="D01",
        cache="draft",
        meaning="trimming rejected + 1 instead of rejected - 1",
        source="https://github.com/lablup/mlxcel/issues/994",
        rows_after=lambda place, done: place.rows + done.k - min(done.k - done.a + 1, done.k),
        shows=lambda done: done.k > 0,
    ),
    Signature(
        id="D02",
        cache="draft",
        meaning="after a full acceptance the last proposal was never forwarded by the drafter",
        source="https://github.com/lablup/mlxcel/pull/1002",
        rows_after=lambda place, done: place.rows + done.k - max(done.k - 1 - done.a, 0),
        shows=lambda done: 0 < done.k == done.a,
    ),
    Signature(
        id="D04",
        cache="draft",
        meaning="rejected proposals are never trimmed from the drafter's cache",
        source="https://github.com/mlc-ai/mlc-llm/issues/2939",
        rows_after=lambda place, done: place.rows + done.k,
        shows=lambda done: done.k - done.a > 1,
    ),
    Signature(
        id="D05",
        cache="draft",
        meaning="a round without proposals feeds the drafter nothing",
        source="https://github.com/NVIDIA/TensorRT-LLM/issues/10160",
        # The next round makes up for it.
        rows_after=lambda place, done: place.committed + done.a + 1 if done.k else place.rows,
        shows=lambda done: done.k == 0,
    ),
    Signature(
        id="D05",
        cache="draft",
        meaning="a round without proposals feeds the drafter nothing",
        source="https://github.com/NVIDIA/TensorRT-LLM/issues/10160",
        rows_after=lambda place, done: place.rows + done.a + 1 if done.k else place.rows,  # no round does
        shows=lambda done: done.k == 0,
    ),
    Signature(
        id="D08",
        cache="draft",
        meaning="once its window is full, nothing is trimmed from the drafter's cache any more",
        source="https://github.com/ml-explore/mlx-lm/issues/1109",
        rows_after=lambda place, done: place.rows + done.k + (done.k == done.a),
        shows=lambda done: done.k - done.a > 1,
        begins_late=True,
        of_windows=True,
    ),
    Signature(
        id="D13",
        cache="target",
        meaning="once a window is full, nothing is trimmed from the target's cache any more",
        source="https://github.com/ml-explore/mlx-lm/issues/1423",
        rows_after=lambda place, done: place.rows + done.k + 1,
        shows=lambda done: done.k > done.a,
        begins_late=True,
        of_windows=True,
    ),
    Signature(
        id="D17",
        cache="target",
        meaning="rejected proposals are trimmed from the target's first layer only",
        source="https://github.com/ml-explore/mlx-swift-lm/issues/173",
        rows_after=lambda place, done: place.rows + (done.a if place.layer == 0 else done.k) + 1,
        shows=lambda done: done.k > done.a,
    ),
    Signature(
        id="D20",
        cache="target",
        meaning="rejected proposals stay in the target's sliding layers, where every second one slides",
        source="https://github.com/huggingface/transformers/issues/46629",
        rows_after=lambda place, done: place.rows + (done.a if place.layer % 2 else done.k) + 1,
        shows=lambda done: done.k > done.a,
        of_windows=True,
    ),
    Signature(
        id="D23",
        cache="target",
        meaning="rejected proposals are never trimmed from the target's cache",
        source="https://github.com/pie-project/pie/issues/197",
        rows_after=lambda place, done: place.rows + done.k + 1,
        shows=lambda done: done.k > done.a,
        rows_left=lambda left: (left.committed,),  # a close or an exception is cleaned up after
    ),
    Signature(
        id="D24",
        cache="target",
        meaning="going back does nothing to the target's cache, after a close or an exception either",
        source="https://github.com/microsoft/onnxruntime-genai/issues/2441",
        rows_after=lambda place, done: place.rows + done.k + 1,
        shows=lambda done: done.k > done.a,
        rows_left=lambda left: [left.rows + written for written in left.written],
    ),
    Signature(
        id="D51",
        cache="target",
        meaning="the clean-up after a close or an exception trims k less what the last round accepted",
        source="https://github.com/ml-explore/mlx-lm/issues/1528",
        rows_after=_right,
        shows=lambda done: False,
        rows_left=lambda left: [max(left.rows + written - left.unused, 0) for written in left.written],
        of_ends=True,
    ),
    Signature(
        id="D53",
        cache="target",
        meaning="a turn that ends by a stop token leaves the target's cache one row short",
        source="https://github.com/google-ai-edge/LiteRT-LM/issues/3439",
        rows_after=lambda place, done: _right(place, done) - (done.finish == "stop"),
        shows=lambda done: done.finish == "stop",
        of_ends=True,
    ),
    Signature(
        id="D54",
        cache="target",
        meaning="accepted proposals behind a stop token stay in the target's cache",
        source="https://github.com/ggml-org/llama.cpp/issues/28049",
        rows_after=lambda place, done: place.rows + (done.accepted if done.finish == "stop" else done.a) + 1,
        shows=lambda done: done.finish == "stop" and done.accepted > done.a,
        of_ends=True,
    ),
    Signature(
        id="D137",
        cache="target",
        meaning="at the end the target's cache is cut as if the last round had made k proposals",
        source="https://github.com/vllm-project/vllm/issues/18668",
        rows_after=lambda place, done: max(_right(place, done) - (done.most - done.k if done.finish else 0), 0),
        shows=lambda done: done.finish is not None and done.most > done.k,
        of_ends=True,
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
    """Every round; None for a run whose rounds were not all seen.

    Where a stop token cut the block, `a` is what was kept of it: that is what a rollback has to go by.
    """
    rounds = [boundary.round for boundary in run.boundaries[1:]]
    if not run.boundaries or any(done is None for done in rounds):
        return None
    most = run.case.num_draft_tokens
    return tuple(
        Tally(len(done.drafted), max(len(done.emitted) - 1, 0), done.num_accepted, most, done.finish)
        for done in rounds
        if done is not None
    )


def held_rows(run: Run, cache: CacheName) -> tuple[tuple[int, ...], ...] | None:
    """The rows of every layer of a cache at every boundary; None where they were not all seen."""
    held = [offsets_of(boundary.observation, cache) for boundary in run.boundaries]
    if any(not layers for layers in held):
        return None
    return tuple(layers for layers in held if layers)


def predicted(signature: Signature, run: Run) -> tuple[tuple[int, ...], ...] | None:
    """What `held_rows` of its cache is under a defect; None where a run shows too little to say, or cannot have it."""
    rounds, held = tallies(run), held_rows(run, signature.cache)
    if rounds is None or held is None or (signature.of_windows and run.case.target.architecture not in WINDOWED):
        return None
    begins = _num_right(rounds, held) if signature.begins_late else 0
    by_layer = [signature.sequence(rounds, start, layer, begins) for layer, start in enumerate(held[0])]
    return tuple(zip(*by_layer, strict=True))


def _num_right(rounds: Sequence[Tally], held: Sequence[Sequence[int]]) -> int:
    """How many rounds there are before the first one that left wrong rows."""
    committed = list(held[0])
    for number, (done, layers) in enumerate(zip(rounds, held[1:], strict=True)):
        committed = [rows + done.a + 1 for rows in committed]
        if committed != list(layers):
            return number
    return len(rounds)


def _left(run: Run, cache: CacheName) -> Sequence[tuple[Left, int]]:
    """Every layer after a close or an injected fault, and what it holds; nothing for other ends, or if unseen."""
    rounds, held, left = tallies(run), held_rows(run, cache), offsets_of(run.exit, cache)
    if rounds is None or not held or not left or not (run.ending == "close" or run.injected):
        return ()
    done = rounds[-1] if rounds else None
    received = len(run.emitted) - len(run.boundaries[-2].emitted) if rounds else 0
    unused = run.case.num_draft_tokens - (min(received, done.accepted) if done else 0)
    committed, _ = rows_expected(run, exit_point(run))
    written = _written(run)
    return [(Left(rows, committed, written, unused), now) for rows, now in zip(held[-1], left, strict=False)]


def _written(run: Run) -> range:
    """The rows that the target may have got since the last boundary: those of a round that raised, or none."""
    fault = run.case.target.fault
    if run.ending == "close" or (fault is not None and fault.when == "before"):
        return range(1)
    last = min(run.case.num_draft_tokens, run.case.max_tokens - len(run.emitted) - 1)
    return range(max(last, 0) + 2)


def refutes(run: Run, signature: Signature) -> bool:
    """Whether a run, right or wrong, holds other rows at some boundary, or at its end, than the defect predicts."""
    expected = predicted(signature, run)
    if expected is None:
        return False
    rows_left = signature.rows_left
    at_end = rows_left is not None and any(now not in rows_left(left) for left, now in _left(run, signature.cache))
    return at_end or expected != held_rows(run, signature.cache)


def shows(run: Run, signature: Signature) -> bool:
    """Whether a run holds the rows that the defect predicts, and has a round or an end that this gets wrong."""
    rounds, held = tallies(run), held_rows(run, signature.cache)
    if rounds is None or held is None or predicted(signature, run) is None or refutes(run, signature):
        return False
    telling = [signature.shows(done) for done in rounds]
    if signature.begins_late:
        telling = telling[_num_right(rounds, held) :]
    return any(telling) or (signature.rows_left is not None and _ends_wrong(run, signature.cache))


def _ends_wrong(run: Run, cache: CacheName) -> bool:
    """Whether a close or an injected fault left wrong rows, where going back by counts would take some."""
    return any(now != left.committed and left.unused > 0 for left, now in _left(run, cache))


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
    by_end = [ENDS_BY_ITS_LAST_TOKEN] if ends_by_its_last_token(run, point, cache, held - expected) else []
    matches = [*by_end, *distinct(found for found in SIGNATURES if found.cache == cache and shows(run, found))]
    if matches:
        return f"Matches {' or '.join(f'{found.id}: {found.meaning}' for found in matches)}."
    if held > expected:
        trim = "k - a" if cache == "target" else "k - 1 - a"
        return f"Trim {trim} rows after a round, and check what the trim returns."
    if cache == "draft":
        return "Forward the last proposal after a full acceptance, and trim no more than was rejected."
    return "Trim no more than was rejected, k - a."
