"""The law of the MLX decoder, by enumeration, is the target's to float32 precision. See also `test_laws_of_engines`."""

from __future__ import annotations

from dataclasses import replace

import pytest
from law_controls import tiny_case

pytest.importorskip("mlx.core", reason="mlx is not installed: pip install 'specproof[mlx]'")

import mlx.core as mx

from mlx_impl.acceptance import RULES
from mlx_impl.decoder import Decoder
from mlx_impl.randomness import Randomness
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
    ],
)
def test_the_law_is_the_targets(case: Case):
    found = measure(ENGINE, case)
    assert sum(found.result.probabilities.values()) == pytest.approx(1, abs=EXACT)
    assert found.variation <= EXACT


def test_choices_that_decide_nothing_are_not_enumerated():
    """The oracle stops choosing at the first rejection; the decoder on the device makes all choices of a block."""
    for rule, k in (("rejection", 3), ("sampler_match", 3)):
        case = tiny_case(rule, k, 5, TWO)
        assert measure(ENGINE, case).result.rounds == measure(ORACLE, case).result.rounds


def count_all_coins(p: mx.array, q: mx.array, drafted: mx.array, randomness: Randomness) -> tuple[mx.array, mx.array]:
    """Rejection that goes on accepting behind the first rejection."""
    rows = mx.arange(len(drafted))
    accepted = mx.sum(randomness.bernoulli(mx.minimum(p[rows, drafted] / q[rows, drafted], 1.0)))
    return accepted, randomness.categorical(p[accepted][None])[0]


def count_all_matches(p: mx.array, q: mx.array, drafted: mx.array, randomness: Randomness) -> tuple[mx.array, mx.array]:
    """Sampler match that goes on accepting behind the first mismatch."""
    drawn = randomness.categorical(p)
    accepted = mx.sum(drawn[:-1] == drafted)
    return accepted, drawn[accepted]


@pytest.mark.parametrize(
    ("rule", "decide", "variation"),
    [("rejection", count_all_coins, 0.05), ("sampler_match", count_all_matches, 0.05)],
)
def test_a_rule_that_uses_choices_behind_the_first_rejection_is_seen_all_the_same(rule, decide, variation):
    class Wrong(Decoder):
        def __init__(self, *args: object, **settings: object) -> None:
            super().__init__(*args, **settings)
            self.rule = replace(self.rule, decide=decide)

    found = measure(MlxImplEngine(decoder_class=Wrong), tiny_case(rule, 2, 4, drafter=CONTRARY))
    assert found.variation > variation


def redraw_from_p(p: mx.array, q: mx.array, drafted: mx.array, randomness: Randomness) -> tuple[mx.array, mx.array]:
    """Rejection without a residual."""
    num_accepted, _ = RULES["rejection"].decide(p, q, drafted, randomness)
    return num_accepted, randomness.categorical(p[num_accepted][None])[0]


class Redraw(Decoder):
    """The decoder with that rule."""

    def __init__(self, *args: object, **settings: object) -> None:
        super().__init__(*args, **settings)
        self.rule = replace(self.rule, decide=redraw_from_p)


def test_a_redraw_from_p_after_a_rejection_is_seen():
    found = measure(MlxImplEngine(decoder_class=Redraw), tiny_case("rejection", 1, 3, drafter=CONTRARY))
    assert found.variation == pytest.approx(0.1114, abs=1e-3)
