"""The law of the oracle's decoder, found by enumeration, is the target's: for every discrete rule, k and schedule."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import get_args

import pytest
from law_controls import PROMPT, tiny_case

from reference.decoder import Decoder, DecoderState
from reference.drafters import DraftModel
from reference.prompt_lookup import PromptLookup
from reference.transformer import load
from reference.values import SamplingParams
from specproof.adapters.reference import ENGINE, ReferenceEngine, ReferenceExactSession
from specproof.engine import Case, ModelSpec, Schedule
from specproof.enumeration import EnumeratedRandomness
from specproof.exact import law, target_law, total_variation
from specproof.exact_law import TOLERANCE, measure
from specproof.law_cases import CONTRARY, LOOKUP_PROMPT, clear_prompt
from specproof.oracle import oracle_of
from specproof.pairs import tiny

EXACT = TOLERANCE["float64"]
SAMPLING_RULES = ["sampler_match", "rejection", "block"]
VARIED = {
    "temperature": SamplingParams(temperature=0.7),
    "top-p": SamplingParams(temperature=0.7, top_p=0.75),
    "top-k": SamplingParams(top_k=2),
    "min-p": SamplingParams(min_p=0.4),
    "bias": SamplingParams(logit_bias={0: -0.5, 2: 0.5}),
    "penalties": SamplingParams(repetition_penalty=1.3, presence_penalty=0.4, frequency_penalty=0.2),
    "penalty window": SamplingParams(repetition_penalty=1.3, frequency_penalty=0.5, penalty_window=2),
}
EVERY_RULE = ["temperature", "top-p", "top-k", "min-p", "penalties"]
"""What is varied for every rule; the rest, which is of the same kind, for one."""


def assert_exact(engine: ReferenceEngine, case: Case) -> None:
    found = measure(engine, case)
    assert sum(found.result.probabilities.values()) == pytest.approx(1, abs=EXACT)
    assert found.variation <= EXACT


@pytest.mark.parametrize("k", [1, 2, 3])
@pytest.mark.parametrize("rule", SAMPLING_RULES)
def test_four_tokens_and_a_whole_block_with_its_bonus_have_the_targets_law(rule: str, k: int):
    assert_exact(ENGINE, tiny_case(rule, k, max(4, k + 2)))


@pytest.mark.parametrize("k", [1, 2, 3])
@pytest.mark.parametrize("rule", SAMPLING_RULES)
@pytest.mark.parametrize("schedule", [s for s in get_args(Schedule) if s != "catch_up"])
def test_the_law_does_not_depend_on_the_drafters_schedule(schedule: Schedule, rule: str, k: int):
    """Two tokens to choose from: schedules differ in what the drafter's cache holds, not in what a rule makes of q."""
    assert_exact(ReferenceEngine(schedule=schedule), tiny_case(rule, k, k + 2, SamplingParams(top_k=2)))


@pytest.mark.parametrize("k", [1, 2, 3])
@pytest.mark.parametrize("schedule", get_args(Schedule))
def test_greedy_has_all_mass_on_the_targets_greedy_sequence(schedule: Schedule, k: int):
    case = replace(tiny_case("greedy", k, 5, SamplingParams(temperature=0)), prompt=clear_prompt(tiny(), 5))
    found = measure(ReferenceEngine(schedule=schedule), case)
    assert found.result.probabilities == {oracle_of(case.target).greedy(case.prompt, 5): 1.0}
    assert found.variation == 0


@pytest.mark.parametrize(
    ("varied", "rule"),
    [(varied, rule) for varied in VARIED for rule in SAMPLING_RULES if rule == "rejection" or varied in EVERY_RULE],
)
def test_the_law_is_kept_under_every_sampling_parameter(varied: str, rule: str):
    assert_exact(ENGINE, tiny_case(rule, 2, 4, VARIED[varied]))


@pytest.mark.parametrize("rule", SAMPLING_RULES)
def test_the_law_is_kept_with_a_drafter_that_prefers_what_the_target_avoids(rule: str):
    assert_exact(ENGINE, tiny_case(rule, 1, 4, drafter=CONTRARY))


