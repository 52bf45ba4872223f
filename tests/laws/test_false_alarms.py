"""A right decoder is accused as often as the levels say: 2,000 runs of it, each judged as an audit judges one.

A run is `SAMPLES` short sequences by a rule of `reference.acceptance`, from the distributions of the tiny pair, which
are looked up: without caches, so that thousands of runs are cheap. The tests, and the way from their p-values to a
violation, are those of the audit and of `specproof fuzz`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import cast

import pytest
import scipy
from law_controls import tiny_case

from reference.acceptance import RULES, Decision
from reference.randomness import SeededRandomness
from reference.values import SamplingParams
from specproof import evidence
from specproof.acceptance_rate import expected_acceptances
from specproof.defects.acceptance import redraw_from_p
from specproof.engine import Case, Floats, ModelSpec
from specproof.evidence import Evidence, confirm
from specproof.exact import target_law
from specproof.oracle import oracle_of
from specproof.output_distribution import Drawn, sequence_evidence
from specproof.statistics import FAMILY_LEVEL, Bet, CoinTest, chi_squared, coin_test, holm, seeds, trend_test
from specproof.token_frequency import PREFERRED
from specproof.transforms import Sharpen

Tokens = tuple[int, ...]
RUNS, SAMPLES, TOKENS = 2000, 66, 2
WRONG_RUNS = 200
LEVELS = [FAMILY_LEVEL, 0.05]
"""That of the audit, at which two alarms are to be expected, and one at which a hundred are."""
DECODERS = [("rejection", 1), ("rejection", 2), ("sampler_match", 1), ("block", 2)]
"""(rule, k) of the runs in turn. All have one law."""
EXACT = ("sequences, chi-squared", "sequences, G", PREFERRED)
"""Tests that reject as often as their level says."""
BOUNDED = ("acceptance", "trend")
"""Those whose coins have so little variance in a run that p-values are bounds, and rather too large."""
TESTS = (*EXACT, *BOUNDED)
CASE = tiny_case("rejection", 2, TOKENS, SamplingParams(temperature=3.0), Sharpen(-12.0))
"""A flat p, and a q that is nearly sure of what the target likes least: a wrong rule shows in few samples."""
TARGET, DRAFT = oracle_of(CASE.target), oracle_of(cast(ModelSpec, CASE.draft))
LAW = target_law(TARGET, CASE.prompt, CASE.sampling, TOKENS, CASE.stop_tokens)


def likely(runs: int, chance: float) -> tuple[int, int]:
    """The least and the most alarms that a right calibration gives in all but one of 10,000 suites."""
    low, high = scipy.stats.binom.ppf([5e-5, 1 - 5e-5], runs, chance)
    return int(low), int(high)


# ------------------------------------------------------------------------------------------------- one run, and many


@lru_cache(maxsize=4096)
def after(history: Tokens) -> tuple[Floats, Floats]:
    """p and q [3] of the next token."""
    return TARGET.distribution(history, CASE.sampling), DRAFT.distribution(history, CASE.sampling)


@lru_cache(maxsize=4096)
def chances(rule: str, history: Tokens, drafted: Tokens) -> list[float]:
    """The chance of each proposal to be accepted, given that it is reached."""
    places = [after((*history, *drafted[:i])) for i in range(len(drafted))]
    return expected_acceptances(rule, [p for p, _ in places], [q for _, q in places], drafted)


@lru_cache(maxsize=4096)
def preference(history: Tokens) -> tuple[list[bool], float]:
    """Which tokens the drafter prefers here (q > p), and the target's chance of drawing one of them."""
    p, q = after(history)
    return (q > p).tolist(), float(p[q > p].sum())


@dataclass
class Coins:
    """What came up, with which chance, and when, in [-1, 1]."""

    outcomes: list[bool] = field(default_factory=list)
    chances: list[float] = field(default_factory=list)
    times: list[float] = field(default_factory=list)


def decode(rule: str, decide: Decision, k: int, seed: int, coins: Coins, time: float) -> Tokens:
    """`TOKENS` tokens, by rounds of propose, verify and commit that begin with the prompt's last token pending."""
    randomness, history, first = SeededRandomness(seed), CASE.prompt, len(CASE.prompt)
    while len(history) < first + TOKENS:
        start, drafted, places = history, (), [after(history)]
        for _ in range(k):
            drafted = (*drafted, randomness.categorical(places[-1][1]))
            places.append(after((*start, *drafted)))
        verdict = decide([p for p, _ in places], [q for _, q in places[:-1]], drafted, randomness, len(start))
        tested = min(verdict.num_accepted + 1, k)
        coins.outcomes += [i < verdict.num_accepted for i in range(tested)]
        coins.chances += chances(rule, start, drafted)[:tested]
        coins.times += [time] * tested
        history = (*start, *drafted[: verdict.num_accepted], verdict.token)
    return history[first : first + TOKENS]


def run(number: int, repetition: int, wrong: Decision | None) -> tuple[list[Tokens], Coins]:
    """The sequences of a run, and the coins of its proposals; by a wrong rule, if one is given."""
    rule, k = DECODERS[0] if wrong else DECODERS[number % len(DECODERS)]
    coins = Coins()
    drawn = [
        decode(rule, wrong or RULES[rule].decision, k, seed, coins, 2 * i / (SAMPLES - 1) - 1)
        for i, seed in enumerate(seeds(0, f"run {number}", repetition, SAMPLES))
    ]
    return drawn, coins


def preferred(drawn: list[Tokens]) -> CoinTest:
    """Whether tokens that the drafter prefers are drawn as often as the target draws them."""
    coins = Coins()
    for sequence in drawn:
        for i, token in enumerate(sequence):
            members, chance = preference((*CASE.prompt, *sequence[:i]))
            coins.outcomes.append(members[token])
            coins.chances.append(chance)
    return coin_test(coins.outcomes, coins.chances)


