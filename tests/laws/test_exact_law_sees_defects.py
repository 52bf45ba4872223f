"""Negative controls of `exact_law`: decoders that are wrong in known ways are seen, and told apart from right ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
from law_controls import (
    ARGMAX_DRAFT,
    BONUS_FROM_Q,
    COLDER_DRAFT,
    REDRAW,
    TOO_OFTEN,
    Control,
    StuckWalk,
    UncopiableWalk,
    Walk,
    tiny_case,
)

from reference.cache import LayerCache
from reference.decoder import Decoder, DecoderState
from reference.drafters import DraftModel
from reference.errors import InvalidSetting
from reference.values import DraftBlock, Finish
from specproof import exact_law
from specproof.adapters.reference import ENGINE, ReferenceEngine
from specproof.defects.acceptance import residual_one_row_early
from specproof.defects.mutations import with_decision
from specproof.engine import Capabilities, Case, Choices, ExactSession, Floats, Session
from specproof.exact_law import TOLERANCE, check, measure, violation
from specproof.law_cases import CONTRARY
from specproof.laws import LAWS
from specproof.pairs import tiny
from specproof.transforms import Sharpen

EXACT = TOLERANCE["float64"]


@pytest.mark.parametrize(
    ("wrong", "drafter", "variation"),
    [
        (REDRAW, CONTRARY, 0.1677),
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


# ------------------------------------------------------------------------------------ each case has what it sees


def ignoring(**fields: object) -> Control:
    """The oracle, whose target does not hear of some sampling fields; its drafter does."""

    class Ignoring(Decoder):
        def __post_init__(self) -> None:
            super().__post_init__()
            object.__setattr__(self, "sampling", replace(self.sampling, **fields))

    return Control(name=f"ignores {', '.join(fields)}", decoder_class=Ignoring)


class FloorOnTheDrawnToken(DraftModel):
    """Ends its block before a token that is improbable itself: what is left is not drawn from q."""

    def propose(self, history: Sequence[int], target_hidden: Floats | None, budget: int) -> DraftBlock:
        block = super().propose(history, target_hidden, budget)
        likely = [q.prob(token) >= self.min_prob for token, q in zip(block.tokens, block.distributions, strict=True)]
        keep = [*likely, False].index(False)
        return DraftBlock(block.tokens[:keep], block.distributions[:keep])


class StopsAtTheEndOfABlock(Decoder):
    """Looks for a stop token at the end of a round's tokens only."""

    def _until_stop(self, tokens: Sequence[int]) -> Sequence[int]:
        return tokens


class EndsWhereNoBlockFits(Decoder):
    """Ends the turn where the budget does not take a whole block with its bonus."""

    def _finish(self, last: int, num_emitted: int, max_tokens: int) -> Finish | None:
        return "length" if num_emitted + self.num_draft_tokens + 1 > max_tokens else None


class ForgetsWhatWasAdded(Decoder):
    """Goes on after its own tokens, whatever the caller added to them."""

    def extend(self, state: DecoderState, tokens: Sequence[int], max_tokens: int) -> DecoderState:
        return super().extend(state, [], max_tokens)


class RestoresKeysInReverse(Decoder):
    """Takes a warm cache in with its keys in the wrong order; their number is right."""

    def extend(self, state: DecoderState, tokens: Sequence[int], max_tokens: int) -> DecoderState:
        layers = state.target_cache.layers
        state.target_cache.layers = [LayerCache(layer.keys[:, ::-1], layer.values) for layer in layers]
        return super().extend(state, tokens, max_tokens)


