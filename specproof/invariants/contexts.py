"""`processor_history`: processors see the tokens that plain decoding would show them, in the same order.

Three statements. In every round they see the whole sequence before each token. Call by call they see what the engine's
own plain decoding of the same case shows them: two paths drift apart where only one of them is mended. And that plain
decoding, too, shows the whole sequence.
"""

from __future__ import annotations

from collections.abc import Iterator

from specproof.engine import Boundary, Capabilities
from specproof.invariants.base import Part, RunInvariant, setting
from specproof.results import Violation
from specproof.runner import Run

NAME = "processor_history"
Contexts = tuple[tuple[int, ...], ...]


def _check(run: Run) -> list[Violation]:
    return [*_rounds(run), *_differences(run), *_of_plain_decoding(run)]


def _rounds(run: Run) -> Iterator[Violation]:
    """Each boundary against the whole sequence."""
    for index, boundary in enumerate(run.boundaries):
        problem = next(_problems(run, index, boundary), None)
        if problem is not None:
            round_index = index - 1 if index else None
            message = f"{problem} ({_where(round_index)}, {setting(run.case)}). "
            message += "Plain decoding shows the whole sequence before each token."
            yield Violation(NAME, run.case.id, round_index, message)


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


def _differences(run: Run) -> Iterator[Violation]:
    """The first token for which plain decoding of the same case showed processors something else.

    Behind a token that plain decoding did not emit there is nothing to compare: greedy_parity judges it.
    """
    if run.plain is None:
        return
    plain = _by_token(run.plain)
    for index, (round_index, seen) in _by_token(run).items():
        if run.boundaries[-1].emitted[:index] != run.plain.emitted[:index] or index not in plain:
            return
        shown = plain[index][1]
        if seen != shown:
            yield Violation(
                NAME,
                run.case.id,
                round_index,
                f"processors saw {_words(seen)} for emitted token {index}, plain decoding of the same case showed "
                f"{_words(shown)} ({_where(round_index)}, {setting(run.case)}). A penalty or a mask means something "
                "else with a drafter than without: give both paths one history.",
                {"token": index},
            )
            return


def _of_plain_decoding(run: Run) -> Iterator[Violation]:
    """The first token for which plain decoding itself did not show the whole sequence."""
    if run.plain is None:
        return
    for index, (_, seen) in _by_token(run.plain).items():
        whole = run.case.prompt + run.plain.emitted[:index]
        if seen != whole:
            yield Violation(
                NAME,
                run.case.id,
                None,
                f"plain decoding of the same case (num_draft_tokens = 0) is wrong itself: processors saw "
                f"{_words(seen)} for emitted token {index}, expected {_words(whole)} ({setting(run.case)}).",
                {"token": index},
            )
            return


def _by_token(run: Run) -> dict[int, tuple[int | None, tuple[int, ...]]]:
    """What was shown for each emitted token, by its index: (its round, None for prefill; the context).

    In a block the first contexts are those of the tokens that it emitted, in order.
    """
    found: dict[int, tuple[int | None, tuple[int, ...]]] = {}
    for index, boundary in enumerate(run.boundaries):
        first = len(run.boundaries[index - 1].emitted) if index else 0
        for token, seen in zip(range(first, len(boundary.emitted)), boundary.contexts or (), strict=False):
            found[token] = (index - 1 if index else None, seen)
    return found


def _where(round_index: int | None) -> str:
    return "prefill" if round_index is None else f"round {round_index}"


def _words(tokens: tuple[int, ...]) -> str:
    """A context, shortened in the middle."""
    shown = (
        " ".join(map(str, tokens))
        if len(tokens) <= 12
        else f"{' '.join(map(str, tokens[:4]))} ... {' '.join(map(str, tokens[-6:]))}"
    )
    return f"{len(tokens)} token{'' if len(tokens) == 1 else 's'} [{shown}]"


def _has_plain(run: Run) -> bool:
    """Whether plain decoding must give the same tokens."""
    return (
        run.case.sampling.temperature == 0
        and run.ending == "length"
        and run.case.num_draft_tokens > 0
        and not run.case.stop_tokens
    )


def _observable(capabilities: Capabilities) -> bool:
    return capabilities.rounds and capabilities.contexts


def _applies(run: Run) -> bool:
    return any(boundary.contexts is not None for boundary in run.boundaries)


PROCESSOR_HISTORY = RunInvariant(
    name=NAME,
    statement="logits processors see, before each token, the whole sequence up to it, as plain decoding by the same "
    "engine shows it, call by call",
    blind_spot="processors of the drafter, and processors that keep a state of their own between calls",
    observable=_observable,
    applies=_applies,
    check=_check,
    parts=(Part("plain decoding beside it", lambda run: run.plain is not None, _has_plain),),
)