def family(drawn: list[Tokens], coins: Coins) -> Iterator[Evidence]:
    """One run's tests."""
    yield from sequence_evidence(Drawn(CASE, Counter(drawn), LAW))
    yield Evidence(CASE, PREFERRED, preferred(drawn), "", "")
    yield Evidence(CASE, "acceptance", coin_test(coins.outcomes, coins.chances), "", "")
    yield Evidence(CASE, "trend", trend_test(coins.outcomes, coins.chances, coins.times), "", "")


def capital(drawn: list[Tokens]) -> float:
    """The most that a bet on the sequences ever has, as it is looked at after each of them: its logarithm."""
    bet: Bet[Tokens] = Bet(LAW)
    most = bet.log_capital
    for sequence in drawn:
        bet.draw(sequence)
        most = max(most, bet.log_capital)
    return most


@dataclass(frozen=True)
class Judged:
    """What all runs of a decoder gave.

    Attributes:
        families: the tests of each run.
        capitals: see `capital`.
        gather: (number of a run, case, repetition) -> its tests, from fresh seeds.
    """

    families: list[list[Evidence]]
    capitals: list[float]
    gather: Callable[[int, Case, int], list[Evidence]]

    def accused(self, level: float) -> int:
        """Runs of which Holm rejects anything."""
        return sum(any(holm([piece.test.p_value for piece in tests], level)) for tests in self.families)

    def confirmed(self) -> int:
        """Runs of which anything is rejected again on fresh seeds, and reported."""
        return sum(bool(confirm("law", tests, partial(self.gather, i))) for i, tests in enumerate(self.families))

    def rejected(self, level: float) -> Mapping[str, int]:
        """Runs that each test by itself rejects."""
        return {
            name: sum(piece.test.p_value <= level for tests in self.families for piece in tests if piece.about == name)
            for name in TESTS
        }

    def won(self, level: float) -> int:
        """Runs in which the bet ever comes to 1 / level."""
        return sum(most >= -math.log(level) for most in self.capitals)


def judged(runs: int, wrong: Decision | None) -> Judged:
    every = [run(number, 0, wrong) for number in range(runs)]
    return Judged(
        [list(family(*one)) for one in every],
        [capital(drawn) for drawn, _ in every],
        lambda number, case, repetition: list(family(*run(number, repetition, wrong))),
    )


@pytest.fixture(scope="module")
def right() -> Judged:
    return judged(RUNS, None)


@pytest.fixture(scope="module")
def wrong() -> Judged:
    """Redraws from p after a rejection."""
    return judged(WRONG_RUNS, redraw_from_p)


# ---------------------------------------------------------------------------------------------------- false alarms


@pytest.mark.parametrize("level", LEVELS)
def test_a_family_on_a_right_decoder_is_rejected_in_2000_runs_no_more_often_than_its_level_says(right, level):
    """At least as often as Bonferroni's threshold lets one of its tests reject, or nothing was tested."""
    least, most = likely(RUNS, level / len(TESTS))[0], likely(RUNS, level)[1]
    assert least <= right.accused(level) <= most


@pytest.mark.parametrize("name", TESTS)
@pytest.mark.parametrize("level", LEVELS)
def test_each_test_by_itself_rejects_a_right_decoder_as_often_as_its_level_says_or_less(right, level, name):
    low, high = likely(RUNS, level)
    assert (low if name in EXACT else 0) <= right.rejected(level)[name] <= high


@pytest.mark.parametrize("level", LEVELS)
def test_a_bet_that_is_looked_at_after_every_draw_is_won_no_more_often_than_its_level_says(right, level):
    assert right.won(level) <= likely(RUNS, level)[1]


def test_nothing_is_reported_of_a_right_decoder_in_2000_runs(right):
    """Its chance, for all of them together, is some thousandths: a suspicion must come again on fresh seeds."""
    assert right.confirmed() == 0


def test_with_a_level_at_which_there_are_suspicions_few_are_confirmed(right, monkeypatch):
    level = 0.05
    monkeypatch.setattr(evidence, "holm", partial(holm, level=level))
    assert right.confirmed() <= likely(RUNS, level**2)[1] < right.accused(level)


# ----------------------------------------------------------------------------------------------- negative controls


@pytest.mark.parametrize("level", LEVELS)
def test_a_rule_that_redraws_from_p_is_rejected_far_more_often(wrong, right, level):
    for alarms, false_alarms in ((wrong.accused(level), right.accused(level)), (wrong.won(level), right.won(level))):
        assert alarms / WRONG_RUNS > 10 * false_alarms / RUNS
        assert alarms > likely(WRONG_RUNS, level)[1]


def test_a_rule_that_redraws_from_p_is_reported(wrong):
    assert wrong.confirmed() > likely(WRONG_RUNS, FAMILY_LEVEL)[1]


def test_tests_that_are_each_held_against_the_whole_level_would_raise_too_many_alarms(right):
    """What Holm is for."""
    level = 0.05
    alarms = sum(any(piece.test.p_value <= level for piece in tests) for tests in right.families)
    assert alarms > likely(RUNS, level)[1]


def test_a_plain_test_that_is_looked_at_after_every_draw_would_raise_too_many_alarms():
    """What bets are for."""
    level, runs, peeked = 0.05, 100, 0
    for number in range(runs):
        drawn, _ = run(number, 0, None)
        looks = (Counter(drawn[:count]) for count in range(10, SAMPLES + 1, 3))
        peeked += any(chi_squared(counts, LAW).p_value <= level for counts in looks)
    assert peeked > likely(runs, level)[1]
