"""Acceptance on the device decides as the oracle does, given the same coins; law and rate are the right ones."""

from collections import defaultdict

import numpy as np
import pytest

mx = pytest.importorskip("mlx.core", reason="mlx is not installed; pip install 'specproof[mlx]'")

from hypothesis import assume, given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from mlx_toys import Choices, GivenRandomness, inverse  # noqa: E402

from mlx_impl import RULES  # noqa: E402
from reference import acceptance as oracle  # noqa: E402
from specproof.enumeration import EnumeratedRandomness  # noqa: E402

TOLERANCE = 1e-6


def decide(rule, p, q, drafted, randomness, position=0):
    """The verdict, on the host: (number accepted, token)."""
    p = mx.array(np.array(p, dtype=np.float32))
    q = mx.array(np.array(q, dtype=np.float32).reshape(-1, p.shape[1]))
    num_accepted, token = RULES[rule].decide(p, q, mx.array(list(drafted), dtype=mx.uint32), randomness, position)
    return int(num_accepted), int(token)


def float32(row):
    """A distribution that both precisions hold alike, as float64."""
    return (np.array(row, dtype=np.float32) / np.sum(np.array(row, dtype=np.float32))).astype(np.float64)


@st.composite
def rounds(draw, vocab=4):
    """p [k + 1], q [k], tokens that have mass under q, and the uniforms of a round."""
    k = draw(st.integers(0, 4))
    weights = st.lists(st.integers(0, 6), min_size=vocab, max_size=vocab).filter(any)
    p = [float32(draw(weights)) for _ in range(k + 1)]
    q = [float32(draw(weights)) for _ in range(k)]
    drafted = [int(draw(st.sampled_from(np.flatnonzero(row).tolist()))) for row in q]
    uniforms = st.floats(0, 1, exclude_max=True)
    coins = draw(st.lists(uniforms, min_size=k, max_size=k))
    draws = draw(st.lists(uniforms, min_size=k + 1, max_size=k + 1))
    return p, q, drafted, coins, draws


class OracleCoins:
    """The oracle's source with the coins and draws that the device is given; notes the draws' distributions."""

    def __init__(self, coins, draws):
        self.coins, self.draws, self.asked = list(coins), list(draws), []

    def bernoulli(self, probability):
        coin = self.coins.pop(0)
        assume(abs(coin - probability) > 1e-6 or probability in (0, 1))
        return coin < probability

    def categorical(self, probabilities):
        self.asked.append(probabilities)
        return inverse(probabilities, self.draws.pop(0))

    def coupled_categorical(self, probabilities, position):
        return inverse(probabilities, self.draws[position])


@pytest.mark.parametrize("rule", ["rejection", "block"])
@given(rounds())
@settings(max_examples=60, deadline=None)
def test_a_rule_of_coins_decides_as_the_oracle_and_draws_from_the_same_residual(rule, case):
    p, q, drafted, coins, draws = case
    host, device = OracleCoins(coins, draws[:1]), GivenRandomness(coins, draws[:1])
    wanted = oracle.RULES[rule].decide(p, q, drafted, host, 0)
    num_accepted, _ = decide(rule, p, q, drafted, device)
    assert num_accepted == wanted.num_accepted
    np.testing.assert_allclose(device.asked[-1][0], host.asked[-1], atol=TOLERANCE)


@pytest.mark.parametrize(("rule", "position"), [("sampler_match", 0), ("coupled", 0), ("coupled", 3)])
@given(rounds())
@settings(max_examples=60, deadline=None)
def test_a_rule_of_draws_decides_as_the_oracle(rule, position, case):
    p, q, drafted, _, draws = case
    draws = [*[0.5] * position, *draws]
    wanted = oracle.RULES[rule].decide(p, q, drafted, OracleCoins((), draws), position)
    found = decide(rule, p, q, drafted, GivenRandomness((), draws), position)
    assert found == (wanted.num_accepted, wanted.token)


@given(rounds())
@settings(max_examples=60, deadline=None)
def test_greedy_decides_as_the_oracle_without_a_random_choice(case):
    p, q, drafted, _, _ = case
    wanted = oracle.RULES["greedy"].decide(p, q, drafted, OracleCoins((), ()), 0)
    device = GivenRandomness()
    assert decide("greedy", p, q, drafted, device) == (wanted.num_accepted, wanted.token)
    assert device.asked == []


# ---------------------------------------------------------------------------------------------- law and acceptance


def enumerate_round(rule, p, q):
    """The exact law of a round with one proposal: (law of the first token, expected acceptance)."""
    law, accepted = defaultdict(float), 0.0
    host = EnumeratedRandomness()
    for _ in host.walk():
        drafted = host.categorical(np.array(q))
        num_accepted, token = decide(rule, [p, p], [q], [drafted], Choices(host))
        law[drafted if num_accepted else token] += host.weight
        accepted += host.weight * num_accepted
    return np.array([law[token] for token in range(len(p))]), accepted


def softmax(logits, temperature):
    weights = np.exp(np.array(logits) / temperature)
    return weights / weights.sum()


P = softmax((2, 1, 0.5, 0, -0.5, -1), 0.7)
Q = softmax((1.4, 1.3, 0.2, 0.6, -0.3, -0.8), 0.7)
CASES = [
    (P, Q),
    ([1 / 3, 2 / 3], [2 / 3, 1 / 3]),
    ([0.0, 0.5, 0.5], [0.5, 0.5, 0.0]),
    ([0.2, 0.3, 0.5], [0.2, 0.3, 0.5]),
]


