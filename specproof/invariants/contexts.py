"""`processor_history`: processors see the tokens that plain decoding would show them, in the same order."""

from __future__ import annotations

from collections.abc import Iterator

from specproof.engine import Boundary, Capabilities
from specproof.invariants.base import RunInvariant, setting
from specproof.results import Violation
from specproof.runner import Run

NAME = "processor_history"
Contexts = tuple[tuple[int, ...], ...]


def _check(run: Run) -> list[Violation]:
    found: list[Violation] = []
    for index, boundary in enumerate(run.boundaries):
        problem = next(_problems(run, index, boundary), None)
        if problem is not None:
            where = "prefill" if index == 0 else f"round {index - 1}"
            message = (
                f"{problem} ({where}, {setting(run.case)}). Plain decoding shows the whole sequence before each token."
            )
            found.append(Violation(NAME, run.case.id, index - 1 if index else None, message))
    return found


def _problems(run: Run, index: int, boundary: Boundary) -> Iterator[str]:
    """What is wrong with the contexts of one boundary, the first one first.

    Those behind the first rejection decide nothing, and may hold anything.
    """
    if boundary.contexts is None:
        return
    expected, fewest = _expected(run, index, boundary)
    decisive = 1 if boundary.round is None else boundary.round.num_accepted + 1
    for i, (seen, wanted) in enumerate(zip(boundary.contexts[:decisive], expected, strict=False)):
        if seen != wanted:
            yield f"processors saw {_words(seen)} for the token at place {i} of the block, expected {_words(wanted)}"
    if not fewest <= len(boundary.contexts) <= len(expected):
        wanted_count = str(fewest) if fewest == len(expected) else f"{fewest} to {len(expected)}"
        yield f"the processors ran for {len(boundary.contexts)} tokens, expected {wanted_count}"


def _expected(run: Run, index: int, boundary: Boundary) -> tuple[Contexts, int]:
    """What plain decoding shows for the tokens of a round, and how many of them must have been shown.

    A verify pass may show every position of the block, or stop behind the first rejection.
    """
    if boundary.round is None:
        return (run.case.prompt,), 1 if boundary.emitted else 0
    history = run.case.prompt + run.boundaries[index - 1].emitted
    drafted = boundary.round.drafted
    expected = tuple(history + drafted[:i] for i in range(len(drafted) + 1))
    return expected, min(boundary.round.num_accepted + 1, len(boundary.round.emitted))


def _words(tokens: tuple[int, ...]) -> str:
    """A context, shortened in the middle."""
    shown = (
        " ".join(map(str, tokens))
        if len(tokens) <= 12
        else f"{' '.join(map(str, tokens[:4]))} ... {' '.join(map(str, tokens[-6:]))}"
    )
    return f"{len(tokens)} token{'' if len(tokens) == 1 else 's'} [{shown}]"


def _observable(capabilities: Capabilities) -> bool:
    return capabilities.rounds and capabilities.contexts


def _applies(run: Run) -> bool:
    return any(boundary.contexts is not None for boundary in run.boundaries)


PROCESSOR_HISTORY = RunInvariant(
    name=NAME,
    statement="logits processors see, before each token, the whole sequence up to it, as in plain decoding",
    blind_spot="processors of the drafter, and processors that keep a state of their own between calls",
    observable=_observable,
    applies=_applies,
    check=_check,
)
