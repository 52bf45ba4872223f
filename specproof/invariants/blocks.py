"""`emitted_block`: a round emits its accepted proposals and one more token, unless a stop or the budget cuts it."""

from __future__ import annotations

from collections.abc import Iterator

from reference.values import Round
from specproof.engine import Capabilities
from specproof.invariants.base import RunInvariant, always, round_place, setting
from specproof.results import Violation
from specproof.runner import Run

NAME = "emitted_block"


def _check(run: Run) -> list[Violation]:
    return [*_rounds(run), *_stream(run), *_end(run)]


def _rounds(run: Run) -> Iterator[Violation]:
    """Each round by itself, and each boundary against the one before."""
    for index, boundary in enumerate(run.boundaries[1:]):
        done, before = boundary.round, run.boundaries[index].emitted
        if done is None:
            continue
        problem = _round_problem(run, done, len(before))
        if problem is None and boundary.emitted != before + done.emitted:
            problem = (
                f"the turn's tokens are {boundary.emitted} after a round that emitted {done.emitted} on top of {before}"
            )
        if problem is not None:
            yield Violation(NAME, run.case.id, index, f"{problem} ({round_place(run, index)}).")


def _round_problem(run: Run, done: Round, emitted_before: int) -> str | None:
    """What is wrong with a round; None if nothing is."""
    k, a, count = len(done.drafted), done.num_accepted, len(done.emitted)
    if k > run.case.num_draft_tokens:
        return f"{k} tokens were proposed where num_draft_tokens is {run.case.num_draft_tokens}"
    if not 0 <= a <= k:
        return f"{a} of {k} proposals are reported as accepted; the number must be in 0..{k}"
    if done.emitted[:a] != done.drafted[:count][:a]:
        return f"emitted {done.emitted[:a]} where the {a} accepted proposals are {done.drafted[:a]}"
    if count > a + 1:
        return f"{count} tokens were emitted, expected {a + 1} = accepted {a} + 1"
    stopped = bool(done.emitted) and done.emitted[-1] in run.case.stop_tokens
    spent = emitted_before + count >= run.case.max_tokens
    if count < a + 1 and not (stopped or spent):
        return (
            f"{count} tokens were emitted, expected {a + 1} = accepted {a} + 1: no stop token and no spent budget "
            f"(emitted {emitted_before + count} of {run.case.max_tokens}) cut the block"
        )
    return None


def _stream(run: Run) -> Iterator[Violation]:
    """The tokens that the caller received."""
    case, emitted = run.case, run.emitted
    for index, token in enumerate(emitted):
        if not 0 <= token < run.target.vocab_size:
            yield _violation(
                run, f"token {token} (emitted at {index}) is outside the vocabulary 0..{run.target.vocab_size - 1}"
            )
    stops = [index for index, token in enumerate(emitted) if token in case.stop_tokens]
    if stops and stops[0] < len(emitted) - 1:
        yield _violation(
            run,
            f"{len(emitted) - 1 - stops[0]} tokens follow stop token {emitted[stops[0]]} (emitted at {stops[0]}): "
            "test every token of a block, not its last",
        )
    if len(emitted) > case.max_tokens:
        yield _violation(run, f"{len(emitted)} tokens were emitted, expected at most max_tokens = {case.max_tokens}")
    if run.boundaries and run.ending in ("stop", "length") and emitted != run.boundaries[-1].emitted:
        yield _violation(run, f"the caller received {emitted} and the last boundary holds {run.boundaries[-1].emitted}")


def _end(run: Run) -> Iterator[Violation]:
    """A turn ends for a cause: a stop token, the budget, its caller, or a fault."""
    if run.ending == "length" and len(run.emitted) < run.case.max_tokens:
        yield _violation(
            run,
            f"the turn ended by itself after {len(run.emitted)} of {run.case.max_tokens} tokens, none a stop token",
        )
    if run.error is not None and not run.injected:
        yield _violation(run, f"the engine raised where no fault was injected: {run.error}")


def _violation(run: Run, problem: str) -> Violation:
    return Violation(NAME, run.case.id, None, f"{problem} ({setting(run.case)}, ended by {run.ending}).")


def _observable(capabilities: Capabilities) -> bool:
    return True


EMITTED_BLOCK = RunInvariant(
    name=NAME,
    statement="emitted[:a] == drafted[:a] and one more token follows, unless a stop token or the budget cut the block; "
    "nothing follows a stop token; no more than max_tokens are emitted; a turn that ends has a cause",
    blind_spot="whether the tokens are the right ones (greedy_parity, exact_law); "
    "for an engine that shows no rounds, everything but the token stream",
    observable=_observable,
    applies=always,
    check=_check,
)
