"""`output_distribution` accepts right samplers, rejects lossy rules and bad generators, and says what it found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest
from law_controls import (
    ARGMAX_DRAFT,
    BONUS_FROM_Q,
    COLDER_DRAFT,
    REDRAW,
    RIGHT,
    Control,
    FailsLate,
    IgnoresTopP,
    IndependentDraft,
    PlainSampler,
    SameSeedAlways,
    noise_by_place_in_block,
    tiny_case,
    too_much_of_q,
)

from reference.randomness import SeededRandomness
from reference.values import SamplingParams
from specproof.defects.mutations import with_decision
from specproof.defects.randomness import OneCoinForBoth
from specproof.engine import Case, Engine
from specproof.evidence import Evidence, confirm
from specproof.exact_law import measure
from specproof.law_cases import CONTRARY, Tokens, random_prompt
from specproof.laws import LAWS
from specproof.output_distribution import QUICK, Drawn, Effort, cases, check, draw, judge, sequence_evidence
from specproof.pairs import tiny
from specproof.results import CheckResult
from specproof.statistics import FAMILY_LEVEL, chi_squared, coin_test, seeds
from specproof.token_frequency import PREFERRED, token_evidence
from specproof.transforms import Sharpen

SEED = 0
SMALL = Effort(samples=150, turns=1, coupled_seeds=4)
LOSSY = PlainSampler(too_much_of_q)


def judged(engine: Engine, effort: Effort) -> CheckResult:
    return judge(engine, list(cases(engine.capabilities, tiny(), SEED, quick=True)), SEED, effort)


def sampled(engine: Engine, case: Case, samples: int) -> Drawn:
    return draw(engine, case, seeds(SEED, case.id, 0, samples))


def pearson(drawn: Drawn) -> float:
    (p_value,) = [piece.test.p_value for piece in sequence_evidence(drawn) if piece.about == "sequences, chi-squared"]
    return p_value


def test_the_note_says_what_would_have_been_found():
    result = judged(PlainSampler(), SMALL)
    assert result.status == "holds"
    for part in (
        "3 settings, 18 tests, smallest p-value",
        "with probability 0.99 a total variation of 0.",
        "were pooled",
    ):
        assert part in result.note


# ------------------------------------------------------------------------------- negative controls: the rule is lossy


@pytest.mark.parametrize(
    ("wrong", "k", "temperature", "drafter"),
    [(REDRAW, 1, 1.0, CONTRARY), (COLDER_DRAFT, 2, 0.7, None), (ARGMAX_DRAFT, 1, 1.0, None)],
    ids=["redraw from p", "draft temperature", "argmax draft"],
)
def test_chi_squared_rejects_lossy_decoders(wrong: Control, k: int, temperature: float, drafter: Sharpen | None):
    case = tiny_case("rejection", k, k + 2, SamplingParams(temperature=temperature), drafter)
    assert pearson(sampled(wrong, case, 500)) < 1e-5


@pytest.mark.parametrize(
    ("wrong", "setting"),
    [
        (REDRAW, "T1-contrary"),
        (REDRAW, "T0.7-contrary"),
        (BONUS_FROM_Q, "T1-top_p0.75-contrary"),
        (COLDER_DRAFT, "T1"),
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_the_effort_of_a_quick_audit_finds_every_lossy_decoder(wrong: Control, setting: str):
    """One setting that shows it; the family, and so Holm's threshold, is that of the whole check."""
    every = list(cases(wrong.capabilities, tiny(), SEED, quick=True))
    (case,) = [case for case in every if case.id.endswith(f"/{setting}")]
    result = judge(wrong, [case], SEED, QUICK)
    assert result.status == "fails"
    family = 6 * len(every)
    assert min(found.numbers["p_value"] for found in result.violations) < FAMILY_LEVEL / family


