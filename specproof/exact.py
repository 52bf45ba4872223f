"""The exact law of a decoder: every outcome of its random choices, with its weight.

An `ExactSession` is run from a copied state once per outcome of one step; states that behave alike are merged and
their weights added. What comes out is the distribution over output sequences of the code that ships, caches included,
with no sampling error. It says nothing of the generator that the decoder uses otherwise.

The law that a lossless decoder must have is computed beside it from the cache-free oracle alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field

from reference.errors import DecodingFault
from reference.values import SamplingParams
from specproof.engine import ExactSession
from specproof.enumeration import EnumeratedRandomness
from specproof.oracle import Oracle

Tokens = tuple[int, ...]
SequenceLaw = Mapping[Tokens, float]
"""Output sequence -> its probability. Sequences of probability 0 are absent."""

MAX_SILENT_STEPS = 8
"""Steps in a row without a token before an engine counts as stuck. One (a lazy prefill) is usual."""


@dataclass(frozen=True)
class LawResult:
    """The law of a decoder, and what it took to find it.

    Attributes:
        probabilities: output sequence, cut to the length asked for -> probability.
        rounds: how many rounds the decoder ran.
        states: how many different states they were run from; only one, the start, where every outcome is replayed.
        replayed: the engine cannot copy its state, so every outcome was run from the prompt.
    """

    probabilities: SequenceLaw
    rounds: int
    states: int
    replayed: bool


@dataclass
class _Tally:
    """What has been found so far; `frontier` holds unfinished states by the number of tokens they emitted."""

    length: int
    found: dict[Tokens, float] = field(default_factory=lambda: defaultdict(float))
    frontier: dict[int, dict[tuple[Tokens, bytes], tuple[ExactSession, float]]] = field(
        default_factory=lambda: defaultdict(dict)
    )
    rounds: int = 0
    states: int = 0

    def is_over(self, session: ExactSession) -> bool:
        return session.finished or len(session.emitted) >= self.length

    def add(self, session: ExactSession, weight: float) -> None:
        """Count a finished sequence, or merge an unfinished state with its equals."""
        emitted = session.emitted
        if self.is_over(session):
            self.found[emitted[: self.length]] += weight
            return
        alike = self.frontier[len(emitted)]
        key = (emitted, session.key())
        kept, before = alike.get(key, (session, 0.0))
        alike[key] = (kept, before + weight)

    def advance(self, session: ExactSession) -> None:
        """Step until a token is emitted or the turn ends, so that every advance makes progress.

        Raises:
            DecodingFault: neither happened within `MAX_SILENT_STEPS` steps.
        """
        before = len(session.emitted)
        for _ in range(MAX_SILENT_STEPS):
            session.step()
            self.rounds += 1
            if session.finished or len(session.emitted) > before:
                return
        raise DecodingFault(
            f"the engine emitted nothing in {MAX_SILENT_STEPS} steps after {before} tokens and did not finish; "
            "let ExactSession.step add a token or set finished"
        )

    def result(self, replayed: bool) -> LawResult:
        return LawResult(dict(self.found), self.rounds, self.states, replayed)


def law(start: Callable[[], ExactSession], randomness: EnumeratedRandomness, length: int) -> LawResult:
    """The exact law of the first `length` tokens of a decode.

    Args:
        start: begins the decode, its random choices made by `randomness`; called once per outcome of the prefill
            (and once per outcome of the whole decode where the engine cannot copy its state).
        randomness: the enumerating source that all sessions of `start` and their copies share.
        length: sequences are cut after so many tokens; a decode that ends before keeps its own length.

    Raises:
        DecodingFault: a session neither emits nor finishes. Whatever the engine raises.
    """
    tally = _Tally(length)
    for _ in randomness.walk():
        session = start()
        if not tally.is_over(session) and session.copy() is None:
            return _law_by_replay(start, randomness, length)
        tally.add(session, float(randomness.weight))
    # Every advance adds at least a token, so a length once left gets no further states.
    for emitted in range(length):
        for session, weight in tally.frontier.pop(emitted, {}).values():
            tally.states += 1
            for _ in randomness.walk():
                successor = _copy(session)
                tally.advance(successor)
                tally.add(successor, weight * float(randomness.weight))
    return tally.result(replayed=False)


def _law_by_replay(start: Callable[[], ExactSession], randomness: EnumeratedRandomness, length: int) -> LawResult:
    """As `law`, for an engine without copies: the whole decode is one walk."""
    tally = _Tally(length, states=1)
    for _ in randomness.walk():
        session = start()
        while not tally.is_over(session):
            tally.advance(session)
        tally.add(session, float(randomness.weight))
    return tally.result(replayed=True)


def _copy(session: ExactSession) -> ExactSession:
    copied = session.copy()
    if copied is None:
        raise DecodingFault(
            f"the state after {session.emitted} cannot be copied, but the first one could; "
            "let ExactSession.copy always return None, or never"
        )
    return copied


def target_law(
    oracle: Oracle, prompt: Sequence[int], sampling: SamplingParams, length: int, stop_tokens: Set[int] = frozenset()
) -> SequenceLaw:
    """The law of plain decoding, found without a cache, a drafter or a decoder.

    Args:
        oracle: the target.
        prompt: at least one token.
        sampling: penalties see the prompt and all tokens emitted before.
        length: the most tokens.
        stop_tokens: a sequence ends with the first of them.
    """

    def walk(emitted: Tokens, weight: float) -> Iterator[tuple[Tokens, float]]:
        if len(emitted) == length or (emitted and emitted[-1] in stop_tokens):
            yield emitted, weight
            return
        for token, mass in enumerate(oracle.distribution([*prompt, *emitted], sampling)):
            if mass > 0:
                yield from walk((*emitted, token), weight * float(mass))

    return dict(walk((), 1.0))


def total_variation(a: SequenceLaw, b: SequenceLaw) -> float:
    """Half the sum of absolute differences: the most by which the probability of any event differs."""
    return 0.5 * sum(abs(a.get(outcome, 0.0) - b.get(outcome, 0.0)) for outcome in a.keys() | b.keys())


def marginal(law_: SequenceLaw, length: int) -> SequenceLaw:
    """The law of the first `length` tokens."""
    cut: dict[Tokens, float] = defaultdict(float)
    for sequence, mass in law_.items():
        cut[sequence[:length]] += mass
    return dict(cut)


@dataclass(frozen=True)
class Difference:
    """Where two laws first part.

    Attributes:
        sequence: of all sequences of the shortest length at which the laws differ, the one that differs most.
        found, wanted: its probability under either law.
    """

    sequence: Tokens
    found: float
    wanted: float


def first_difference(found: SequenceLaw, wanted: SequenceLaw, tolerance: float) -> Difference | None:
    """The shortest witness that two laws differ by more than `tolerance` in total variation; None if they do not."""
    longest = max(map(len, found.keys() | wanted.keys()), default=0)
    for length in range(1, longest + 1):
        ours, theirs = marginal(found, length), marginal(wanted, length)
        if total_variation(ours, theirs) > tolerance:
            worst = max(
                sorted(ours.keys() | theirs.keys()), key=lambda seq: abs(ours.get(seq, 0.0) - theirs.get(seq, 0.0))
            )
            return Difference(worst, ours.get(worst, 0.0), theirs.get(worst, 0.0))
    return None