@pytest.mark.parametrize(("p", "q"), CASES, ids=range(4))
@pytest.mark.parametrize("rule", ["rejection", "sampler_match", "block"])
def test_the_law_of_the_first_token_is_the_targets_and_the_rate_its_closed_form(rule, p, q):
    law, accepted = enumerate_round(rule, p, q)
    np.testing.assert_allclose(law, p, atol=1e-5)
    np.testing.assert_allclose(accepted, oracle.RULES[rule].expected_acceptance(np.array(p), np.array(q)), atol=1e-5)


@pytest.mark.parametrize(
    ("rule", "rate", "of_four"), [("rejection", 0.7053, 1.8012), ("sampler_match", 0.3438, 0.5166)]
)
def test_the_rates_of_the_known_pair_come_out(rule, rate, of_four):
    _, accepted = enumerate_round(rule, P, Q)
    assert accepted == pytest.approx(rate, abs=5e-5)
    assert sum(accepted**i for i in range(1, 5)) == pytest.approx(of_four, abs=5e-4)


def test_a_redraw_from_p_after_a_rejection_is_seen_in_the_law(monkeypatch):
    """The control of the law: the classic mistake leaves a total variation far above the tolerance."""
    monkeypatch.setattr("mlx_impl.acceptance._residual", lambda p, q: p)
    law, _ = enumerate_round("rejection", P, Q)
    assert np.abs(law - P).sum() / 2 > 0.01


# ------------------------------------------------------------------------------------------------------ edge rules

UNDER_1 = 1 - 2**-24


def test_a_coin_of_0_does_not_accept_a_token_that_the_target_never_draws():
    p, q = [[0.0, 1.0], [0.5, 0.5]], [[1.0, 0.0]]
    assert decide("rejection", p, q, [0], GivenRandomness([0.0], [0.0])) == (0, 1)


@pytest.mark.parametrize("coin", [0.0, UNDER_1])
def test_no_coin_rejects_where_the_target_is_at_least_as_sure(coin):
    p, q = [[0.25, 0.75], [0.0, 1.0]], [[0.25, 0.75]]
    assert decide("rejection", p, q, [0], GivenRandomness([coin], [0.5])) == (1, 1)


def test_an_empty_residual_draws_from_p():
    p, q = [[0.25, 0.75], [1.0, 0.0]], [[0.25, 0.75]]

    class Rejecting(GivenRandomness):
        def bernoulli(self, probabilities):
            return mx.zeros(probabilities.shape, mx.bool_)

    device = Rejecting((), [0.1])
    assert decide("rejection", p, q, [1], device) == (0, 0)
    assert device.asked[-1][0].tolist() == [0.25, 0.75]


@pytest.mark.parametrize("rule", RULES)
def test_without_proposals_the_token_is_a_plain_draw_from_p(rule):
    device = GivenRandomness((), [0.5])
    assert decide(rule, [[0.0, 1.0, 0.0]], [], [], device) == (0, 1)


def test_the_bonus_is_drawn_from_the_targets_last_distribution():
    p, q = [[0.5, 0.5], [0.25, 0.75]], [[0.5, 0.5]]
    device = GivenRandomness([0.9], [0.1])
    assert decide("rejection", p, q, [1], device) == (1, 0)
    np.testing.assert_allclose(device.asked[-1][0], p[1], atol=TOLERANCE)


def test_coins_behind_the_first_rejection_do_not_matter():
    p, q = [[0.0, 1.0], [0.5, 0.5], [0.5, 0.5]], [[1.0, 0.0], [0.5, 0.5]]
    assert decide("rejection", p, q, [0, 1], GivenRandomness([0.5, 0.0], [0.5])) == (0, 1)


@pytest.mark.parametrize("rule", ["rejection", "block"])
def test_all_coins_are_asked_for_at_once_and_the_draw_has_a_choice_of_its_own(rule):
    device = GivenRandomness([0.9, 0.9], [0.5])
    decide(rule, [[0.5, 0.5]] * 3, [[0.5, 0.5]] * 2, [0, 1], device)
    assert [asked.shape for asked in device.asked] == [(2,), (1, 2)]


def test_the_last_coin_that_comes_up_decides_a_block_whatever_those_before_it_say():
    p, q = [[0.5, 0.5]] * 3, [[1.0, 0.0]] * 2
    assert decide("block", p, q, [0, 0], GivenRandomness([UNDER_1, 0.0], [0.9])) == (2, 1)
    assert decide("rejection", p, q, [0, 0], GivenRandomness([UNDER_1, 0.0], [0.9])) == (0, 1)


def test_a_block_is_never_cut_where_nothing_would_be_left_to_draw():
    """p and q coincide at proposal 1: no residual, so that even a coin of 0 does not end the block before it."""
    p, q = [[0.5, 0.5], [0.25, 0.75], [1.0, 0.0]], [[0.5, 0.5], [0.25, 0.75]]
    device = GivenRandomness([0.0, UNDER_1], [0.5])
    assert decide("block", p, q, [0, 1], device) == (2, 0)
    assert device.asked[0].tolist() == [0.0, 1.0]


def test_the_rules_claim_what_the_oracles_claim():
    assert set(RULES) == set(oracle.RULES)
    for name, rule in RULES.items():
        other = oracle.RULES[name]
        assert (rule.name, rule.lossless, rule.acceptance_optimal) == (name, other.lossless, other.acceptance_optimal)
