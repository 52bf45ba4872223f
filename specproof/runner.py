"""Run one case on one engine and keep all that the invariants look at. Judges nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, cast

from specproof.engine import Boundary, Capabilities, Case, Engine, ModelSpec, Observation, ResumableEngine, Session
from specproof.errors import InjectedFault
from specproof.oracle import Oracle, oracle_of

Ending = Literal["stop", "length", "close", "abort"]

ENGINE_ERRORS = (Exception, SystemExit)
"""What an engine may raise as a finding. An engine that exits the process must not pass for one that holds."""
CONTINUED_TOKENS = 3
"""Length of the further turn that is run on the caches a turn left."""
OVERRUN = 16
"""Tokens beyond `max_tokens` after which a run is cut: an engine may not know when to end."""


@dataclass(frozen=True)
class Continuation:
    """A further turn on the caches that a turn left, without stop tokens, faults or an early close.

    Attributes:
        added: what the turn adds to the history before it goes on.
        emitted: the tokens it emitted.
        error: what it raised, as text; None if it ended by itself.
    """

    added: tuple[int, ...]
    emitted: tuple[int, ...]
    error: str | None = None


@dataclass(frozen=True, repr=False)
class Run:
    """All that was seen of one case on one engine.

    Attributes:
        engine: its name.
        capabilities: what it says it can show.
        case: what it ran.
        emitted: the tokens that its caller received.
        boundaries: round boundaries, prefill's first; empty where rounds cannot be seen.
        ending: how the turn ended. A natural end counts as "stop" if its last token is a stop token.
        exit: the caches after the end; nothing where the engine failed before there was a session.
        error: what was raised, as text: None unless the turn aborted.
        injected: whether the exception was the case's own fault.
        continuation: a further turn, where the engine is resumable and the temperature 0.
        plain: the same case without proposals and faults, run to its end by the same engine; where it shows what its
            processors saw, and plain decoding must give the same tokens.
    """

    engine: str
    capabilities: Capabilities
    case: Case
    emitted: tuple[int, ...]
    boundaries: tuple[Boundary, ...]
    ending: Ending
    exit: Observation
    error: str | None = None
    injected: bool = False
    continuation: Continuation | None = None
    plain: Run | None = None

    @cached_property
    def target(self) -> Oracle:
        """The cache-free truth about the target."""
        return oracle_of(replace(self.case.target, fault=None))

    @cached_property
    def draft(self) -> Oracle | None:
        """The cache-free truth about the draft model; None for a drafter without a model."""
        return None if self.case.draft is None else oracle_of(replace(self.case.draft, fault=None))

    def __repr__(self) -> str:
        rounds = max(len(self.boundaries) - 1, 0)
        return f"Run({self.engine}, {self.case.id}: {len(self.emitted)} tokens, {rounds} rounds, {self.ending})"

    @property
    def history(self) -> tuple[int, ...]:
        """Prompt and received tokens."""
        return self.case.prompt + self.emitted


def run_case(engine: Engine, case: Case) -> Run:
    """Run `case` to its end, close or exception, look at the caches, and continue where that can be done."""
    run, session = run_turn(engine, case)
    return continued(engine, beside_plain(engine, run), session)


def observed_run(engine: Engine, case: Case) -> Run:
    """As `run_case`; a run that shows nothing where the engine cannot even be looked at after it failed."""
    try:
        return run_case(engine, case)
    except ENGINE_ERRORS as error:
        return Run(engine.name, engine.capabilities, case, (), (), "abort", Observation(), error=error_text(error))


def run_turn(engine: Engine, case: Case) -> tuple[Run, Session | None]:
    """The first part of `run_case`: a run without continuation, and the session that ended, if there ever was one."""
    emitted: list[int] = []
    session: Session | None = None
    closed = False
    error: Exception | SystemExit | None = None
    try:
        session = engine.start(case)
        closed = _consume(session, emitted, case)
    except ENGINE_ERRORS as raised:  # whatever an engine raises is a finding, not a failure of the harness
        error = raised
    run = Run(
        engine=engine.name,
        capabilities=engine.capabilities,
        case=case,
        emitted=tuple(emitted),
        boundaries=tuple(session.boundaries) if session else (),
        ending=_ending(case, emitted, closed, error),
        exit=session.observe() if session else Observation(),
        error=None if error is None else error_text(error),
        injected=_injected(error),
    )
    return run, session


def beside_plain(engine: Engine, run: Run) -> Run:
    """The run with its plain decoding, to compare what processors saw; without where there is no use for it.

    Tokens are equal, and so the contexts of all but the first, at temperature 0 and under `coupled` only. Turns that
    are closed, stopped or broken off would show no more than a part of what others show.
    """
    case = run.case
    determined = case.sampling.temperature == 0 or case.rule == "coupled"
    shown = any(boundary.contexts for boundary in run.boundaries)
    if case.num_draft_tokens == 0 or not determined or not shown or run.ending != "length" or case.stop_tokens:
        return run
    return replace(run, plain=run_turn(engine, replace(case, num_draft_tokens=0))[0])


def continued(engine: Engine, run: Run, session: Session | None) -> Run:
    """The second part: the run with its continuation, where there can be one. The session is used up.

    After a natural end the further turn adds two tokens, as a chat does; else it just goes on.
    """
    case = run.case
    if session is None or not engine.capabilities.resumable or case.sampling.temperature > 0:
        return run
    added = (case.prompt * 2)[:2] if run.ending in ("stop", "length") else ()
    further = replace(
        case,
        target=_faultless(case.target),
        draft=_faultless(case.draft) if case.draft else None,
        max_tokens=CONTINUED_TOKENS,
        stop_tokens=frozenset(),
        close_after=None,
    )
    received: list[int] = []
    error: str | None = None
    try:
        _consume(cast(ResumableEngine, engine).resume(session, run.emitted, added, further), received, further)
    except ENGINE_ERRORS as raised:  # as above: a finding
        error = error_text(raised)
    return replace(run, continuation=Continuation(added, tuple(received), error))


def _consume(session: Session, emitted: list[int], case: Case) -> bool:
    """Read tokens into `emitted`; True if the session was closed before its own end.

    A session that runs on past its budget is closed after `OVERRUN` tokens too many.
    """
    for token in session:
        emitted.append(int(token))
        if len(emitted) in (case.close_after, case.max_tokens + OVERRUN):
            session.close()
            return True
    return False


def _ending(case: Case, emitted: Sequence[int], closed: bool, error: BaseException | None) -> Ending:
    if error is not None:
        return "abort"
    if closed:
        return "close"
    return "stop" if emitted and emitted[-1] in case.stop_tokens else "length"


def _faultless(spec: ModelSpec) -> ModelSpec:
    return replace(spec, fault=None)


def _injected(error: BaseException | None) -> bool:
    """Whether an exception is a fault the harness asked for, as it is or wrapped by the engine in one of its own."""
    return error is not None and (
        isinstance(error, InjectedFault) or _injected(error.__cause__) or _injected(error.__context__)
    )


def error_text(error: BaseException) -> str:
    """An exception in one line that any report can hold: what cannot be encoded is escaped."""
    return f"{type(error).__name__}: {error}".encode("utf-8", "backslashreplace").decode()