def test_chi_squared_accepts_the_right_decoder_with_the_same_seeds():
    case = tiny_case("rejection", 1, 3, drafter=CONTRARY)
    assert pearson(sampled(RIGHT, case, 500)) > 1e-3


def test_the_check_fails_a_lossy_engine_and_names_formula_numbers_and_advice():
    result = judged(LOSSY, replace(SMALL, samples=2000))
    assert result.status == "fails"
    told = next(found for found in result.violations if "chi-squared" in found.message)
    assert told.case_id.startswith("output_distribution/rejection/k2/")
    for part in (
        "chi-squared of 2000 sequences of 4 tokens against the target's exact law is",
        "degrees of freedom, p =",
        "observed total variation",
        "; on fresh seeds chi-squared of 2000",
        "family-wise level 0.001 over 18 tests, Holm",
        "If exact_law holds, look at the generator",
    ):
        assert part in told.message
    assert {"statistic", "p_value", "repeated_p_value", "samples"} <= told.numbers.keys()


def test_tokens_the_drafter_prefers_give_away_a_lossy_rule_with_few_turns():
    case = tiny_case("rejection", 2, 4, drafter=CONTRARY)
    turns = seeds(SEED, "turns", 0, 20)
    right = {found.about: found for found in token_evidence(RIGHT, case, turns)}
    wrong = {found.about: found for found in token_evidence(REDRAW, case, turns)}
    assert right.keys() == {PREFERRED, "token 0", "token 1", "token 2"}
    assert min(found.test.p_value for found in right.values()) > 1e-3
    assert wrong[PREFERRED].test.p_value < 1e-6
    assert wrong[PREFERRED].finding.startswith("tokens that the drafter prefers (q > p) make up 0.")
    assert "of 960 tokens in 20 turns, expected 0." in wrong[PREFERRED].finding


def test_a_lossy_engine_that_says_so_is_measured_and_not_failed():
    result = judged(replace(LOSSY, lossy=True), replace(SMALL, samples=2000))
    assert (result.status, result.violations) == ("not_observable", ())
    assert "declares that it is lossy: measured, not judged" in result.note


def test_the_observed_variation_of_a_right_sampler_is_about_what_chance_gives():
    case = tiny_case("rejection", 2, 4)
    right, wrong = sampled(PlainSampler(), case, 4000), sampled(LOSSY, case, 4000)
    assert right.variation == pytest.approx(right.variation_by_chance, rel=0.3)
    assert wrong.variation > 2 * wrong.variation_by_chance


def independence(prompt_of: Callable[[int], Tokens]) -> float:
    """The least p-value of: the first draw of an engine's generator tells no token of the prompt of the same seed."""
    drawn = [(prompt_of(seed), int(3 * SeededRandomness(seed).uniform())) for seed in seeds(SEED, "prompts", 0, 3000)]
    alike = {(token, draw): 1 / 9 for token in range(3) for draw in range(3)}
    counted = [Counter((prompt[place], draw) for prompt, draw in drawn) for place in range(3)]
    return min(chi_squared(counts, alike).p_value for counts in counted)


def test_the_prompt_of_a_turn_is_independent_of_its_draws_though_both_come_from_one_seed():
    assert independence(lambda seed: random_prompt(3, seed)) > 1e-3
    assert independence(lambda seed: tuple(np.random.default_rng(seed).integers(3, size=3))) < 1e-9


# ------------------------------------------------------------------------- negative controls: the generator is bad


def test_a_generator_that_ignores_its_seed_is_rejected():
    assert judged(SameSeedAlways(), SMALL).status == "fails"


def test_a_coin_that_decides_twice_is_seen_here_and_not_by_the_exact_law():
    wrong = Control(randomness_class=OneCoinForBoth)
    case = tiny_case("rejection", 1, 3, drafter=CONTRARY)
    assert measure(wrong, case).variation < 1e-12
    assert pearson(sampled(wrong, case, 500)) < 1e-4