@pytest.mark.parametrize(("min_prob", "rule"), [*((0.45, rule) for rule in SAMPLING_RULES), (1.5, "rejection")])
def test_the_law_is_kept_where_a_floor_shortens_or_empties_blocks(min_prob: float, rule: str):
    assert_exact(ENGINE, replace(tiny_case(rule, 2, 4), min_prob=min_prob))


@pytest.mark.parametrize("rule", SAMPLING_RULES)
def test_the_law_is_kept_with_prompt_lookup(rule: str):
    case = replace(tiny_case(rule, 2, 4), draft=None, drafter="prompt_lookup", prompt=LOOKUP_PROMPT)
    assert_exact(ENGINE, case)


@pytest.mark.parametrize(("stop", "rule"), [*((1, rule) for rule in SAMPLING_RULES), (0, "rejection"), (2, "block")])
def test_a_stop_token_ends_the_same_sequences_with_the_same_chance(stop: int, rule: str):
    assert_exact(ENGINE, replace(tiny_case(rule, 2, 4), stop_tokens=frozenset({stop})))


@pytest.mark.parametrize("tokens", [1, 2, 3])
def test_the_law_is_kept_where_the_budget_ends_inside_a_block(tokens: int):
    assert_exact(ENGINE, tiny_case("rejection", 3, tokens))


# ------------------------------------------------------------------------------------ more than one turn


@dataclass
class TwoTurns:
    """Two tokens, then token `added`, then two more on the same caches: an `ExactSession` over both turns."""

    decoder: Decoder
    state: DecoderState
    added: int
    first: tuple[int, ...] = ()

    @property
    def emitted(self) -> tuple[int, ...]:
        return (*self.first, *self.state.emitted)

    @property
    def finished(self) -> bool:
        return bool(self.first) and self.state.finish is not None

    def step(self) -> None:
        if self.state.finish is None:
            self.decoder.step(self.state)
        else:
            self.first = tuple(self.state.emitted)
            self.state = self.decoder.extend(self.state, [self.added], 2)

    def copy(self) -> TwoTurns:
        return replace(self, state=self.state.copy())

    def key(self) -> bytes:
        return repr(self.first).encode() + ReferenceExactSession(self.decoder, self.state).key()


@pytest.mark.parametrize("drafter", ["model", "lookup"])
def test_a_second_turn_on_the_caches_of_the_first_has_the_law_of_a_fresh_decode(drafter: str):
    target, draft = load(tiny().target), load(tiny().draft)
    oracle, sampling, added = oracle_of(ModelSpec(tiny().target)), SamplingParams(temperature=0.8), 1
    randomness = EnumeratedRandomness()
    decoder = Decoder(target, rule="rejection", sampling=sampling, randomness=randomness, num_draft_tokens=2)

    def start() -> TwoTurns:
        proposing = DraftModel(draft, sampling, randomness) if drafter == "model" else PromptLookup(3)
        return TwoTurns(decoder, decoder.prefill(PROMPT, proposing, 2), added)

    wanted = {
        (*first, *second): weight * further
        for first, weight in target_law(oracle, PROMPT, sampling, 2).items()
        for second, further in target_law(oracle, (*PROMPT, *first, added), sampling, 2).items()
    }
    assert total_variation(law(start, randomness, 4).probabilities, wanted) <= EXACT


@pytest.mark.parametrize("rule", SAMPLING_RULES)
def test_a_warm_start_has_the_law_of_a_cold_one(rule: str):
    target, draft = load(tiny().target), load(tiny().draft)
    sampling, randomness = SamplingParams(), EnumeratedRandomness()
    decoder = Decoder(target, rule=rule, sampling=sampling, randomness=randomness, num_draft_tokens=2)

    def start() -> TwoTurns:
        warm = decoder.prefill(PROMPT[:2], DraftModel(draft, sampling, randomness), 0)
        return TwoTurns(decoder, decoder.extend(warm, PROMPT[2:], 3), added=0)

    wanted = target_law(oracle_of(ModelSpec(tiny().target)), PROMPT, sampling, 3)
    assert total_variation(law(start, randomness, 3).probabilities, wanted) <= EXACT
