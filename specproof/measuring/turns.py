"""Run what is to be measured: the same prompts and seeds on every subject, turn by turn in alternation.

In alternation, so that what else the machine does falls on all of them alike. Judges nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, pairwise
from typing import Protocol, runtime_checkable

import numpy as np

from reference.errors import InvalidInput, SpeculationError
from reference.values import Round, SamplingParams
from specproof.engine import Boundary, Case, Engine, Floats, Session
from specproof.measuring.figures import Turn
from specproof.oracle import oracle_of
from specproof.pairs import Pair
from specproof.runner import ENGINE_ERRORS, OVERRUN, error_text

Tokens = tuple[int, ...]


class EngineRaised(SpeculationError, RuntimeError):
    """The engine raised in a valid case, so that there is nothing to measure."""


@runtime_checkable
class LeanEngine(Engine, Protocol):
    """An engine with a way to run a case that costs nothing beside the decode, so that it can be timed."""

    def start_lean(self, case: Case) -> Session:
        """As `start`; the boundaries show rounds and offsets, and neither rows nor distributions."""
        ...


@dataclass(frozen=True)
class Subject:
    """What is measured: an engine under a rule. `label` is its name in the table; `defect` the id, if it has one."""

    label: str
    engine: Engine
    rule: str
    defect: str | None = None


@dataclass(frozen=True)
class Plan:
    """What all subjects run: every prompt with every seed. k is `num_draft_tokens`."""

    pair: Pair
    sampling: SamplingParams
    num_draft_tokens: int
    max_tokens: int
    prompts: tuple[Tokens, ...]
    seeds: tuple[int, ...]

    def case(self, subject: Subject, prompt: int, seed: int) -> Case:
        """One turn."""
        pair = self.pair.built_as(subject.engine.capabilities.architecture)
        return Case(
            id=f"measure/{subject.rule}/k{self.num_draft_tokens}/T{self.sampling.temperature:g}/p{prompt}/s{seed}",
            regime="measure",
            target=pair.target_spec(),
            draft=pair.draft_spec(),
            prompt=self.prompts[prompt],
            rule=subject.rule,
            sampling=self.sampling,
            num_draft_tokens=self.num_draft_tokens,
            max_tokens=self.max_tokens,
            seed=seed,
        )

    @property
    def turns(self) -> list[tuple[int, int]]:
        """Prompt and seed of every turn; at temperature 0 all seeds give the same turn, so one of them does."""
        seeds = self.seeds[:1] if self.sampling.temperature == 0 else self.seeds
        return [(prompt, seed) for prompt in range(len(self.prompts)) for seed in seeds]


def measure(
    subjects: Sequence[Subject], plan: Plan, on_turn: Callable[[str], None] = lambda _: None
) -> Mapping[str, list[Turn]]:
    """The turns of every subject, by its label, in the order of `plan.turns`.

    Where decoding without a drafter must give the same text (at temperature 0, and under `coupled`), it is decoded,
    too, once for each turn and law, by the last subject that has the rule (at temperature 0, whatever the rule).

    Args:
        subjects: with labels that differ.
        plan: what they run.
        on_turn: called with a name before every turn.

    Raises:
        InvalidInput: an engine refuses the case.
        EngineRaised: it raised anything else.
    """
    measured: dict[str, list[Turn]] = {subject.label: [] for subject in subjects}
    for prompt, seed in plan.turns:
        plain: dict[str, Tokens] = {}
        for subject in reversed(subjects):  # the right engine comes after the defect, and decodes plainly for both
            case = plan.case(subject, prompt, seed)
            on_turn(f"{subject.label} {case.id}")
            turn = _turn(subject.engine, case, prompt)
            if plan.sampling.temperature == 0 or subject.rule == "coupled":
                key = subject.rule if plan.sampling.temperature > 0 else "any"
                if key not in plain:
                    plain[key] = _decode(subject.engine, replace(case, num_draft_tokens=0))[0]
                turn = replace(turn, as_plain=turn.emitted == plain[key])
            measured[subject.label].append(turn)
    return measured


def _turn(engine: Engine, case: Case, prompt: int) -> Turn:
    emitted, seconds, boundaries = _decode(engine, case)
    steps = [(before, after.round) for before, after in pairwise(boundaries) if after.round is not None]
    return Turn(
        prompt=prompt,
        seed=case.seed,
        emitted=emitted,
        rounds=tuple(_with_sums(case, before, done) for before, done in steps),
        begins=tuple(len(before.emitted) for before, _ in steps),
        lags=tuple(_lags(case, boundaries, engine.capabilities.offset_convention)),
        seconds=seconds,
    )


def _decode(engine: Engine, case: Case) -> tuple[Tokens, float, Sequence[Boundary]]:
    """The tokens, the seconds from the first to the last of them, and the boundaries.

    An engine that never ends is left after `OVERRUN` tokens too many.
    """
    emitted: list[int] = []
    try:
        session = engine.start_lean(case) if isinstance(engine, LeanEngine) else engine.start(case)
        tokens = iter(session)
        emitted += [int(token) for token in islice(tokens, 1)]
        began = time.perf_counter()
        emitted += [int(token) for token in islice(tokens, case.max_tokens - 1 + OVERRUN)]
        return tuple(emitted), time.perf_counter() - began, session.boundaries
    except ENGINE_ERRORS as error:
        if isinstance(error, InvalidInput) and not emitted:
            raise  # the case is refused; later it would be the decoder that is wrong
        raise EngineRaised(f"{engine.name} raised {error_text(error)}; it cannot be measured here") from error


def _lags(case: Case, boundaries: Sequence[Boundary], convention: int) -> Iterator[int]:
    """P + E - 1, as the engine counts it, less the rows of the drafter's shortest layer. At every boundary."""
    for boundary in boundaries:
        offsets = boundary.observation.draft_offsets
        if offsets:
            yield len(case.prompt) + len(boundary.emitted) - 1 + convention - min(offsets)


def _with_sums(case: Case, before: Boundary, done: Round) -> Round:
    """The round with closed forms at all tested positions: its own, or those of the oracle's p and q."""
    if len(done.sum_min) >= done.num_tested and len(done.sum_prod) >= done.num_tested:
        return done
    history = [*case.prompt, *before.emitted]
    p, q = distributions(case, [*history, *done.drafted], len(history), done.num_tested)
    sum_min = tuple(float(np.minimum(a, b).sum()) for a, b in zip(p, q, strict=True))
    return replace(done, sum_min=sum_min, sum_prod=tuple(float(a @ b) for a, b in zip(p, q, strict=True)))


def distributions(case: Case, tokens: Sequence[int], first: int, count: int) -> tuple[list[Floats], list[Floats]]:
    """The oracle's p and q [V] of `count` tokens of a sequence, from `first` on."""
    assert case.draft is not None, "measured with a draft model"
    p, q = (oracle_of(spec).distributions(tokens, first, case.sampling) for spec in (case.target, case.draft))
    return p[:count], q[:count]