def test_a_token_outside_the_targets_support_is_named_with_its_count():
    result = judged(IgnoresTopP(), SMALL)
    assert {found.case_id for found in result.violations} == {"output_distribution/rejection/k2/T1-top_p0.75"}
    assert "and has probability 0 under the target" in result.violations[0].message


def test_coupled_output_that_depends_on_k_is_named_with_its_seed():
    wrong = Control(decoder_class=with_decision(noise_by_place_in_block, "coupled"), rules=frozenset({"coupled"}))
    result = judged(wrong, replace(SMALL, samples=20, turns=1))
    told = result.violations[-1]
    assert told.message.startswith(f"seed {told.numbers['seed']} gives (")
    assert f"with k = {told.numbers['num_draft_tokens']}, but (" in told.message
    assert "key their noise by the absolute position" in told.message


def test_coupled_output_does_not_depend_on_how_the_drafter_draws():
    independent = Control(drafter_class=IndependentDraft, rules=frozenset({"coupled"}))
    assert judged(independent, replace(SMALL, samples=40, turns=1)).status == "holds"


# ------------------------------------------------------------------------------------- suspicion, and its repetition


def evidence(case: Case, share: float) -> Evidence:
    hits = round(share * 1000)
    test = coin_test([True] * hits + [False] * (1000 - hits), [0.5] * 1000)
    return Evidence(case, "heads", test, f"heads are {share:.2f} of 1000", "Look at the coin.")


def test_a_suspicion_that_fresh_seeds_do_not_confirm_is_not_reported():
    case = tiny_case("rejection", 2, 4)
    asked: list[int] = []

    def gather(case: Case, repetition: int) -> Iterator[Evidence]:
        asked.append(repetition)
        yield evidence(case, 0.5)

    assert confirm("law", [evidence(case, 0.6)], gather) == []
    assert asked == [1]


def test_a_suspicion_that_fresh_seeds_confirm_is_reported_with_both_findings():
    case = tiny_case("rejection", 2, 4)
    (told,) = confirm("law", [evidence(case, 0.6)], lambda case, repetition: [evidence(case, 0.58)])
    assert told.message == (
        "heads are 0.60 of 1000; on fresh seeds heads are 0.58 of 1000 "
        "(family-wise level 0.001 over 1 tests, Holm). Look at the coin."
    )
    assert told.numbers["z"] > told.numbers["repeated_z"] > 4


def test_nothing_is_repeated_without_a_suspicion():
    def gather(case: Case, repetition: int) -> Iterator[Evidence]:
        raise AssertionError("there was no reason to repeat")

    assert confirm("law", [evidence(tiny_case("rejection", 2, 4), 0.51)], gather) == []


# ------------------------------------------------------------------------------------------- engines of other kinds


def test_what_an_engine_raises_is_a_violation_of_its_case():
    result = judged(FailsLate(), replace(SMALL, samples=40, turns=1))
    assert [found.message for found in result.violations] == ["the engine raised RuntimeError: out of pages"] * 3


class FailsInLongTurns(PlainSampler):
    """Runs out of pages where a turn is long."""

    def start(self, case: Case) -> Iterator[int]:
        if case.max_tokens > 10:
            raise RuntimeError("out of pages")
        return super().start(case)


def test_an_engine_that_fails_in_long_turns_only_is_told_so_in_its_own_words():
    result = judged(FailsInLongTurns(), replace(SMALL, samples=40, turns=1))
    assert [found.message for found in result.violations] == ["the engine raised RuntimeError: out of pages"] * 3


def test_an_engine_that_only_decodes_greedily_is_not_judged():
    greedy = replace(RIGHT, rules=frozenset({"greedy"}))
    assert not LAWS["output_distribution"].observable(greedy.capabilities)
    result = check(greedy, tiny(), SEED, quick=True)
    assert (result.status, result.note) == (
        "not_observable",
        "the engine does not sample, so its output has no distribution",
    )
