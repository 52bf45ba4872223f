"""`randomness` accepts engines whose seed decides, and rejects shared, reused and badly compared random numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from law_controls import FailsLate, PlainSampler, SameSeedAlways

from reference.acceptance import RULES
from reference.randomness import SeededRandomness
from reference.values import SamplingParams
from specproof.adapters.reference import ENGINE
from specproof.defects import CATALOGUE
from specproof.engine import Capabilities, Case, Engine
from specproof.independence import SETTINGS, TOKENS, Effort, P, Q, check, joint_law, judge, repeats
from specproof.law_cases import law_case
from specproof.laws import LAWS
from specproof.pairs import tiny
from specproof.results import CheckResult

SMALL = Effort(seeds=2, turns=3, turn_tokens=100)


def judged(engine: Engine, effort: Effort = SMALL) -> CheckResult:
    return judge(engine, tiny(), ["rejection"], 0, effort)


def test_the_oracle_holds_and_the_note_says_what_was_done():
    result = judged(ENGINE)
    assert result.status == "holds"
    for part in ("2 settings repeated", "end points given in 3 settings", "2 joint laws of", "would have been found"):
        assert part in result.note


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("D09", "while the engine decodes other turns"),
        ("D10", "while the engine decodes other turns"),
        ("D55", "the engine raised CacheLengthError"),
        ("D91", "while the engine decodes other turns"),
        ("D92", "while the engine decodes other turns"),
        ("D78", "with the uniforms"),
        ("D79", "has no mass under the target"),
        ("D80", "with the uniforms"),
        ("D81", "joint law of proposal, verdict and the token after it"),
        ("D89", "joint law of proposal, verdict and the token after it"),
        ("D90", "joint law of proposal, verdict and the token after it"),
    ],
)
def test_random_numbers_that_are_shared_or_used_twice_are_seen(name: str, told: str):
    result = judged(CATALOGUE[name].make())
    assert result.status == "fails"
    assert any(told in found.message for found in result.violations)


def test_a_seed_that_is_ignored_is_seen():
    result = judge(SameSeedAlways(), tiny(), ["rejection"], 0, SMALL)
    assert "2 different seeds give the same output" in result.violations[0].message


def test_equal_outputs_of_different_seeds_are_no_finding_where_the_model_is_nearly_certain():
    """A found fault: a tiny model that repeats itself was taken for one that ignores its seed."""
    case = law_case("certain", tiny(), "rejection", 2, SETTINGS[0], (0, 1), TOKENS)
    certain = replace(case, sampling=SamplingParams(temperature=0.01))
    for engine in (ENGINE, SameSeedAlways()):
        assert len({tuple(engine.start(replace(certain, seed=seed))) for seed in range(3)}) == 1
        assert repeats(engine, certain, [1, 2, 3]) == []
    assert repeats(ENGINE, case, [1, 2, 3]) == []
    assert repeats(SameSeedAlways(), case, [1, 2, 3]), "the control"


def test_an_engine_that_shows_tokens_only_is_judged_by_its_seeds_only():
    result = judged(PlainSampler())
    assert result.status == "holds"
    assert result.cases == 1
    assert "the engine's uniforms cannot be given to it; no joint law" in result.note


def test_what_an_engine_raises_is_a_violation_of_its_case():
    result = judged(FailsLate(), replace(SMALL, seeds=20))
    assert "the engine raised RuntimeError: out of pages" in result.violations[0].message


class Greedy(PlainSampler):
    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, rules=frozenset({"greedy"}))

    def start(self, case: Case) -> Iterator[int]:
        raise AssertionError("an engine that does not sample is not run")


def test_an_engine_that_does_not_sample_is_not_observable():
    assert not LAWS["randomness"].observable(Greedy().capabilities)
    assert check(Greedy(), tiny(), 0, quick=True).status == "not_observable"


@pytest.mark.parametrize("rule", ["rejection", "block", "sampler_match"])
def test_the_joint_law_is_that_of_the_rule_itself(rule: str):
    """Drawn by `reference.acceptance` from independent numbers, without an engine."""
    p, q, randomness = np.array(P), np.array(Q), SeededRandomness(5)
    law = joint_law(rule, p, q)
    assert sum(law.values()) == pytest.approx(1)
    counts: Counter[tuple[int, ...]] = Counter()
    for _ in range(20_000):
        d = randomness.categorical(q)
        verdict = RULES[rule].decide([p, p], [q], [d], randomness, 0)
        counts[d, verdict.num_accepted, verdict.token] += 1
    assert counts.keys() == law.keys()
    assert max(abs(counts[outcome] / 20_000 - law[outcome]) for outcome in law) < 0.015
