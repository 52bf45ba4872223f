"""Negative controls of `exact_law`: decoders that are wrong in known ways are seen, and told apart from right ones."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from law_controls import (
    ARGMAX_DRAFT,
    BONUS_FROM_Q,
    COLDER_DRAFT,
    CONTRARY,
    REDRAW,
    StuckWalk,
    UncopiableWalk,
    Walk,
    tiny_case,
)

from specproof import exact_law
from specproof.adapters.reference import ENGINE, ReferenceEngine
from specproof.engine import Capabilities, Case, Choices, ExactSession, Session
from specproof.exact_law import TOLERANCE, check, measure, violation
from specproof.laws import LAWS
from specproof.pairs import tiny
from specproof.transforms import Sharpen

EXACT = TOLERANCE["float64"]


@pytest.mark.parametrize(
    ("wrong", "drafter", "variation"),
    [
        (REDRAW, CONTRARY, 0.185),
        (BONUS_FROM_Q, None, 0.112),
        (ARGMAX_DRAFT, None, 0.317),
        (COLDER_DRAFT, None, 0.209),
    ],
)
def test_known_wrong_decoders_are_seen_by_a_wide_margin(
    wrong: ReferenceEngine, drafter: Sharpen | None, variation: float
):
    case = tiny_case("rejection", 2, 4, drafter=drafter)
    assert measure(ENGINE, case).variation <= EXACT
    found = measure(wrong, case)
    assert found.variation == pytest.approx(variation, abs=5e-4)
    assert sum(found.result.probabilities.values()) == pytest.approx(1)  # wrong, but a law


def test_a_wrong_bonus_is_not_seen_before_the_bonus():
    """The shortest sequence that differs tells where in a block the fault is."""
    found = measure(BONUS_FROM_Q, tiny_case("rejection", 2, 4))
    first = exact_law.first_difference(found.result.probabilities, found.wanted, EXACT)
    assert first is not None
    assert len(first.sequence) == 4  # prefill's token, two proposals, the bonus


def test_the_message_names_formula_sequence_and_both_probabilities():
    found = measure(REDRAW, tiny_case("rejection", 2, 4))
    told = violation(found, EXACT)
    assert told.invariant == "exact_law"
    assert told.numbers["total_variation"] == found.variation
    for part in (
        "total variation between the decoder's law and the target's is 0.0474, expected at most 1e-12",
        "1/2 sum |decoder - target| over sequences of up to 4 tokens",
        "Already those of the first 2 tokens differ: (1, 0) has probability 0.138204, the target gives 0.167227",
        "Check the coin, residual and bonus of rule 'rejection'",
    ):
        assert part in told.message


def test_the_check_fails_a_wrong_engine_and_names_only_the_rule_that_is_wrong():
    both = replace(REDRAW, rules=frozenset({"rejection", "greedy"}))
    result = check(both, tiny(), 0, quick=True)
    assert result.status == "fails"
    assert {found.case_id.split("/")[1] for found in result.violations} == {"rejection"}


# ---------------------------------------------------------------------------------------- engines of other kinds


@dataclass(frozen=True)
class WalkEngine:
    """An engine without models, of the capabilities and kind of session that a test gives it."""

    capabilities: Capabilities
    session: type[Walk] = Walk
    probabilities: tuple[float, float, float] = (0.5, 0.3, 0.2)
    name: str = "walk"
    version: str = "1"

    def start(self, case: Case) -> Session:
        raise NotImplementedError("this engine only has exact sessions")

    def start_exact(self, case: Case, choices: Choices) -> ExactSession:
        return self.session(choices, case.max_tokens, self.probabilities)


SAMPLES = Capabilities(rules=frozenset({"rejection"}), injectable_choices=True)


def test_an_engine_whose_choices_cannot_be_made_for_it_is_not_judged():
    for capabilities in (replace(SAMPLES, injectable_choices=False), replace(SAMPLES, rules=frozenset({"coupled"}))):
        assert not LAWS["exact_law"].observable(capabilities)
        result = check(WalkEngine(capabilities), tiny(), 0, quick=True)
        assert (result.status, result.cases) == ("not_observable", 0)
        assert "choices cannot be made by the harness" in result.note


def test_an_engine_that_claims_injectable_choices_without_offering_them_is_not_judged():
    claims = replace(ENGINE, name="claims")

    class OnlyClaims:
        name, version, capabilities, start = "claims", "1", claims.capabilities, claims.start

    assert check(OnlyClaims(), tiny(), 0, quick=True).status == "not_observable"


def test_an_engine_without_copies_is_replayed_with_short_sequences_and_the_note_says_so():
    result = check(WalkEngine(SAMPLES, UncopiableWalk), tiny(), 0, quick=True)
    assert result.status == "fails"  # it does not know the target
    assert "replayed from the prompt, sequences of 2 tokens only" in result.note
    assert "over sequences of up to 2 tokens" in result.violations[0].message


def test_a_lossy_engine_is_measured_and_not_failed():
    result = check(WalkEngine(replace(SAMPLES, lossy=True)), tiny(), 0, quick=True)
    assert result.status == "holds"
    assert "declares that it is lossy: measured, not judged" in result.note
    assert "largest total variation 0." in result.note


def test_what_an_engine_raises_is_a_violation_of_its_case():
    result = check(WalkEngine(SAMPLES, StuckWalk), tiny(), 0, quick=True)
    assert result.status == "fails"
    assert len(result.violations) == result.cases
    assert "the engine raised DecodingFault: the engine emitted nothing in 8 steps" in result.violations[0].message


def test_sampling_fields_that_an_engine_does_not_know_are_not_asked_of_it():
    ids = {case.id for case in exact_law.cases(SAMPLES, tiny(), 0, quick=False)}
    assert ids == {f"exact_law/rejection/{rest}" for rest in ("k1/T1", "k2/T1", "k3/T1", "k2/stop", "k3/budget3")}


def test_a_largest_block_with_too_many_outcomes_is_left_out_and_the_note_says_so(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(exact_law, "AFFORDABLE_ROUNDS", 10)
    result = check(WalkEngine(SAMPLES), tiny(), 0, quick=False)
    assert "left out: exact_law/rejection/k3/T1, as its block one smaller took more than 10 rounds" in result.note
    assert result.cases == 4
