"""`counters`: what an engine reports of its rounds adds up, and equals what the models say."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from reference.values import Round
from specproof.engine import Boundary, Capabilities, Floats
from specproof.invariants.base import (
    ABSOLUTE,
    LOGIT_NOISE,
    TURNED,
    RunInvariant,
    has_rounds,
    proposing_model,
    round_place,
    setting,
)
from specproof.oracle import Oracle
from specproof.results import Violation
from specproof.runner import Run

NAME = "counters"


@dataclass(frozen=True)
class Counts:
    """Totals of some rounds.

    Attributes:
        proposed, tested, accepted, cut: over all rounds.
        reached: for every position of a block, the rounds in which it was tested: the denominator of its rate.
        accepted_at: the rounds in which it was accepted.
    """

    proposed: int
    tested: int
    accepted: int
    cut: int
    reached: tuple[int, ...]
    accepted_at: tuple[int, ...]


def count(rounds: Sequence[Round]) -> Counts:
    """The totals of some rounds. A rate is conditional on its position being reached: accepted_at / reached."""
    longest = max((len(done.drafted) for done in rounds), default=0)
    return Counts(
        proposed=sum(len(done.drafted) for done in rounds),
        tested=sum(done.num_tested for done in rounds),
        accepted=sum(done.num_accepted for done in rounds),
        cut=sum(done.num_cut for done in rounds),
        reached=tuple(sum(done.num_tested > i for done in rounds) for i in range(longest)),
        accepted_at=tuple(sum(done.num_accepted > i for done in rounds) for i in range(longest)),
    )


def _check(run: Run) -> list[Violation]:
    found: list[Violation] = []
    for index, boundary in enumerate(run.boundaries[1:]):
        if boundary.round is not None:
            before = run.boundaries[index].emitted
            problems = [
                *_round_problems(run, boundary, boundary.round, before),
                *_order_problems(run, boundary.round, last=index == len(run.boundaries) - 2),
            ]
            found += [Violation(NAME, run.case.id, index, f"{what} ({round_place(run, index)}).") for what in problems]
    return [*found, *_total_violation(run), *_idle_drafter(run)]


def _round_problems(run: Run, boundary: Boundary, done: Round, before: tuple[int, ...]) -> Iterator[str]:
    """A round's figures: their number, and their values as the models give them."""
    k, tested = len(done.drafted), done.num_tested
    if boundary.allowed is not None and k > boundary.allowed:
        yield f"{k} tokens were proposed, and the round was allowed {boundary.allowed}"
    for name, wanted in (("p", k), ("q", k), ("sum_min", tested), ("sum_prod", tested)):
        figures = getattr(done, name)
        if len(figures) not in (0, wanted):
            yield f"{name} has {len(figures)} entries, expected {wanted} ({k} proposed, {tested} tested)"
            return
    history = run.case.prompt + before
    draft = proposing_model(run, boundary)
    p = run.target.distributions(history + done.drafted, len(history), run.case.sampling)
    q = [distribution.dense() for distribution in boundary.draft_distributions or ()]
    expected = {
        "p": [p[i][token] for i, token in enumerate(done.drafted)],
        "q": [dense[token] for dense, token in zip(q, done.drafted, strict=False)],
        "sum_min": [np.minimum(a, b).sum() for a, b in zip(p, q, strict=False)],
        "sum_prod": [a @ b for a, b in zip(p, q, strict=False)],
    }
    for name, values in expected.items():
        for i, (reported, value) in enumerate(zip(getattr(done, name), values, strict=False)):
            off = not abs(reported - value) <= ABSOLUTE[run.capabilities.precision]
            prefix, token = history + done.drafted[:i], done.drafted[i]
            if off and not _is_rounding(run, draft, prefix, token, name, reported, q[i : i + 1]):
                yield f"{name} of proposal {i} is reported as {reported:.6g}, the models' logits give {value:.6g}"


