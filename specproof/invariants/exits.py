"""`exit_state`: after any exit the decoder is at a round boundary, and going on gives what never stopping gives."""

from __future__ import annotations

from collections.abc import Iterator

from specproof.engine import Capabilities
from specproof.invariants.base import Part, RunInvariant, always, exit_point, has_draft, never_started, setting
from specproof.invariants.content import content_violations
from specproof.invariants.offsets import offset_violation
from specproof.invariants.parity import parity_problems
from specproof.invariants.signatures import CacheName
from specproof.results import Violation
from specproof.runner import CONTINUED_TOKENS, Run

NAME = "exit_state"


def _check(run: Run) -> list[Violation]:
    return [*_lengths(run), *content_violations(run, [exit_point(run)], NAME), *_continuation(run)]


def _lengths(run: Run) -> Iterator[Violation]:
    caches: tuple[CacheName, ...] = ("target", "draft")
    for cache in caches:
        violation = offset_violation(run, exit_point(run), cache, NAME)
        if violation is not None:
            yield violation


def _continuation(run: Run) -> Iterator[Violation]:
    """The further turn, against cache-free greedy decoding of the same tokens."""
    further = run.continuation
    if further is None:
        return
    where = f"next turn on the caches left at exit by {run.ending}, {setting(run.case)}"
    if further.error is not None:
        yield Violation(NAME, run.case.id, None, f"the engine could not go on: {further.error} ({where}).")
    elif len(further.emitted) != CONTINUED_TOKENS:
        count = len(further.emitted)
        yield Violation(NAME, run.case.id, None, f"{count} tokens were emitted, expected {CONTINUED_TOKENS} ({where}).")
    if not run.capabilities.lossy:
        for index, problem, short in parity_problems(run, run.history + further.added, further.emitted):
            message = f"{problem} ({where}): the caches do not hold exactly the committed tokens."
            yield Violation(NAME, run.case.id, None, message, {"index": index, "short": short})


def _observable(capabilities: Capabilities) -> bool:
    return capabilities.target_offsets or capabilities.draft_offsets or capabilities.resumable


def _applies(run: Run) -> bool:
    shown = (
        run.exit.target_offsets,
        run.exit.draft_offsets,
        run.exit.target_rows,
        run.exit.draft_rows,
        run.continuation,
    )
    declared = run.capabilities.target_offsets and not never_started(run, exit_point(run))
    return declared or any(part is not None for part in shown)


EXIT_STATE = RunInvariant(
    name=NAME,
    statement="after a stop token, a spent budget, an early close or an exception, the caches hold exactly the "
    "committed tokens, and a further turn on them at temperature 0 equals cache-free greedy decoding",
    blind_spot="state outside the caches that only shows above temperature 0, such as a generator's position; "
    "and memory that is never given back",
    observable=_observable,
    applies=_applies,
    check=_check,
    parts=(
        Part("the target's length", lambda run: run.exit.target_offsets is not None, always),
        Part("the drafter's length", lambda run: run.exit.draft_offsets is not None, has_draft),
        Part("cache contents", lambda run: run.exit.target_rows is not None, always),
        Part("a second turn", lambda run: run.continuation is not None, lambda run: run.case.sampling.temperature == 0),
    ),
)
