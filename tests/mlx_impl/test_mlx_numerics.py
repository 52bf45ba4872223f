"""What float32 does to the rules where probabilities are extreme: they decide as the oracle does in float64.

Given the same float32 p and q, what a rule asks its source of randomness about (the probability of each coin, the
distribution of the last draw) is the oracle's.
"""

import numpy as np
import pytest

mx = pytest.importorskip("mlx.core", reason="mlx is not installed; pip install 'specproof[mlx]'")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from mlx_toys import GivenRandomness  # noqa: E402

from mlx_impl import RULES, acceptance  # noqa: E402
from mlx_impl.sampling import distributions  # noqa: E402
from reference import acceptance as oracle  # noqa: E402
from reference import sampling as oracle_sampling  # noqa: E402
from reference.values import SamplingParams  # noqa: E402

RELATIVE = 1e-4


class Asked:
    """The oracle's source: coins and draws by given uniforms; notes what it was asked."""

    def __init__(self, coins, token):
        self.left, self.token, self.coins, self.rows = list(coins), token, [], []

    def bernoulli(self, probability):
        self.coins.append(float(probability))
        return self.left.pop(0) < probability

    def categorical(self, probabilities):
        self.rows.append(np.array(probabilities, dtype=np.float64))
        return self.token


def asked(rule, p, q, drafted, coins):
    """(what the oracle was asked, what the device was asked, accepted by each)."""
    p, q = (np.array(rows, dtype=np.float32) for rows in (p, q))
    host, device = Asked(coins, 0), GivenRandomness(coins, [0.5])
    wanted = oracle.RULES[rule].decide(p.astype(float), q.astype(float), drafted, host, 0)
    found, _ = RULES[rule].decide(mx.array(p), mx.array(q), mx.array(drafted, dtype=mx.uint32), device, 0)
    return host, device, (wanted.num_accepted, int(found))


def row(*exponents):
    """A distribution with masses in proportion to powers of ten: float32 [V]."""
    weights = np.float64(10.0) ** np.array(exponents)
    return (weights / weights.sum()).astype(np.float32)


# Between 1e-2 and 1e-12 there is nothing, or p/q could be less than 1 by float32's last bit, which nobody gets right.
exponents = st.lists(st.sampled_from([0, -1, -2, -12, -20, -30, -37]), min_size=2, max_size=2).flatmap(
    lambda others: st.permutations([0, *others])
)


@pytest.mark.parametrize("rule", ["rejection", "block"])
@given(data=st.data(), k=st.integers(1, 4))
@settings(max_examples=50, deadline=None)
def test_coins_and_residuals_of_extreme_distributions_are_the_oracles(rule, data, k):
    p, q = ([row(*data.draw(exponents)) for _ in range(count)] for count in (k + 1, k))
    drafted = [data.draw(st.integers(0, 2)) for _ in range(k)]
    coins = [data.draw(st.sampled_from([0.0, 0.3, 1 - 2**-24])) for _ in range(k)]
    host, device, (wanted, found) = asked(rule, p, q, drafted, coins)
    np.testing.assert_allclose(device.asked[0][: len(host.coins)], host.coins, rtol=RELATIVE, atol=2e-7)
    close = [abs(u - c) <= 1e-6 for u, c in zip(coins, host.coins, strict=False)]
    if not any(close):  # a coin at its own probability falls either way
        assert found == wanted
        assert np.isfinite(device.asked[-1]).all()


LOST = [row(-30, 0), row(-30, 0), row(0, -37), row(0, -37)]
BROUGHT_BACK = [row(0, -30), row(0, -30), row(-37, 0), row(-37, 0)]


def test_a_weight_that_leaves_float32_is_brought_back_by_the_proposals_behind_it():
    """1e-30 * 1e-30 * 1e37 * 1e37 is more than 1, so the whole block is accepted."""
    p, q, drafted, coins = [*LOST, row(0, 0)], BROUGHT_BACK, [0] * 4, [1 - 2**-24] * 4
    host, device, accepted = asked("block", p, q, drafted, coins)
    assert (host.coins[-1], device.asked[0][-1]) == (1.0, 1.0)
    assert accepted == (4, 4)


def test_a_product_of_ratios_would_lose_that_weight(monkeypatch):
    """The control."""

    def plain(ratios):
        w = [mx.array(1.0)]
        for i in range(ratios.shape[0]):
            w.append(mx.minimum(w[-1] * ratios[i], 1.0))
        return mx.stack(w), 1 - mx.stack(w)

    monkeypatch.setattr(acceptance, "_block_weights", plain)
    _, device, accepted = asked("block", [*LOST, row(0, 0)], BROUGHT_BACK, [0] * 4, [1 - 2**-24] * 4)
    assert device.asked[0][-1] == 0
    assert accepted[1] < 4


@pytest.mark.parametrize("rule", ["rejection", "block"])
@pytest.mark.parametrize("mass", [1e-38, 1e-30, 1e-10])
def test_where_p_and_q_coincide_every_coin_is_1_however_small_the_mass(rule, mass):
    same = np.array([mass, 1 - mass], dtype=np.float32)
    _, device, accepted = asked(rule, [same, same, same], [same, same], [0, 0], [1 - 2**-24] * 2)
    assert accepted == (2, 2)
    assert device.asked[0][-1] == 1


@pytest.mark.parametrize("rule", ["rejection", "block"])
def test_a_residual_of_tiny_mass_is_normalised_not_lost(rule):
    p, q = np.array([1.0, 1e-30, 0.0]), np.array([1.0, 0.0, 1e-30])
    host, device, _ = asked(rule, [p, p], [q], [2], [0.5])
    assert host.rows[-1].tolist() == [0, 1, 0]
    assert device.asked[-1].tolist() == [[0, 1, 0]]


@pytest.mark.parametrize("rule", ["rejection", "block"])
def test_a_q_below_the_normal_numbers_makes_no_nan(rule):
    """An infinite ratio, behind a weight of 0."""
    p, q = [[0.0, 1.0], [0.5, 0.5], [0.5, 0.5]], [[0.5, 0.5], [1e-42, 1.0]]
    _, device, (_, found) = asked(rule, p, q, [0, 0], [0.0, 0.0])
    assert np.isfinite(device.asked[0]).all()
    assert np.isfinite(device.asked[-1]).all()
    assert found == 0


@pytest.mark.parametrize("temperature", [0.05, 1.0, 3.0])
def test_probabilities_down_to_the_smallest_float_are_the_oracles(temperature):
    logits = temperature * np.array([0.0, -20.0, -60.0, -87.0, -800.0, 3.0])
    params = SamplingParams(temperature=temperature)
    found = np.array(distributions(mx.array(logits.astype(np.float32))[None], params)[0])
    wanted = oracle_sampling.distribution(logits, params, [])
    held = wanted > np.finfo(np.float32).tiny
    assert held.tolist() == [True, True, True, False, False, True]
    np.testing.assert_allclose(found[held], wanted[held], rtol=RELATIVE)
    assert found[4] == 0
