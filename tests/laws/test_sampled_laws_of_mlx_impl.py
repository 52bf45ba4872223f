"""The MLX decoder with its own keys: `output_distribution` and `randomness` pass it, and reject wrong ones."""

from __future__ import annotations

from dataclasses import replace

import pytest
from law_controls import tiny_case

pytest.importorskip("mlx.core", reason="mlx is not installed: pip install 'specproof[mlx]'")

from mlx_law_controls import (
    OneKeyForBoth,
    OneKeyForProposalAndReplacement,
    redraw_from_p,
    with_decision,
    with_randomness,
)

from specproof import independence, output_distribution
from specproof.adapters.mlx_impl import ENGINE, MlxImplEngine
from specproof.law_cases import CONTRARY
from specproof.pairs import tiny
from specproof.results import CheckResult
from specproof.transforms import Sharpen

SEED = 0
DRAWN = replace(output_distribution.QUICK, turns=1)
"""Long turns, by which token frequencies are tested, are for the audit."""
JOINT = replace(independence.FULL, seeds=1, turns=5)
"""Fewer turns than the full audit has; of a key for coin and draw a quick one sees too little."""
REDRAW = MlxImplEngine("redraw", with_decision(redraw_from_p))
ONE_KEY = MlxImplEngine("one key for coin and draw", with_randomness(OneKeyForBoth))
DRAFT_KEY = MlxImplEngine("one key for proposal and replacement", with_randomness(OneKeyForProposalAndReplacement))


def drawn(engine: MlxImplEngine, drafter: Sharpen | None) -> CheckResult:
    case = tiny_case("rejection", output_distribution.NUM_DRAFT_TOKENS, output_distribution.TOKENS, drafter=drafter)
    return output_distribution.judge(engine, [case], SEED, DRAWN)


def joint(engine: MlxImplEngine) -> CheckResult:
    return independence.judge(engine, tiny(), ["rejection"], SEED, JOINT)


@pytest.mark.parametrize("drafter", [CONTRARY, None])
def test_the_sampled_law_of_the_decoder_is_the_targets(drafter: Sharpen | None):
    assert drawn(ENGINE, drafter).status == "holds"


def test_its_random_numbers_serve_one_choice_each():
    assert joint(ENGINE).status == "holds"


# ----------------------------------------------------------------------------------------------- negative controls


@pytest.mark.parametrize(
    ("wrong", "drafter"),
    [pytest.param(REDRAW, CONTRARY, id=REDRAW.name), pytest.param(DRAFT_KEY, None, id=DRAFT_KEY.name)],
)
def test_a_wrong_rule_and_a_key_used_twice_are_rejected_by_chi_squared(wrong: MlxImplEngine, drafter: Sharpen | None):
    result = drawn(wrong, drafter)
    assert result.status == "fails"
    assert any("chi-squared of 400 sequences" in found.message for found in result.violations)


def test_a_key_that_serves_a_coin_and_the_draw_after_it_is_seen_by_the_joint_law_of_a_round():
    result = joint(ONE_KEY)
    assert result.status == "fails"
    assert any("joint law of proposal, verdict and the token after it" in told.message for told in result.violations)
