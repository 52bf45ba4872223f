"""`acceptance_rate` accepts right engines, and tells a wrong coin from a wrong drafter."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from law_controls import CONFUSED_DRAFT, RIGHT, TOO_OFTEN, Control, IndependentDraft, tiny_case

from reference.acceptance import expected_accepted_block
from reference.drafters import DraftModel
from reference.values import SamplingParams
from specproof.acceptance_rate import (
    ENGINE,
    PAIR,
    QUICK_TURNS,
    Coin,
    cases,
    check,
    expected_acceptances,
    judge,
    rate_evidence,
    throw,
)
from specproof.engine import Case, Engine, Floats
from specproof.evidence import Evidence
from specproof.exact_law import measure
from specproof.law_cases import CONTRARY
from specproof.laws import LAWS
from specproof.pairs import tiny, toy
from specproof.results import CheckResult
from specproof.statistics import FAMILY_LEVEL, seeds

SEED = 0
TURNS = 4
ALL_RULES = frozenset({"greedy", "sampler_match", "rejection", "block", "coupled"})


def judged(engine: Engine, turns: int) -> CheckResult:
    return judge(engine, list(cases(engine.capabilities, tiny(), SEED)), SEED, turns)


# --------------------------------------------------------------------------------------------------- closed forms


def test_position_by_position_the_closed_forms_are_those_of_the_rules():
    p, q = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.3, 0.5])
    wanted = {"sampler_match": 0.29, "rejection": 0.7, "block": 0.7, "greedy": 0.2}
    for rule, value in wanted.items():
        assert expected_acceptances(rule, [p], [q], [0]) == pytest.approx([value])


def test_block_accepts_at_least_as_much_as_rejection_at_every_position():
    generator = np.random.default_rng(0)
    for _ in range(50):
        p, q = generator.dirichlet(np.ones(4), size=3), generator.dirichlet(np.ones(4), size=3)
        drafted = generator.integers(4, size=3).tolist()
        block, rejection = (expected_acceptances(rule, p, q, drafted) for rule in ("block", "rejection"))
        assert block[0] == pytest.approx(rejection[0])
        assert all(b >= r - 1e-12 for b, r in zip(block, rejection, strict=True))
        assert all(b <= 1 + 1e-12 for b in block)


def test_the_positions_of_a_block_add_up_to_its_expected_number_of_accepted_proposals():
    """E[tau] = sum over i of E[w_{i-1} * (chance at i)]; for the paper's example it is 11/9."""
    p, q = np.array([1 / 3, 2 / 3]), np.array([2 / 3, 1 / 3])
    total = 0.0
    for drafted in product(range(2), repeat=2):
        mass = float(q[list(drafted)].prod())
        first, second = expected_acceptances("block", [p, p], [q, q], drafted)
        weight = min(p[drafted[0]] / q[drafted[0]], 1)
        total += mass * (first + weight * second)
    assert total == pytest.approx(11 / 9)
    assert total == pytest.approx(expected_accepted_block(lambda _: p, lambda _: q, 2))


def test_behind_a_proposal_that_the_target_excludes_nothing_is_accepted_by_block():
    p, q = np.array([1.0, 0.0]), np.array([0.5, 0.5])
    assert expected_acceptances("block", [p, p], [q, q], [1, 0]) == pytest.approx([0.5, 0.0])


# -------------------------------------------------------------------------------------------------- right engines


def test_the_note_gives_every_rate_beside_its_expectation():
    note = judged(RIGHT, 2).note
    assert "rejection/k3/T1 0." in note
    assert "an overall rate off by 0." in note


def test_greedy_coins_are_certain_so_that_one_wrong_verdict_would_reject():
    case = replace(tiny_case("greedy", 3, 24, SamplingParams(temperature=0)))
    found = list(rate_evidence(replace(RIGHT, rules=ALL_RULES), case, seeds(SEED, "greedy", 0, 3)))
    assert found
    assert all(piece.test.variance == 0 and piece.test.p_value == 1 for piece in found)


def test_only_proposals_that_were_reached_are_counted():
    case = replace(tiny_case("rejection", 3, 48), seed=5)
    session = RIGHT.start(case)
    list(session)
    rounds = [boundary.round for boundary in session.boundaries if boundary.round]
    coins = list(throw(RIGHT, case))
    for position in range(3):
        reached = [done for done in rounds if done.num_tested > position]
        assert [coin.accepted for coin in coins if coin.position == position] == [
            done.num_accepted > position for done in reached
        ]
    assert len(coins) == sum(done.num_tested for done in rounds)


def test_the_oracles_closed_forms_are_those_that_the_engine_reports_itself():
    coins = list(throw(RIGHT, replace(tiny_case("rejection", 3, 24), seed=5)))
    assert all(coin.chances[PAIR] == pytest.approx(coin.chances[ENGINE], abs=1e-12) for coin in coins)


@pytest.mark.parametrize("rule", ["block", "coupled"])
def test_rules_whose_closed_form_no_engine_reports_are_held_against_the_oracle_alone(rule: str):
    coins = list(throw(replace(RIGHT, rules=ALL_RULES), tiny_case(rule, 3, 12)))
    assert coins
    assert all(isinstance(coin, Coin) and coin.chances.keys() == {PAIR} for coin in coins)


