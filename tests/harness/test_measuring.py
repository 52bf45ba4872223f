"""Figures from rounds: what is undefined, the formula, lags, the order of the rules; D01 against the right drafter."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import scipy.stats

from reference.acceptance import RULES
from reference.values import Round, SamplingParams
from specproof.adapters.reference import ENGINE
from specproof.defects import CATALOGUE
from specproof.measuring.figures import (
    Proposals,
    Turn,
    compare_proposals,
    figures,
    mean_lag,
    predicted_speed_up,
    recoveries,
    tokens_per_round,
    wilson,
)
from specproof.measuring.ordering import compare_blocks, compare_positions, coupled_agreement, measured_order
from specproof.measuring.turns import EngineRaised, Plan, Subject, measure
from specproof.pairs import toy


def done(accepted: int, k: int = 2, sum_min: float = 0.5, sum_prod: float = 0.25) -> Round:
    """A round of k proposals 0, 1, .. of which so many were accepted."""
    tested = min(accepted + 1, k)
    return Round(
        drafted=tuple(range(k)),
        num_accepted=accepted,
        emitted=(7,) * (accepted + 1),
        sum_min=(sum_min,) * tested,
        sum_prod=(sum_prod,) * tested,
    )


def turn(*rounds: Round, lags: tuple[int, ...] = (), emitted: tuple[int, ...] = (7,) * 9, **named: object) -> Turn:
    """A turn of these rounds, each beginning a token after the one before."""
    return Turn(0, 0, emitted, rounds, tuple(range(1, len(rounds) + 1)), lags, **named)


# ------------------------------------------------------------------------------------------------------- positions


def test_a_position_counts_the_rounds_in_which_all_before_it_was_accepted() -> None:
    found = figures([turn(done(0), done(1), done(2)), turn(done(2))], 2)
    assert [(place.reached, place.accepted) for place in found.positions] == [(4, 3), (3, 2)]
    assert [place.rate for place in found.positions] == [3 / 4, 2 / 3]
    assert (found.tested.reached, found.tested.accepted) == (7, 5)


def test_closed_forms_are_means_over_tested_positions_only() -> None:
    found = figures([turn(done(0, sum_min=0.2, sum_prod=0.1), done(2, sum_min=0.8, sum_prod=0.7))], 2)
    assert found.positions[0].sum_min == pytest.approx(0.5)
    assert found.positions[1].sum_min == pytest.approx(0.8)
    assert found.tested.sum_min == pytest.approx((0.2 + 0.8 + 0.8) / 3)
    assert found.tested.sum_prod == pytest.approx((0.1 + 0.7 + 0.7) / 3)


def test_what_was_never_reached_has_no_rate_and_no_interval_and_no_closed_form() -> None:
    found = figures([turn(done(0), done(0))], 2)
    unreached = found.positions[1]
    assert (unreached.reached, unreached.rate, unreached.ci, unreached.sum_min, unreached.sum_prod) == (0, *[None] * 4)
    assert found.positions[0].rate == 0, "reached and never accepted is a rate of 0"


def test_without_rounds_nothing_is_defined() -> None:
    found = figures([turn(emitted=(7,))], 2)
    assert found.tested.rate is found.tokens_per_round is found.tokens_per_round_formula is None
    assert found.tokens_per_second is None
    assert found.lag == ()
    assert found.as_plain == (0, 0)


def test_rounds_that_report_no_closed_form_have_none() -> None:
    found = figures([turn(replace(done(1), sum_min=(), sum_prod=()))], 2)
    assert found.tested.rate == 0.5
    assert found.tested.sum_min is found.tested.sum_prod is None


# ------------------------------------------------------------------------------------------------------- intervals


def test_the_interval_is_wilsons() -> None:
    assert wilson(8, 10) == pytest.approx((0.4902, 0.9433), abs=1e-4)  # Newcombe's worked form, by hand
    assert wilson(0, 0) is None


def test_the_interval_has_a_width_at_0_and_1_and_stays_within_them() -> None:
    assert wilson(0, 20) == pytest.approx((0.0, 0.1611), abs=1e-4)
    assert wilson(20, 20) == pytest.approx((0.8389, 1.0), abs=1e-4)


def test_the_interval_covers_the_rate_about_as_often_as_it_says() -> None:
    generator, rate = np.random.default_rng(3), 0.3
    ends = [wilson(int(n), 80) for n in generator.binomial(80, rate, size=4000)]
    covered = np.mean([low <= rate <= high for low, high in ends])
    assert 0.935 < covered < 0.965
    wrong = np.mean([low <= rate + 0.15 <= high for low, high in ends])
    assert wrong < 0.3, "the control: another rate is mostly outside"


# ------------------------------------------------------------------------------------------------ tokens per round


@pytest.mark.parametrize("rate", [0.0, 0.3, 0.99, 1.0])
@pytest.mark.parametrize("k", [1, 4])
def test_the_formula_is_the_mean_length_of_rounds_that_accept_by_a_coin(rate: float, k: int) -> None:
    at_least = [rate**i for i in range(k + 2)]
    exactly = [at_least[a] - (at_least[a + 1] if a < k else 0) for a in range(k + 1)]  # P(a accepted)
    assert tokens_per_round(rate, k) == pytest.approx(sum(p * (a + 1) for a, p in enumerate(exactly)))
    if rate < 1:
        assert tokens_per_round(rate, k) == pytest.approx((1 - rate ** (k + 1)) / (1 - rate))


def test_a_speed_up_is_predicted_from_acceptance_and_costs() -> None:
    assert predicted_speed_up(1.0, 4, 0.0, 1.0) == pytest.approx(5)  # a perfect drafter that costs nothing
    assert predicted_speed_up(0.0, 4, 0.1, 1.2) == pytest.approx(1 / 1.6)  # one that is never right
    assert predicted_speed_up(0.5, 2, 0.25, 1.5) == pytest.approx((1 + 0.5 + 0.25) / 2)


def test_rounds_cut_short_by_the_budget_are_no_part_of_tokens_per_round() -> None:
    found = figures([turn(done(2), done(0), done(1, k=1))], 2)
    assert found.tokens_per_round == 2.0
    assert (found.rounds, found.full_rounds) == (3, 2)
    assert found.tokens_per_round_formula == pytest.approx(tokens_per_round(3 / 4, 2))


# ---------------------------------------------------------------------------------------------------- lag and speed


def test_lag_is_the_mean_over_the_turns_that_got_so_far() -> None:
    assert mean_lag([(0, 2, 4), (0, 1), ()]) == (0.0, 1.5, 4.0)


def test_a_drafter_that_catches_up_is_counted() -> None:
    assert recoveries([turn(lags=(0, 2, 4, 4))]) == 0
    assert recoveries([turn(lags=(0, 2, 0, 2, 1))]) == 2


def test_speed_is_the_median_over_turns_of_tokens_behind_the_first() -> None:
    turns = [turn(seconds=8.0), turn(seconds=4.0), turn(seconds=1.0), turn(seconds=None)]
    assert figures(turns, 2).tokens_per_second == 2.0


def test_turns_that_nothing_says_must_be_plain_are_not_counted() -> None:
    turns = [turn(as_plain=True), turn(as_plain=False), turn(as_plain=None)]
    assert figures(turns, 2).as_plain == (1, 2)


# ------------------------------------------------------------------------------------------------------- proposals


def test_proposals_are_compared_where_both_have_the_same_history() -> None:
    some = turn(done(1), done(1))
    assert compare_proposals([some], [some]) == Proposals(2, 0)
    other = replace(some, rounds=(some.rounds[0], replace(some.rounds[1], drafted=(5, 5))))
    assert compare_proposals([some], [other]) == Proposals(2, 1)
    assert compare_proposals([some], [replace(some, emitted=(3,) * 9)]) == Proposals(0, 0)
    assert compare_proposals([some], [replace(some, seed=1)]) == Proposals(0, 0)


def test_a_shorter_block_is_compared_as_far_as_it_goes() -> None:
    assert compare_proposals([turn(done(1, k=3))], [turn(done(1, k=1))]) == Proposals(1, 0)


# -------------------------------------------------------------------------------------------------- order of rules


def some_distributions(count: int, size: int = 6) -> list[tuple[np.ndarray, np.ndarray]]:
    generator = np.random.default_rng(11)
    drawn = generator.dirichlet([0.5] * size, size=(count, 2))
    drawn[::3, 0, 0] = drawn[::4, 1, 1] = 0.0  # outside a support, as after top-k
    drawn /= drawn.sum(axis=-1, keepdims=True)
    return [(p, q) for p, q in drawn]


def test_the_fast_closed_form_of_coupled_is_that_of_the_rule() -> None:
    with np.errstate(divide="ignore", invalid="ignore"):
        for p, q in some_distributions(60):
            assert coupled_agreement(p, q) == pytest.approx(RULES["coupled"].expected_acceptance(p, q), abs=1e-12)
    p = np.array([0.5, 0.5, 0.0])
    assert coupled_agreement(p, p) == pytest.approx(1.0)
    assert coupled_agreement(p, np.array([0.0, 0.0, 1.0])) == 0


def test_the_theoretical_order_holds_at_every_position() -> None:
    found = compare_positions(some_distributions(200))
    assert (found.places, found.violations) == (200, 0)
    assert list(found.means) == ["sampler_match", "coupled", "rejection"]
    assert list(found.means.values()) == sorted(found.means.values())


def test_a_place_that_breaks_the_order_is_seen() -> None:
    """The control: what is no distribution obeys no order."""
    p = np.array([1.5, 1.5])
    assert compare_positions([(p, p), *some_distributions(2)]).violations == 1


def test_block_expects_no_fewer_of_any_block_than_rejection() -> None:
    blocks = [replace(done(0), p=(0.9, 0.1), q=(0.3, 0.3)), replace(done(0), p=(0.1, 0.9), q=(0.3, 0.3)), done(0)]
    found = compare_blocks(blocks)
    assert (found.places, found.violations) == (2, 0), "a round without p and q is no evidence"
    # p / q = 3, 1/3: rejection 1 + 1/3, block the same; 1/3, 3: rejection 1/3 + 1/3, block 1/3 + min(1/3 * 3, 1).
    assert found.means == {"rejection": pytest.approx((4 / 3 + 2 / 3) / 2), "block": pytest.approx(4 / 3)}


def test_measured_neighbours_are_compared_in_the_theoretical_order() -> None:
    turns = {
        "block": [[3, 3], [2, 3], [3, 4]],
        "coupled": [[1, 2], [1, 1], [2, 2]],
        "rejection": [[1, 1, 1], [1, 2], [2, 2]],
    }
    first, second = measured_order(turns)
    assert (first.less, first.more, first.difference) == ("coupled", "rejection", 0.0)
    assert first.p_value == pytest.approx(1.0)
    assert (second.less, second.more) == ("rejection", "block")
    assert second.difference == pytest.approx((2.0 + 1.0 + 1.5) / 3)
    # By hand: mean 1.5, standard error 0.5 / sqrt(3), so t = 3 sqrt(3) with two degrees of freedom.
    assert second.p_value == pytest.approx(2 * scipy.stats.t.sf(3 * np.sqrt(3), 2))


def test_a_difference_is_called_seen_only_where_the_prompts_agree_about_it() -> None:
    steady = {"rejection": [[1], [1], [2], [1], [2], [1]] * 2, "block": [[6], [7], [7], [6], [7], [7]] * 2}
    (step,) = measured_order(steady)
    assert step.seen
    assert step.verdict == "as expected"
    (reverse,) = measured_order({"rejection": steady["block"], "block": steady["rejection"]})
    assert reverse.seen
    assert reverse.verdict == "the other way round"
    (noisy,) = measured_order({"rejection": [[1], [4], [0], [3]], "block": [[4], [1], [3], [1]]})
    assert not noisy.seen
    assert noisy.verdict == "within the noise"


@pytest.mark.parametrize(
    "turns",
    [
        {"rejection": [[1] * 500], "block": [[2] * 500]},
        {"rejection": [[1], []], "block": [[2], [3]]},
        {"rejection": [[0] * 30] * 8, "block": [[4] * 30] * 8},
        {"rejection": [[0, 1, 1], [2, 0]], "block": [[1, 2, 2], [3, 1]]},
    ],
    ids=["one prompt", "one with full rounds", "all alike", "alike but for rounding"],
)
def test_what_cannot_be_tested_is_not_called_noise(turns: dict[str, list[list[int]]]) -> None:
    """Rounds of one text depend on each other: it is the prompts that count."""
    (step,) = measured_order(turns)
    assert step.p_value is None
    assert not step.seen
    assert step.verdict.startswith("not tested")


def test_rules_without_a_prompt_in_common_are_not_compared() -> None:
    assert measured_order({"rejection": [[1], []], "block": [[], [2]]}) == []


# ------------------------------------------------------------------------------------------- on an engine, with D01

PLAN = Plan(toy(), SamplingParams(temperature=0.7), 4, 64, ((3, 1, 4), (2, 7, 1)), (0, 1))
RIGHT = Subject("right", ENGINE, "rejection")
DEFECT = Subject("D01", CATALOGUE["D01"].make(), "rejection", "D01")


def test_the_trim_of_mlxcel_leaves_the_drafter_ever_further_behind_and_lowers_acceptance() -> None:
    turns = measure([DEFECT, RIGHT], PLAN)
    before, after = figures(turns["D01"], 4), figures(turns["right"], 4)
    assert set(after.lag) == {0.0}, "the control: the right trim leaves nothing behind"
    assert recoveries(turns["D01"]) == 0
    assert before.lag[0] == 0
    assert before.lag[10] > before.lag[1] > 0
    assert max(before.lag) > 40
    assert before.tested.ci[1] < after.tested.ci[0], "acceptance drops by more than both intervals"
    assert before.tested.sum_min < after.tested.sum_min
    assert before.tokens_per_round < after.tokens_per_round


def test_at_temperature_0_the_text_stays_and_the_proposals_change() -> None:
    plan = replace(PLAN, sampling=SamplingParams(temperature=0.0), max_tokens=40)
    turns = measure([replace(DEFECT, rule="greedy"), replace(RIGHT, rule="greedy")], plan)
    assert [len(each) for each in turns.values()] == [2, 2], "one seed, as all give the same"
    assert all(each.as_plain for both in turns.values() for each in both)
    assert [each.emitted for each in turns["D01"]] == [each.emitted for each in turns["right"]]
    found = compare_proposals(turns["D01"], turns["right"])
    assert found.different > found.compared / 2 > 5
    assert compare_proposals(turns["right"], turns["right"]).different == 0, "the control"


def test_rounds_without_closed_forms_get_those_of_the_oracle() -> None:
    class Silent(type(ENGINE)):
        def start_lean(self, case):
            session = super().start_lean(case)
            tokens = list(session)
            session.boundaries[:] = [
                replace(each, round=each.round and replace(each.round, sum_min=(), sum_prod=()))
                for each in session.boundaries
            ]
            session._tokens = iter(tokens)
            return session

    plan = replace(PLAN, max_tokens=12, prompts=PLAN.prompts[:1], seeds=(0,))
    turns = measure([RIGHT, replace(RIGHT, label="silent", engine=Silent())], plan)
    own, oracles = (figures(turns[label], 4) for label in ("right", "silent"))
    assert own.tested.sum_min == pytest.approx(oracles.tested.sum_min, abs=1e-9)
    assert own.tested.sum_prod == pytest.approx(oracles.tested.sum_prod, abs=1e-9)


def test_what_an_engine_raises_is_named() -> None:
    class Raises(type(ENGINE)):
        def start_lean(self, case):
            raise ZeroDivisionError("no length")

    with pytest.raises(EngineRaised, match=r"reference raised ZeroDivisionError: no length"):
        measure([replace(RIGHT, engine=Raises())], PLAN)


def test_on_mlx_the_same_defect_leaves_the_drafter_behind_and_the_text_alone() -> None:
    pytest.importorskip("mlx.core", reason="mlx is not installed; pip install 'specproof[mlx]'")
    from specproof.adapters.mlx_impl import ENGINE as MLX
    from specproof.defects.mlx_drafters import defective

    plan = replace(PLAN, sampling=SamplingParams(temperature=0.0), max_tokens=24, prompts=PLAN.prompts[:1])
    subjects = [Subject("D01", defective("D01"), "greedy", "D01"), Subject("right", MLX, "greedy")]
    turns = measure(subjects, plan)
    (wrong,), (right,) = turns["D01"], turns["right"]
    assert set(right.lags) == {0}, "the control"
    assert max(wrong.lags) > 8
    assert recoveries([wrong]) == 0
    assert wrong.emitted == right.emitted
    for before, after, each in zip(wrong.lags, wrong.lags[1:], wrong.rounds, strict=False):
        proposed, accepted = len(each.drafted), each.num_accepted
        rejected = proposed - accepted
        trimmed = min(rejected + 1, proposed) if rejected else 0
        assert after - before == accepted + 1 - (proposed - trimmed)
