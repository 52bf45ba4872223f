"""The cache: counts are exact, a trim never removes fewer rows than asked, copies are independent."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reference.cache import KVCache, LayerCache
from reference.errors import CacheLengthError


def filled(*offsets: int) -> KVCache:
    """A cache whose layers hold so many rows; the row at position n of layer l holds 100 l + n."""
    nothing = np.zeros((2, 0, 3))
    cache = KVCache([LayerCache(nothing, nothing)] * len(offsets))
    for layer, offset in enumerate(offsets):
        rows = np.broadcast_to((100 * layer + np.arange(offset))[None, :, None], (2, offset, 3))
        cache.append(layer, rows, -rows)
    return cache


def test_append_returns_all_rows_and_moves_the_offset_of_one_layer() -> None:
    cache = filled(2, 2)
    held = cache.append(1, np.ones((2, 3, 3)), np.ones((2, 3, 3)))
    assert held.keys.shape == held.values.shape == (2, 5, 3)
    assert cache.offsets == (2, 5)


@pytest.mark.parametrize("n", range(5))
def test_trim_drops_exactly_the_last_rows_and_says_so(n: int) -> None:
    cache = filled(4, 4)
    assert cache.trim(n) == n
    assert cache.offset == 4 - n
    for layer, kept in enumerate(cache.layers):
        np.testing.assert_array_equal(kept.keys[0, :, 0], 100 * layer + np.arange(4 - n))
        np.testing.assert_array_equal(kept.values[1, :, 2], -(100 * layer + np.arange(4 - n)))


def test_trimming_more_than_it_holds_or_less_than_nothing_is_refused() -> None:
    cache = filled(3, 3)
    with pytest.raises(CacheLengthError, match="cannot trim 4 rows off a cache of 3; check the caller's count"):
        cache.trim(4)
    with pytest.raises(CacheLengthError, match="cannot trim -1 rows off a cache of 3; check the caller's count"):
        cache.trim(-1)
    with pytest.raises(CacheLengthError, match="cannot trim a cache to -2 rows; give a length >= 0"):
        cache.trim_to(-2)
    assert cache.offsets == (3, 3)


def test_layers_that_disagree_have_no_offset_and_cannot_be_trimmed() -> None:
    cache = filled(5, 3)
    with pytest.raises(CacheLengthError, match=r"the layers hold \(5, 3\) rows; .* call trim_to"):
        _ = cache.offset
    with pytest.raises(CacheLengthError, match="failed half-way"):
        cache.trim(1)


@settings(max_examples=30, deadline=None)
@given(offsets=st.lists(st.integers(0, 6), min_size=1, max_size=3), length=st.integers(0, 8))
def test_trim_to_makes_all_layers_agree_on_rows_they_all_hold(offsets: list[int], length: int) -> None:
    cache = filled(*offsets)
    cache.trim_to(length)
    assert cache.offset == min(length, *offsets)


def test_copies_are_independent() -> None:
    cache = filled(3, 3)
    twin = cache.copy()
    cache.trim(2)
    for layer in range(2):
        cache.append(layer, np.full((2, 1, 3), 7.0), np.full((2, 1, 3), 7.0))
    assert (cache.offset, twin.offset) == (2, 3)
    np.testing.assert_array_equal(twin.layers[0].keys[0, :, 0], [0, 1, 2])