FIGURES: dict[str, Callable[[Floats, Floats, int], float]] = {
    "p": lambda p, q, token: float(p[token]),
    "q": lambda p, q, token: float(q[token]),
    "sum_min": lambda p, q, token: float(np.minimum(p, q).sum()),
    "sum_prod": lambda p, q, token: float(p @ q),
}
"""(p [V], q [V], proposal) -> each figure of a round."""


def _is_rounding(
    run: Run, draft: Oracle | None, prefix: tuple[int, ...], token: int, name: str, reported: float, q: Sequence[Floats]
) -> bool:
    """Whether a figure of a proposal is that of p and q (if shown) as a near-tie at its place may turn them."""
    sampling, noise = run.case.sampling, LOGIT_NOISE[run.capabilities.precision]
    ps = [run.target.distribution(prefix, sampling), *run.target.alternatives(prefix, sampling, noise)]
    qs = [*q, *(draft.alternatives(prefix, sampling, noise) if draft else [])] or ps[:1]
    figures = (FIGURES[name](p, dense, token) for p in ps for dense in qs)
    return any(abs(reported - figure) <= TURNED * noise for figure in figures)


def _order_problems(run: Run, done: Round, last: bool) -> Iterator[str]:
    """What only the last round of a turn may report: an end, and a cut block."""
    if done.finish is not None and not last:
        yield f"the turn is reported as finished ({done.finish}), and another round follows"
    if done.num_cut and not last:
        yield f"{done.num_cut} decided tokens were not emitted, and another round follows"
    if last and done.finish is not None and run.ending in ("stop", "length") and done.finish != run.ending:
        yield f"the turn is reported as finished by {done.finish}, and its last token says {run.ending}"


def _total_violation(run: Run) -> Iterator[Violation]:
    """Emitted = what prefill emitted + sum of (a + 1) - what was cut, against what the caller received."""
    rounds = [boundary.round for boundary in run.boundaries if boundary.round is not None]
    if run.ending not in ("stop", "length") or not rounds:
        return
    counts, first = count(rounds), len(run.boundaries[0].emitted)
    expected = first + counts.accepted + len(rounds) - counts.cut
    if len(run.emitted) != expected:
        yield Violation(
            NAME,
            run.case.id,
            None,
            f"{len(run.emitted)} tokens were received, expected {expected} = prefill {first} + "
            f"accepted {counts.accepted} + rounds {len(rounds)} - cut {counts.cut} "
            f"({setting(run.case)}, ended by {run.ending}).",
            {"received": len(run.emitted), "expected": expected},
        )


def _idle_drafter(run: Run) -> Iterator[Violation]:
    """A draft model that nothing limits, and that proposed nothing in a whole turn, rounds of a pause left out."""
    case = run.case
    limited = case.draft is None or case.num_draft_tokens == 0 or case.min_prob > 0
    # A round has room for a proposal where the budget leaves two tokens or more.
    rounds = [
        after.round
        for before, after in pairwise(run.boundaries)
        if after.round is not None and case.max_tokens - len(before.emitted) > 1 and after.allowed != 0
    ]
    if not limited and rounds and not any(done.drafted for done in rounds):
        yield Violation(
            NAME,
            case.id,
            None,
            f"the drafter proposed nothing in {len(rounds)} rounds, expected up to {case.num_draft_tokens} proposals "
            f"in each: no floor and no budget limits it ({setting(case)}, temperature {case.sampling.temperature:g}).",
            {"rounds": len(rounds)},
        )


def _observable(capabilities: Capabilities) -> bool:
    return capabilities.rounds


COUNTERS = RunInvariant(
    name=NAME,
    statement="emitted = sum of (a + 1) less what was cut; the reported p, q and closed forms have one entry per "
    "position and equal those of the models' own distributions; only the last round ends the turn or is cut; a draft "
    "model that nothing limits proposes something",
    blind_spot="counters that an engine keeps elsewhere, in its logs or metrics; a draft length that pauses for good",
    observable=_observable,
    applies=has_rounds,
    check=_check,
)
