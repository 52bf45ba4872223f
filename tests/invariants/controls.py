"""What negative controls need: cases by their id, and which invariants a run breaks."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from subjects import SEED

from reference.values import SamplingParams
from specproof import forcing
from specproof.adapters.reference import ENGINE
from specproof.engine import Case, Engine
from specproof.invariants import RUN_INVARIANTS
from specproof.pairs import toy
from specproof.regimes import REGIMES
from specproof.results import Violation
from specproof.runner import Run, run_case

GREEDY = SamplingParams(temperature=0.0)


@lru_cache(maxsize=1)
def _all_cases() -> Mapping[str, Case]:
    every = (regime.cases(toy(), ENGINE.capabilities, SEED, quick=False) for regime in REGIMES.values())
    return {case.id: case for cases in every for case in cases}


def case_named(name: str) -> Case:
    """The case of the full audit with this id."""
    return _all_cases()[name]


def violations(invariant: str, run: Run) -> list[Violation]:
    """What an invariant finds in a run."""
    return RUN_INVARIANTS[invariant].check(run)


def broken(engine: Engine, name: str) -> set[str]:
    """The invariants that an engine breaks in a case."""
    run = run_case(engine, case_named(name))
    return {invariant for invariant in RUN_INVARIANTS if violations(invariant, run)}


def never_agreeing(num_draft_tokens: int, max_tokens: int) -> Case:
    """A one-token prompt and a drafter whose argmax is never the target's, at temperature 0."""
    models = forcing.all_reject(toy(), GREEDY)
    return Case(
        id="never_agreeing",
        regime="all_reject",
        target=models.target,
        draft=models.draft,
        prompt=(7,),
        rule="greedy",
        sampling=GREEDY,
        num_draft_tokens=num_draft_tokens,
        max_tokens=max_tokens,
    )
