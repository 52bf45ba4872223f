"""The law of the MLX decoder, by enumeration, is the target's to float32 precision. See also `test_laws_of_engines`."""

from __future__ import annotations

from dataclasses import replace

import pytest
from law_controls import tiny_case

pytest.importorskip("mlx.core", reason="mlx is not installed: pip install 'specproof[mlx]'")

import mlx.core as mx
from mlx_law_controls import DrawsArgmax, bonus_from_q, redraw_from_p, with_decision

from mlx_impl.acceptance import Decision
from mlx_impl.decoder import Decoder
from mlx_impl.randomness import Randomness
from reference.errors import InvalidSetting
from reference.values import SamplingParams
from specproof.adapters.mlx_impl import ENGINE, MlxImplEngine
from specproof.adapters.reference import ENGINE as ORACLE
from specproof.engine import Case
from specproof.exact_law import TOLERANCE, measure
from specproof.law_cases import CONTRARY, LOOKUP_PROMPT

EXACT = TOLERANCE["float32"]
TWO = SamplingParams(top_k=2)
PENALTIES = replace(TWO, repetition_penalty=1.3, presence_penalty=0.4, frequency_penalty=0.2)


def rejecting_case(**changes: object) -> Case:
    return replace(tiny_case("rejection", 2, 4, TWO), **changes)


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(rejecting_case(), id="plain"),
        pytest.param(rejecting_case(sampling=PENALTIES), id="penalties"),
        pytest.param(rejecting_case(sampling=replace(PENALTIES, penalty_window=2)), id="penalty window"),
        pytest.param(rejecting_case(stop_tokens=frozenset({1})), id="stop token"),
        pytest.param(rejecting_case(min_prob=0.6), id="floor"),
        pytest.param(rejecting_case(draft=None, drafter="prompt_lookup", prompt=LOOKUP_PROMPT), id="prompt lookup"),
        pytest.param(tiny_case("rejection", 1, 3, drafter=CONTRARY), id="contrary drafter"),
        pytest.param(tiny_case("sampler_match", 1, 3, drafter=CONTRARY), id="contrary drafter, sampler match"),
        pytest.param(tiny_case("block", 1, 3, drafter=CONTRARY), id="contrary drafter, block of one"),
        pytest.param(tiny_case("block", 2, 4, drafter=CONTRARY), id="contrary drafter, block"),
        pytest.param(tiny_case("block", 3, 5, TWO, drafter=CONTRARY), id="contrary drafter, block of three"),
        pytest.param(rejecting_case(rule="block", sampling=PENALTIES), id="penalties, block"),
        pytest.param(rejecting_case(rule="block", stop_tokens=frozenset({1})), id="stop token, block"),
    ],
)
def test_the_law_is_the_targets(case: Case):
    found = measure(ENGINE, case)
    assert sum(found.result.probabilities.values()) == pytest.approx(1, abs=EXACT)
    assert found.variation <= EXACT


def test_choices_that_decide_nothing_are_not_enumerated():
    """The oracle stops choosing at the first rejection, but for `block`; on the device all choices are made."""
    for rule, k in (("rejection", 3), ("sampler_match", 3), ("block", 2)):
        case = tiny_case(rule, k, 5, TWO)
        assert measure(ENGINE, case).result.rounds == measure(ORACLE, case).result.rounds


def count_all_coins(p: mx.array, q: mx.array, drafted: mx.array, randomness: Randomness, position: int) -> Decision:
    """Rejection that goes on accepting behind the first rejection."""
    rows = mx.arange(len(drafted))
    accepted = mx.sum(randomness.bernoulli(mx.minimum(p[rows, drafted] / q[rows, drafted], 1.0)))
    return accepted, randomness.categorical(p[accepted][None])[0]