CASES = {
    case.id.removeprefix("exact_law/rejection/"): case
    for case in exact_law.cases(ENGINE.capabilities, tiny(), 0, quick=False)
}
CASE_AND_CONTROL = [
    ("k1/bias", ignoring(logit_bias={})),
    ("k2/T0.7-top_p0.75", ignoring(top_p=1.0)),
    ("k2/T0.7-top_p0.75", ignoring(temperature=1.0)),
    ("k2/T0.7-top_k2", ignoring(top_k=0)),
    ("k2/T0.7-top_k2", ignoring(temperature=1.0)),
    ("k2/T0.7-min_p0.3", ignoring(min_p=0.0)),
    ("k2/T0.7-min_p0.3", ignoring(temperature=1.0)),
    ("k2/T0.7-penalties", ignoring(repetition_penalty=1.0)),
    ("k2/T0.7-penalties", ignoring(presence_penalty=0.0)),
    ("k2/T0.7-penalties", ignoring(frequency_penalty=0.0)),
    ("k2/T0.7-penalties", ignoring(temperature=1.0)),
    ("k2/window", ignoring(penalty_window=0)),
    ("k2/floor", Control(name="floor on the drawn token", drafter_class=FloorOnTheDrawnToken)),
    ("k2/lookup", TOO_OFTEN),
    ("k2/T1-contrary", Control(name="residual one row early", decoder_class=with_decision(residual_one_row_early))),
    ("k2/stop", Control(name="late stop", decoder_class=StopsAtTheEndOfABlock)),
    ("k3/budget3", Control(name="early end", decoder_class=EndsWhereNoBlockFits)),
    ("k2/two_turns", Control(name="forgets", decoder_class=ForgetsWhatWasAdded)),
    ("k2/two_turns", Control(name="reversed keys", decoder_class=RestoresKeysInReverse)),
    ("k2/warm_start", Control(name="forgets", decoder_class=ForgetsWhatWasAdded)),
    ("k2/warm_start", Control(name="reversed keys", decoder_class=RestoresKeysInReverse)),
]


@pytest.mark.parametrize(("label", "wrong"), [pytest.param(c, w, id=f"{c}-{w.name}") for c, w in CASE_AND_CONTROL])
def test_each_variant_sees_the_defect_that_it_is_there_for(label: str, wrong: Control):
    assert measure(ENGINE, CASES[label]).variation <= EXACT
    assert measure(wrong, CASES[label]).variation > 0.005


def test_every_variant_of_a_full_check_has_a_control():
    plain = {f"k{k}/T1" for k in (1, 2, 3)} | {"k3/T0.7-top_p0.75"}
    rejection = {label for label in CASES if not label.startswith("exact_law/")}
    assert rejection - plain == {label for label, _ in CASE_AND_CONTROL}


def test_an_engine_whose_sessions_cannot_be_continued_is_spared_second_turns_and_the_note_says_so():
    result = check(WalkEngine(replace(SAMPLES, resumable=True)), tiny(), 0, quick=True)
    assert "exact sessions cannot be continued: no second turn was enumerated" in result.note
    assert result.cases == 3


def test_a_second_turn_without_a_way_to_continue_is_refused_with_what_to_add():
    case = CASES["k2/warm_start"]
    with pytest.raises(InvalidSetting, match=r"Walk has no extend\(tokens, max_tokens\); add it for a second turn"):
        measure(WalkEngine(SAMPLES), case)


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


def test_replay_leaves_out_larger_blocks_that_so_few_tokens_cannot_tell_apart():
    ran = []

    class Noting(WalkEngine):
        def start_exact(self, case: Case, choices: Choices) -> ExactSession:
            ran.append(case)
            return super().start_exact(case, choices)

    result = check(Noting(SAMPLES, UncopiableWalk), tiny(), 0, quick=False)
    assert {case.id.removeprefix("exact_law/rejection/") for case in ran} == {"k1/T1", "k2/T1", "k2/stop"}
    assert {case.max_tokens for case in ran} == {4, 2}  # 4: the session that was only asked whether it can be copied
    assert result.cases == 3


def test_a_lossy_engine_is_measured_and_not_failed():
    result = check(WalkEngine(replace(SAMPLES, lossy=True)), tiny(), 0, quick=True)
    assert (result.status, result.violations) == ("not_observable", ())
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
