"""`honest_q`: the reported q is the distribution that the proposal was really drawn from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from reference.values import DraftDistribution, Round
from specproof.engine import Capabilities, Floats
from specproof.invariants.base import ABSOLUTE, LOGIT_NOISE, RunInvariant, near, proposing_model, round_place
from specproof.oracle import Oracle
from specproof.results import Violation
from specproof.runner import Run

NAME = "honest_q"


def _check(run: Run) -> list[Violation]:
    found: list[Violation] = []
    for index, boundary in enumerate(run.boundaries[1:]):
        if boundary.round is None or boundary.draft_distributions is None:
            continue
        history = run.case.prompt + run.boundaries[index].emitted
        draft = proposing_model(run, boundary)
        for i, problem in _problems(run, draft, history, boundary.round, boundary.draft_distributions):
            message = f"q of proposal {i} {problem} ({round_place(run, index)})."
            found.append(Violation(NAME, run.case.id, index, message, {"proposal": i}))
    return found


def _problems(
    run: Run, draft: Oracle | None, history: tuple[int, ...], done: Round, reported: Sequence[DraftDistribution]
) -> Iterator[tuple[int, str]]:
    """(proposal, what is wrong with its q), where `draft` proposed, or a drafter without a model."""
    if len(reported) != len(done.drafted):
        yield len(reported), f"is missing: {len(reported)} distributions were shown for {len(done.drafted)} proposals"
        return
    tolerance = ABSOLUTE[run.capabilities.precision]
    recomputed = _recomputed(run, draft, history, done)
    for i, (token, distribution) in enumerate(zip(done.drafted, reported, strict=True)):
        q, wanted = distribution.dense(), recomputed[i]
        distance = float(np.abs(q - wanted).max()) if len(q) == len(wanted) else float("inf")
        if not abs(q.sum() - 1) <= max(tolerance, 1e-6):
            yield i, f"sums to {q.sum():.6g}, expected 1: report it after temperature, masks and penalties, normalised"
        elif not distribution.prob(token) > 0:
            yield i, f"gives the drafted token {token} no mass: report the distribution that the token was drawn from"
        elif distance > tolerance and not _is_rounding(run, draft, history + done.drafted[:i], q):
            yield (
                i,
                (
                    f"differs by {distance:.3g} (tolerance {tolerance:g}) from the drafter's distribution, recomputed "
                    f"without a cache: it gives token {token} mass {distribution.prob(token):.4g}, "
                    f"expected {wanted[token]:.4g}"
                ),
            )


def _recomputed(run: Run, draft: Oracle | None, history: tuple[int, ...], done: Round) -> list[Floats]:
    """The q of each proposal, without a cache; a drafter without a model is certain of what it proposes."""
    if draft is None:
        return [DraftDistribution.point_mass(token, run.target.vocab_size).dense() for token in done.drafted]
    if not done.drafted:
        return []
    return draft.distributions(history + done.drafted[:-1], len(history), run.case.sampling)


def _is_rounding(run: Run, draft: Oracle | None, prefix: tuple[int, ...], q: Floats) -> bool:
    """Whether q keeps other tokens than the oracle's because of a near-tie, at the argmax or at a truncation's edge."""
    if draft is None or len(q) != draft.vocab_size:
        return False
    precision = run.capabilities.precision
    return near(q, draft.alternatives(prefix, run.case.sampling, LOGIT_NOISE[precision]), precision)


def _observable(capabilities: Capabilities) -> bool:
    return capabilities.rounds and capabilities.draft_distributions


def _applies(run: Run) -> bool:
    return any(boundary.round is not None and boundary.draft_distributions for boundary in run.boundaries)


HONEST_Q = RunInvariant(
    name=NAME,
    statement="the reported q is normalised, gives the drafted token positive mass, and equals the drafter's "
    "distribution recomputed without a cache for that very prefix",
    blind_spot="how the token was drawn from q: a drafter that takes q's argmax and reports q is exact_law's to see; "
    "and whose block it was, where the engine names the drafter",
    observable=_observable,
    applies=_applies,
    check=_check,
)
