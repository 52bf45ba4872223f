"""`log_probabilities`: what is reported beside a token is the log-probability with which plain decoding draws it."""

from __future__ import annotations

import math
from collections.abc import Iterator

from specproof.engine import Boundary, Capabilities
from specproof.invariants.base import ABSOLUTE, RunInvariant, round_place, setting
from specproof.results import Violation
from specproof.runner import Run

NAME = "log_probabilities"


def _check(run: Run) -> list[Violation]:
    found: list[Violation] = []
    before: tuple[int, ...] = ()
    for index, boundary in enumerate(run.boundaries, start=-1):
        problem = next(_problems(run, before, boundary), None)
        if problem is not None:
            where = f"prefill, {setting(run.case)}" if index < 0 else round_place(run, index)
            round_ = None if index < 0 else index
            found.append(Violation(NAME, run.case.id, round_, f"{problem} ({where})."))
        before = boundary.emitted
    return found


def _problems(run: Run, before: tuple[int, ...], boundary: Boundary) -> Iterator[str]:
    """What is wrong with the figures of the tokens that a boundary has beyond those before it, the first one first."""
    if boundary.log_probabilities is None:
        return
    emitted, reported = boundary.emitted[len(before) :], boundary.log_probabilities
    if len(reported) != len(emitted):
        yield f"{len(reported)} log-probabilities are reported for {len(emitted)} emitted tokens"
        return
    if not emitted or not all(0 <= token < run.target.vocab_size for token in emitted):
        return  # a token outside the vocabulary is emitted_block's to report
    history = run.case.prompt + before
    rows = run.target.distributions(history + emitted[:-1], len(history), run.case.sampling)
    tolerance = ABSOLUTE[run.capabilities.precision]
    for i, (token, figure, p) in enumerate(zip(emitted, reported, rows, strict=True)):
        mass = float(p[token])
        wanted = math.log(mass) if mass > 0 else -math.inf
        # Compared as probabilities: rounding makes the logarithm of a tiny mass as uncertain as one likes.
        if not (figure <= tolerance and abs(math.exp(figure) - mass) <= tolerance):
            yield (
                f"the log-probability of token {token}, emitted at place {i}, is reported as "
                f"{figure:.6g}, expected {wanted:.6g}"
            )


def _observable(capabilities: Capabilities) -> bool:
    return capabilities.rounds and capabilities.log_probabilities


def _applies(run: Run) -> bool:
    return any(b.log_probabilities is not None for b in run.boundaries)


LOG_PROBABILITIES = RunInvariant(
    name=NAME,
    statement="the log-probability reported of every emitted token is that of the distribution from which plain "
    "decoding draws it, for the first token, accepted proposals, corrections and bonuses alike",
    blind_spot="log-probabilities of the prompt, and of candidates that were not emitted",
    observable=_observable,
    applies=_applies,
    check=_check,
)
