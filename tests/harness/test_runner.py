"""Running a case keeps what was seen, and turns whatever an engine raises into a finding."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import count

import pytest

from reference.values import SamplingParams
from specproof.adapters.reference import ENGINE
from specproof.engine import Boundary, Capabilities, Case, Engine, Fault, ModelSpec, Observation
from specproof.errors import InjectedFault
from specproof.invariants import RUN_INVARIANTS
from specproof.pairs import toy
from specproof.runner import OVERRUN, run_case

CASE = Case(
    id="harness",
    regime="plain",
    target=ModelSpec(toy().target),
    draft=ModelSpec(toy().draft),
    prompt=(1, 2, 3),
    rule="rejection",
    sampling=SamplingParams(temperature=0.0),
    num_draft_tokens=3,
    max_tokens=6,
)


@dataclass
class TokensOnly:
    """A session that shows tokens and nothing else."""

    tokens: Iterator[int]
    boundaries: tuple[Boundary, ...] = ()
    closed: bool = field(default=False)

    def __iter__(self) -> Iterator[int]:
        return self.tokens

    def close(self) -> None:
        self.closed = True

    def observe(self) -> Observation:
        return Observation()


@dataclass(frozen=True)
class TokensOnlyEngine:
    """An engine that hands out given tokens."""

    make: object
    name: str = "tokens-only"
    version: str = "0"
    capabilities: Capabilities = field(default=Capabilities(rules=frozenset({"rejection"}), rounds=False))

    def start(self, case: Case) -> TokensOnly:
        return TokensOnly(self.make())


def test_an_engine_that_raises_at_start_leaves_a_run_that_says_so() -> None:
    def fail() -> Iterator[int]:
        raise MemoryError("out of memory")

    run = run_case(TokensOnlyEngine(fail), CASE)
    assert (run.ending, run.error, run.injected, run.emitted) == ("abort", "MemoryError: out of memory", False, ())
    assert "MemoryError: out of memory" in RUN_INVARIANTS["emitted_block"].check(run)[0].message


def test_a_fault_that_the_engine_wraps_in_an_error_of_its_own_is_still_the_harnesss() -> None:
    def fail() -> Iterator[int]:
        try:
            raise InjectedFault("injected")
        except InjectedFault as error:
            raise RuntimeError("the model failed") from error

    run = run_case(TokensOnlyEngine(fail), CASE)
    assert (run.ending, run.injected) == ("abort", True)


def test_an_engine_that_exits_the_process_is_a_run_that_raised() -> None:
    def leave() -> Iterator[int]:
        raise SystemExit(0)

    run = run_case(TokensOnlyEngine(leave), CASE)
    assert (run.ending, run.error, run.injected) == ("abort", "SystemExit: 0", False)


def test_an_engine_that_never_ends_is_closed_a_few_tokens_beyond_its_budget() -> None:
    run = run_case(TokensOnlyEngine(lambda: (7 for _ in count())), CASE)
    assert len(run.emitted) == CASE.max_tokens + OVERRUN
    assert run.ending == "close"
    assert "expected at most max_tokens = 6" in RUN_INVARIANTS["emitted_block"].check(run)[0].message


def test_an_engine_that_shows_only_tokens_is_still_held_to_parity() -> None:
    right = ENGINE.start(CASE)
    tokens = list(right)
    assert not RUN_INVARIANTS["greedy_parity"].check(run_case(TokensOnlyEngine(lambda: iter(tokens)), CASE))
    wrong = [*tokens[:2], (tokens[2] + 1) % 32, *tokens[3:]]
    assert RUN_INVARIANTS["greedy_parity"].check(run_case(TokensOnlyEngine(lambda: iter(wrong)), CASE))


@pytest.mark.parametrize(
    ("change", "ending"),
    [
        ({}, "length"),
        ({"stop_tokens": frozenset(range(32))}, "stop"),
        ({"close_after": 2}, "close"),
        ({"target": ModelSpec(toy().target, fault=Fault(1, "after"))}, "abort"),
        ({"draft": ModelSpec(toy().draft, fault=Fault(0, "before"))}, "abort"),
    ],
)
def test_a_run_knows_how_it_ended(change: dict[str, object], ending: str) -> None:
    run = run_case(ENGINE, replace(CASE, **change))
    assert run.ending == ending
    assert run.injected == (ending == "abort")
    assert run.continuation is not None


def test_only_a_resumable_engine_at_temperature_0_is_continued() -> None:
    assert run_case(ENGINE, replace(CASE, sampling=SamplingParams(temperature=0.8))).continuation is None
    assert run_case(TokensOnlyEngine(lambda: iter(())), CASE).continuation is None


def test_what_the_tests_call_an_engine_is_one() -> None:
    assert isinstance(TokensOnlyEngine(lambda: iter(())), Engine)
