"""Engines for the command line to audit: wrong, mute or interrupted on purpose."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from reference import DraftModel
from specproof.adapters.reference import ReferenceEngine
from specproof.engine import Capabilities, Case, Observation, Session


class ForgetfulDrafter(DraftModel):
    """Neither trims after a round nor forwards what is missing."""

    def commit(self, history: Sequence[int]) -> None:
        pass


class RaisingDrafter(DraftModel):
    def propose(self, history: Sequence[int], target_hidden: object, budget: int):
        raise ZeroDivisionError("the block has no length")


class InterruptedDrafter(DraftModel):
    def propose(self, history: Sequence[int], target_hidden: object, budget: int):
        raise KeyboardInterrupt


@dataclass
class MuteSession:
    """Emits the right number of tokens, all zero, and shows nothing else."""

    case: Case
    boundaries: tuple[()] = ()

    def __iter__(self) -> Iterator[int]:
        return iter([0] * self.case.max_tokens)

    def close(self) -> None:
        pass

    def observe(self) -> Observation:
        return Observation()


@dataclass(frozen=True)
class MuteEngine:
    name: str = "mute"
    version: str = "0"
    capabilities: Capabilities = field(default=Capabilities(rules=frozenset({"greedy"}), rounds=False))

    def start(self, case: Case) -> Session:
        return MuteSession(case)


class MalformedEngine(MuteEngine):
    """Claims to show its caches and shows them in a form of its own."""

    def start(self, case: Case) -> Session:
        session = MuteSession(case)
        session.observe = lambda: 1 / 0  # type: ignore[method-assign]
        return session


class ExitingEngine(MuteEngine):
    def start(self, case: Case) -> Session:
        raise SystemExit(0)


class RaisingAtOnceEngine(MuteEngine):
    def start(self, case: Case) -> Session:
        raise ValueError("never starts")


class LayerlessEngine(MuteEngine):
    """Shows caches that have no layers."""

    def start(self, case: Case) -> Session:
        session = MuteSession(case)
        session.observe = lambda: Observation((), ())  # type: ignore[method-assign]
        return session


class ShapelessEngine(MuteEngine):
    """Claims to show its caches and shows nothing that could be looked at."""

    def start(self, case: Case) -> Session:
        session = MuteSession(case)
        session.observe = lambda: None  # type: ignore[method-assign, assignment, return-value]
        return session


class NeedsArguments:
    def __init__(self, model: object) -> None:
        self.model = model


SHOWS_OFFSETS = Capabilities(rules=frozenset({"greedy"}), rounds=False, target_offsets=True)
EXITING = ExitingEngine(capabilities=SHOWS_OFFSETS)
RAISING_AT_ONCE = RaisingAtOnceEngine(capabilities=SHOWS_OFFSETS)
SHAPELESS = ShapelessEngine(capabilities=SHOWS_OFFSETS)
LAYERLESS = LayerlessEngine(capabilities=SHOWS_OFFSETS)
FALSE_CLAIMS = MuteEngine(capabilities={"rules": ["greedy"]})  # type: ignore[arg-type]
FORGETFUL = ReferenceEngine("forgetful", drafter_class=ForgetfulDrafter)
RAISING = ReferenceEngine("raising", drafter_class=RaisingDrafter)
INTERRUPTED = ReferenceEngine("interrupted", drafter_class=InterruptedDrafter)
MUTE = MuteEngine()
MALFORMED = MalformedEngine()
NOT_AN_ENGINE = 3