def count_all_matches(p: mx.array, q: mx.array, drafted: mx.array, randomness: Randomness, position: int) -> Decision:
    """Sampler match that goes on accepting behind the first mismatch."""
    drawn = randomness.categorical(p)
    accepted = mx.sum(drawn[:-1] == drafted)
    return accepted, drawn[accepted]


@pytest.mark.parametrize(
    ("rule", "decide", "variation"),
    [("rejection", count_all_coins, 0.05), ("sampler_match", count_all_matches, 0.05)],
)
def test_a_rule_that_uses_choices_behind_the_first_rejection_is_seen_all_the_same(rule, decide, variation):
    found = measure(MlxImplEngine(decoder_class=with_decision(decide)), tiny_case(rule, 2, 4, drafter=CONTRARY))
    assert found.variation > variation


def capped_at_the_end(ratios: mx.array) -> tuple[mx.array, mx.array]:
    """Weights of a block whose cap at 1 is outside the recursion."""
    w = mx.minimum(mx.concatenate([mx.ones((1,)), mx.cumprod(ratios)]), 1.0)
    return w, 1 - w


def test_a_block_capped_outside_the_recursion_is_seen(monkeypatch):
    monkeypatch.setattr("mlx_impl.acceptance._block_weights", capped_at_the_end)
    assert measure(ENGINE, tiny_case("block", 2, 4, drafter=CONTRARY)).variation == pytest.approx(0.0471, abs=1e-3)


class FirstFailureEnds(Decoder):
    """A block that is cut at the first coin that does not come up."""

    def __init__(self, *args: object, **settings: object) -> None:
        super().__init__(*args, **settings)
        right = self.rule.decide

        def decide(p: mx.array, q: mx.array, drafted: mx.array, randomness: Randomness, position: int) -> Decision:
            class Leading:
                categorical = randomness.categorical

                def bernoulli(self, probabilities: mx.array) -> mx.array:
                    return mx.cumprod(randomness.bernoulli(probabilities).astype(mx.int32)) > 0

            return right(p, q, drafted, Leading(), position)

        self.rule = replace(self.rule, decide=decide)


def test_a_block_that_stops_at_the_first_failure_is_seen():
    found = measure(MlxImplEngine(decoder_class=FirstFailureEnds), tiny_case("block", 2, 4, drafter=CONTRARY))
    assert found.variation == pytest.approx(0.1561, abs=1e-3)


def test_coupled_draws_cannot_be_enumerated_and_say_so():
    with pytest.raises(InvalidSetting, match=r"the coupled rule draws by continuous noise, which nobody can"):
        measure(ENGINE, tiny_case("coupled", 1, 2))


@pytest.mark.parametrize(
    ("wrong", "case", "variation"),
    [
        ({"decoder_class": with_decision(redraw_from_p)}, tiny_case("rejection", 1, 3, drafter=CONTRARY), 0.1114),
        ({"decoder_class": with_decision(bonus_from_q)}, tiny_case("rejection", 1, 3, drafter=CONTRARY), 0.2259),
        ({"decoder_class": with_decision(bonus_from_q)}, tiny_case("rejection", 2, 4, TWO), 0.0824),
        ({"drafter_class": DrawsArgmax}, tiny_case("rejection", 1, 3), 0.1942),
        ({"drafter_class": DrawsArgmax}, tiny_case("rejection", 2, 4, TWO, CONTRARY), 0.2449),
        ({"drafter_class": DrawsArgmax}, tiny_case("block", 2, 4, TWO), 0.2638),
    ],
    ids=[
        "redraw from p after a rejection",
        "bonus from q",
        "bonus from q, block of two",
        "greedy draft with a softmax q",
        "greedy draft with a softmax q, block of two",
        "greedy draft with a softmax q, block rule",
    ],
)
def test_a_lossy_decoder_is_seen(wrong: dict[str, type], case: Case, variation: float):
    assert measure(MlxImplEngine(**wrong), case).variation == pytest.approx(variation, abs=1e-3)
