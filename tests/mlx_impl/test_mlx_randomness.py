"""Choices on the device: reproducible, independent of each other, fair at the end points, and from no global key."""

import numpy as np
import pytest
import scipy

mx = pytest.importorskip("mlx.core", reason="mlx is not installed; pip install 'specproof[mlx]'")

from mlx_decodes import make, run  # noqa: E402

from mlx_impl import KeyedRandomness  # noqa: E402
from reference.errors import InvalidSetting  # noqa: E402

LEVEL = 1e-4
JUST_UNDER_1 = float(np.nextafter(np.float32(1), np.float32(0)))


def draws(randomness, probabilities, count=20_000):
    """Counts of each token among many draws from one distribution."""
    rows = mx.broadcast_to(mx.array(probabilities), (count, len(probabilities)))
    return np.bincount(np.array(randomness.categorical(rows)), minlength=len(probabilities))


def test_equal_seeds_give_equal_choices_and_other_seeds_others():
    half, even = mx.full((64,), 0.5), mx.full((64, 8), 0.125)
    one, same, other = (KeyedRandomness(seed) for seed in (7, 7, 8))
    for _ in range(3):
        coins, tokens = one.bernoulli(half).tolist(), one.categorical(even).tolist()
        assert (coins, tokens) == (same.bernoulli(half).tolist(), same.categorical(even).tolist())
        assert (coins, tokens) != (other.bernoulli(half).tolist(), other.categorical(even).tolist())


def test_no_key_is_used_twice(monkeypatch):
    keys, uniform = [], mx.random.uniform
    monkeypatch.setattr(
        mx.random, "uniform", lambda **settings: keys.append(tuple(settings["key"].tolist())) or uniform(**settings)
    )
    for seed in (0, 1, 2**32 - 1):
        randomness = KeyedRandomness(seed)
        for _ in range(50):
            randomness.bernoulli(mx.full((2,), 0.5))
            randomness.categorical(mx.full((2, 4), 0.25))
    assert len(set(keys)) == len(keys) == 300


def test_noise_by_position_has_keys_of_its_own_the_same_each_time_and_one_for_each_position(monkeypatch):
    keys, uniform = [], mx.random.uniform
    monkeypatch.setattr(
        mx.random, "uniform", lambda **settings: keys.append(tuple(settings["key"].tolist())) or uniform(**settings)
    )
    randomness, rows = KeyedRandomness(3), mx.full((4, 5), 0.2)
    first, again = (randomness.coupled_categorical(rows, 6).tolist() for _ in range(2))
    one_by_one = [randomness.coupled_categorical(rows[:1], position).item() for position in range(6, 10)]
    assert first == again == one_by_one
    assert len(set(keys)) == 4
    noise = set(keys)
    keys.clear()
    for _ in range(12):
        randomness.categorical(rows)
    assert not noise & set(keys)


def test_coupled_draws_follow_the_distribution_over_positions():
    rows = mx.broadcast_to(mx.array(PROBABILITIES), (1500, len(PROBABILITIES)))
    counts = np.bincount(np.array(KeyedRandomness(17).coupled_categorical(rows, 0)), minlength=len(PROBABILITIES))
    support = np.array(PROBABILITIES) > 0
    assert scipy.stats.chisquare(counts[support], np.array(PROBABILITIES)[support] * 1500).pvalue > LEVEL
    assert counts[~support].sum() == 0


def test_one_seed_decodes_to_one_output_and_another_to_another():
    def output(seed):
        return run(*make("rejection", seed=seed), [1, 2], 24)

    assert output(3) == output(3)
    assert len({output(seed) for seed in range(4)}) == 4


def global_key():
    return mx.random.state[0].tolist()


def test_decoding_leaves_the_global_generator_alone():
    before = global_key()
    for rule in ("rejection", "sampler_match", "greedy", "block", "coupled"):
        run(*make(rule), [1, 2], 12)
    assert global_key() == before
    mx.random.uniform(shape=(1,))  # the control: a draw without a key shows in the global one
    assert global_key() != before


@pytest.mark.parametrize("seed", [-1, 2**32])
def test_seeds_that_make_no_key_are_refused(seed):
    with pytest.raises(InvalidSetting, match=rf"seed is {seed}; give an integer in 0\.\.2\*\*32 - 1"):
        KeyedRandomness(seed)


# ------------------------------------------------------------------------------------------------------- fairness

PROBABILITIES = [0.5, 0.25, 0.15, 0.0, 0.09, 0.01]


def test_draws_follow_their_distribution():
    counts = draws(KeyedRandomness(11), PROBABILITIES)
    support = np.array(PROBABILITIES) > 0
    expected = np.array(PROBABILITIES)[support] * counts.sum()
    assert scipy.stats.chisquare(counts[support], expected).pvalue > LEVEL
    shifted = np.array([0.47, 0.28, 0.15, 0.09, 0.01]) * counts.sum()
    assert scipy.stats.chisquare(counts[support], shifted).pvalue < LEVEL  # the control: three hundredths are seen


def test_coins_come_up_as_often_as_they_should():
    probabilities = np.repeat([0.0, 0.1, 0.5, 0.9, 1.0], 10_000)
    up = np.array(KeyedRandomness(12).bernoulli(mx.array(probabilities))).reshape(5, -1).sum(axis=1)
    assert (up[0], up[4]) == (0, 10_000)
    for share, count in zip([0.1, 0.5, 0.9], up[1:4], strict=True):
        assert abs(count - share * 10_000) < 4.5 * np.sqrt(share * (1 - share) * 10_000)


def test_a_coin_says_nothing_about_the_draw_after_it():
    randomness, seen = KeyedRandomness(13), np.zeros((2, 2))
    for _ in range(10):
        coins = np.array(randomness.bernoulli(mx.full((2000,), 0.5)))
        tokens = np.array(randomness.categorical(mx.full((2000, 2), 0.5)))
        np.add.at(seen, (coins.astype(int), tokens), 1)
    assert scipy.stats.chisquare(seen.ravel()).pvalue > LEVEL


@pytest.mark.parametrize("uniform", [0.0, JUST_UNDER_1])
@pytest.mark.parametrize("row", [[0, 1, 0], [0, 0.5, 0.5], [0, 1e-30, 1], [0.25, 0, 0.75], [0, 0, 1]], ids=str)
def test_no_uniform_makes_a_token_without_mass(monkeypatch, uniform, row):
    monkeypatch.setattr(mx.random, "uniform", lambda shape, key: mx.full(shape, uniform))
    token = KeyedRandomness(0).categorical(mx.array([row])).item()
    assert row[token] > 0


def test_the_end_points_of_the_uniform_decide_coins_strictly(monkeypatch):
    probabilities = mx.array([0.0, 1e-30, 0.5, 1.0])
    monkeypatch.setattr(mx.random, "uniform", lambda shape, key: mx.zeros(shape))
    assert KeyedRandomness(0).bernoulli(probabilities).tolist() == [False, True, True, True]
    monkeypatch.setattr(mx.random, "uniform", lambda shape, key: mx.full(shape, JUST_UNDER_1))
    assert KeyedRandomness(0).bernoulli(probabilities).tolist() == [False, False, False, True]


def test_a_draw_by_gumbel_noise_alone_would_make_a_token_without_mass():
    """The control: -log(-log(0)) is minus infinity, and so is the log of no mass: a tie that the lowest id wins."""
    noise = -mx.log(-mx.log(mx.zeros((3,))))
    assert mx.argmax(mx.log(mx.array([0.0, 1.0, 0.0])) + noise).item() == 0
