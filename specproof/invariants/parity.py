"""`greedy_parity`: at temperature 0 every token is the one that cache-free greedy decoding gives there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from specproof.engine import Capabilities
from specproof.invariants.base import LOGIT_NOISE, RunInvariant, setting
from specproof.results import Violation
from specproof.runner import Run

NAME = "greedy_parity"


def parity_problems(run: Run, history: tuple[int, ...], emitted: Sequence[int]) -> Iterator[tuple[int, str, float]]:
    """Where `emitted`, following `history`, is not greedy: (index, what is wrong, how far below the best logit).

    Each token is judged on the prefix that was really emitted, so one wrong token is one problem. A token whose logit
    is no further below the best than rounding explains is none: kernels may turn a tie (ml-explore/mlx-lm#1109).
    """
    if not emitted:
        return
    sequence = history + tuple(emitted)
    scores = run.target.scores(sequence[:-1], len(history), run.case.sampling)
    for index, (token, row) in enumerate(zip(emitted, scores, strict=True)):
        best = int(np.argmax(row))
        if token == best or not 0 <= token < len(row):  # a token outside the vocabulary is emitted_block's to report
            continue
        short = float(row[best] - row[token])
        if short > LOGIT_NOISE[run.capabilities.precision]:
            second, first = np.partition(row, -2)[-2:]
            yield (
                index,
                f"token {index} is {token}, cache-free greedy decoding gives {best}, whose logit is {short:.4g} higher "
                f"(gap of the two best {first - second:.4g}, noise {LOGIT_NOISE[run.capabilities.precision]:g})",
                short,
            )


def _check(run: Run) -> list[Violation]:
    if not _applies(run):
        return []
    return [
        Violation(
            NAME,
            run.case.id,
            _round_of(run, index),
            f"{problem} ({setting(run.case)}, rule {run.case.rule}). The target was conditioned on other tokens than "
            "those emitted, or the rule emitted a token that is not the target's.",
            {"index": index, "short": short},
        )
        for index, problem, short in parity_problems(run, run.case.prompt, run.emitted)
    ]


def _round_of(run: Run, index: int) -> int | None:
    """The round that emitted the token at `index`; None for prefill's, or where rounds cannot be seen."""
    for number, boundary in enumerate(run.boundaries):
        if index < len(boundary.emitted):
            return number - 1 if number > 0 else None
    return None


def _observable(capabilities: Capabilities) -> bool:
    return not capabilities.lossy


def _applies(run: Run) -> bool:
    return bool(run.emitted) and run.case.sampling.temperature == 0 and not run.capabilities.lossy


GREEDY_PARITY = RunInvariant(
    name=NAME,
    statement="at temperature 0 the output equals cache-free greedy decoding, token for token; where a float32 engine "
    "differs, it counts only if its token's logit is below the best by more than numerical noise, and the gap is "
    "reported",
    blind_spot="everything that costs speed and not tokens: a drafter with a ruined cache keeps parity; "
    "and all temperatures above 0",
    observable=_observable,
    applies=_applies,
    check=_check,
)
