"""Remembered forwards on MLX are the forwards themselves: same logits, same rows in the caller's cache."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("mlx.core", reason="mlx is not installed: pip install 'specproof[mlx]'")

import mlx.core as mx

from mlx_impl.cache import KVCache, make_cache
from mlx_impl.transformer import load
from specproof.adapters.remembered import RememberedModel
from specproof.pairs import tiny


class Counting:
    """A model that counts its forwards."""

    def __init__(self):
        self.model = load(tiny().target)
        self.layers, self.args, self.calls = self.model.layers, self.model.args, 0

    def __call__(self, inputs, cache):
        self.calls += 1
        return self.model(inputs, cache=cache)


class OtherCache(KVCache):
    """The same by another name."""


def tokens(*ids):
    return mx.array([ids], mx.uint32)


@pytest.fixture
def counting():
    return Counting()


@pytest.fixture
def remembered(counting):
    return RememberedModel(counting, KVCache)


def rows(cache):
    return [np.array(array) for layer in cache for array in layer.state[:2]]


def test_a_repetition_gives_the_same_logits_and_writes_the_same_rows(counting, remembered):
    caches = [make_cache(counting.model) for _ in range(3)]
    for cache in caches[:2]:
        remembered(tokens(0, 2), cache=cache)
        logits = remembered(tokens(1), cache=cache)
    assert counting.calls == 2
    counting.model(tokens(0, 2), cache=caches[2])
    assert np.array_equal(np.array(logits), np.array(counting.model(tokens(1), cache=caches[2])))
    for cache in caches[:2]:
        assert [layer.offset for layer in cache] == [3, 3]
        assert all(np.array_equal(a, b) for a, b in zip(rows(cache), rows(caches[2]), strict=True))


def test_rows_left_behind_a_trim_do_not_count_and_those_before_it_do(counting, remembered):
    trimmed, right, wrong = (make_cache(counting.model) for _ in range(3))
    remembered(tokens(0, 2, 2), cache=trimmed)
    remembered(tokens(0, 2), cache=right)
    remembered(tokens(1, 2), cache=wrong)
    for layer in trimmed:
        layer.trim(1)
    calls = counting.calls
    first, second, third = (np.array(remembered(tokens(1), cache=cache)) for cache in (trimmed, right, wrong))
    assert np.allclose(first, second, atol=1e-5)
    assert not np.allclose(second, third, atol=1e-3)
    assert counting.calls > calls


def test_what_a_processor_writes_into_the_logits_is_not_remembered(counting, remembered):
    first = remembered(tokens(0, 2), cache=make_cache(counting.model))
    first[:, :, 1] = -100.0
    second = remembered(tokens(0, 2), cache=make_cache(counting.model))
    assert counting.calls == 1
    assert np.array(second)[0, -1, 1] > -100


def test_caches_of_another_type_are_never_looked_up(counting, remembered):
    for _ in range(2):
        remembered(tokens(0, 2), cache=[OtherCache() for _ in counting.layers])
    assert counting.calls == 2