# ---------------------------------------------------------------------------------------------- negative controls


def rejected(engine: Control, case: Case) -> dict[str, Evidence]:
    """The tests of sixteen turns that speak clearly against the engine, by what they are about."""
    found = rate_evidence(engine, case, seeds(SEED, case.id, 0, 16))
    return {piece.about: piece for piece in found if piece.test.p_value < 1e-4}


def test_a_wrong_coin_is_seen_against_the_oracle_and_against_the_engines_own_sums():
    case = tiny_case("rejection", 3, 48, drafter=CONTRARY)
    assert rejected(RIGHT, case) == {}
    found = rejected(TOO_OFTEN, case)
    assert {f"all positions, {PAIR}", f"all positions, {ENGINE}"} <= found.keys()
    told = found[f"all positions, {ENGINE}"]
    assert told.test.observed > told.test.expected
    assert told.advice == "p and q are what the engine says they are, so look at the rule and its coins."
    for part in ("acceptance, all positions, is 0.", "tested proposals, expected 0.", "sum_x min(p(x), q(x))", "z = "):
        assert part in told.finding


def test_a_drafter_with_a_wrong_context_is_seen_here_although_its_output_stays_right():
    """What a wrong draft cache does: with an honest q the law is kept; only the rate is not the pair's."""
    assert measure(CONFUSED_DRAFT, tiny_case("rejection", 2, 4)).variation < 1e-12
    case = tiny_case("rejection", 3, 48)
    twins = replace(case, draft=case.target)  # a copy of the target has every proposal accepted
    assert rejected(RIGHT, twins) == {}
    found = rejected(CONFUSED_DRAFT, twins)
    assert f"all positions, {PAIR}" in found
    assert not any(about.endswith(ENGINE) for about in found)
    assert "proposals went against a certain outcome" in found[f"all positions, {PAIR}"].finding
    assert found[f"all positions, {PAIR}"].advice.startswith("Look at the drafter's cache")


class Starving(DraftModel):
    """Draws worse and worse the longer the history is, as one does that loses a row in every round."""

    def _draw(self, q: Floats, position: int) -> int:
        lost = float(np.clip((position - 20) / 15, 0, 1))
        worst = (1 / q) / (1 / q).sum()
        return self.randomness.categorical((1 - lost) * q + lost * worst)


def test_a_drafter_that_starves_shows_as_a_falling_trend_and_a_right_one_as_none():
    case = tiny_case("sampler_match", 3, 48)
    case = replace(case, draft=case.target)
    found = {}
    for drafter in (DraftModel, Starving):
        engine = Control(drafter_class=drafter, rules=frozenset({"sampler_match"}))
        evidence = rate_evidence(engine, case, seeds(SEED, "trend", 0, 10))
        (found[drafter],) = (piece for piece in evidence if piece.about == f"trend, {PAIR}")
    assert found[DraftModel].test.p_value > 1e-3
    assert found[Starving].test.p_value < 1e-4
    assert found[Starving].test.z < 0
    assert found[Starving].finding.startswith("acceptance falls over the rounds of a turn, against its closed form")


def test_the_effort_of_a_quick_audit_finds_a_wrong_coin_on_the_pair_that_it_runs():
    """One setting that shows it; the family, and so Holm's threshold, is that of the whole check."""
    every = list(cases(TOO_OFTEN.capabilities, toy(), SEED))
    (case,) = [case for case in every if case.id.endswith("/T1")]
    result = judge(TOO_OFTEN, [case], SEED, QUICK_TURNS)
    assert result.status == "fails"
    family = 10 * len(every)  # the rate, its trend and three positions, against two sources of closed forms
    assert min(found.numbers["p_value"] for found in result.violations) < FAMILY_LEVEL / family


def test_a_drafter_that_does_not_share_its_noise_is_seen_under_coupled():
    result = judged(Control(drafter_class=IndependentDraft, rules=frozenset({"coupled"})), TURNS)
    assert result.status == "fails"
    assert "sum_x 1 / sum_y max(p(y) / p(x), q(y) / q(x))" in result.violations[0].message
    assert result.violations[0].numbers["observed"] < result.violations[0].numbers["expected"]


def test_a_lossy_engine_that_says_so_is_measured_and_not_failed():
    result = judged(replace(TOO_OFTEN, lossy=True), TURNS)
    assert (result.status, result.violations) == ("not_observable", ())
    assert "declares that it is lossy: measured, not judged" in result.note


def test_what_an_engine_raises_is_a_violation_of_its_case():
    class Fails(Control):
        def start(self, case: Case):
            raise RuntimeError("out of pages")

    result = judged(Fails(), TURNS)
    assert [found.message for found in result.violations] == ["the engine raised RuntimeError: out of pages"] * 3
    assert result.note == "no proposal was tested"


@pytest.mark.parametrize("missing", [{"rounds": False}, {"drafters": frozenset({"prompt_lookup"})}])
def test_an_engine_that_does_not_show_proposals_of_a_model_is_not_judged(missing: dict[str, object]):
    class Hidden(Control):
        @property
        def capabilities(self):
            return replace(super().capabilities, **missing)

    assert not LAWS["acceptance_rate"].observable(Hidden().capabilities)
    assert check(Hidden(), tiny(), SEED, quick=True).status == "not_observable"
