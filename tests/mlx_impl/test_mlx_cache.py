"""The key-value cache keeps mlx-lm's protocol, grows in steps, and every trim of it is checked."""

import copy

import pytest

mx = pytest.importorskip("mlx.core", reason="mlx is not installed; pip install 'specproof[mlx]'")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from mlx_toys import count_calls, toy  # noqa: E402

from mlx_impl import KVCache  # noqa: E402
from mlx_impl.cache import make_cache, offsets  # noqa: E402
from mlx_impl.layers import copied, trim  # noqa: E402
from reference.errors import CacheLengthError, InvalidSetting  # noqa: E402


def rows(count: int, first: int = 0):
    """Keys and values [1, 2, count, 4] that tell the row number."""
    numbers = mx.arange(first, first + count, dtype=mx.float32)[None, None, :, None]
    return mx.broadcast_to(numbers, (1, 2, count, 4)), mx.broadcast_to(-numbers, (1, 2, count, 4))


def filled(count: int) -> KVCache:
    cache = KVCache()
    cache.update_and_fetch(*rows(count))
    return cache


def kept(cache) -> list[float]:
    """The row numbers that a cache holds."""
    return [] if cache.state[0] is None else cache.state[0][0, 0, :, 0].tolist()


# ------------------------------------------------------------------------------------------------------- growth


class Concatenating(KVCache):
    """The control: a cache reallocated for each token."""

    step = 1


def storages(cache: KVCache, count: int) -> int:
    """How often the storage changed while `count` rows came one by one."""
    seen = []
    for row in range(count):
        cache.update_and_fetch(*rows(1, row))
        if not seen or seen[-1] != cache.capacity:
            seen.append(cache.capacity)
    return len(seen)


@pytest.mark.parametrize("count", [1, 256, 257, 1000])
def test_storage_is_allocated_once_per_256_rows_not_once_per_token(count, monkeypatch):
    allocations = []
    count_calls(monkeypatch, mx, "zeros", allocations)
    assert storages(KVCache(), count) == -(-count // 256)
    assert len(allocations) == 2 * -(-count // 256)  # keys and values
    assert storages(Concatenating(), count) == count


def test_one_large_block_gets_its_storage_at_once():
    cache = filled(600)
    assert (cache.offset, cache.capacity) == (600, 768)
    cache.update_and_fetch(*rows(400, 600))
    assert (cache.offset, cache.capacity) == (1000, 1024)
    assert kept(cache) == list(range(1000))


@given(st.lists(st.tuples(st.sampled_from(["append", "trim"]), st.integers(1, 300)), max_size=8))
@settings(max_examples=40, deadline=None)
def test_rows_appended_and_trimmed_are_those_of_a_plain_list(operations):
    cache, plain, next_row = KVCache(), [], 0
    for operation, count in operations:
        if operation == "append":
            keys, values = cache.update_and_fetch(*rows(count, next_row))
            plain += range(next_row, next_row + count)
            next_row += count
            assert keys[0, 1, :, 2].tolist() == plain
            assert values[0, 1, :, 2].tolist() == [-row for row in plain]
        else:
            count = min(count, len(plain))
            assert cache.trim(count) == count
            del plain[len(plain) - count :]
        assert cache.offset == cache.size() == len(plain)
        assert kept(cache) == plain
        assert cache.capacity % 256 == 0


# ----------------------------------------------------------------------------------------------------- protocol


def test_a_state_makes_an_equal_cache_and_shares_nothing_with_it():
    cache, twin = filled(10), KVCache()
    cache.trim(3)
    twin.state = cache.state
    assert (twin.offset, kept(twin)) == (7, kept(cache))
    twin.trim(1)
    twin.update_and_fetch(*rows(2, 100))
    assert kept(twin) == [0, 1, 2, 3, 4, 5, 100, 101]
    assert kept(cache) == [0, 1, 2, 3, 4, 5, 6]


def test_the_state_of_an_empty_cache_makes_an_empty_cache():
    cache = filled(3)
    cache.state = KVCache().state
    assert cache.empty()
    assert (cache.offset, cache.nbytes, cache.capacity) == (0, 0, 0)


@pytest.mark.parametrize("offset", [-1, 4])
def test_a_state_with_an_impossible_offset_is_refused(offset):
    keys, values, _ = filled(3).state
    cache = KVCache()
    with pytest.raises(CacheLengthError, match=rf"3 rows cannot have offset {offset}; give an offset in 0\.\.3"):
        cache.state = (keys, values, offset)


def test_storage_is_counted_in_bytes():
    assert filled(3).nbytes == 2 * 2 * 256 * 4 * 4
    assert not filled(3).empty()


@pytest.mark.parametrize("count", [-1, 4])
def test_trimming_a_negative_count_or_more_than_is_held_is_refused(count):
    cache = filled(3)
    with pytest.raises(CacheLengthError, match=rf"cannot trim {count} rows off a cache of 3; give a count in 0\.\.3"):
        cache.trim(count)
    assert cache.offset == 3


def test_masks_are_causal_in_the_form_that_is_asked_for():
    cache = filled(2)
    assert cache.make_mask(1) is None
    assert cache.make_mask(2) == "causal"
    assert cache.make_mask(2, return_array=True).tolist() == [[True, True, True, False], [True, True, True, True]]
    with pytest.raises(
        InvalidSetting, match=r"window_size is 8; this cache keeps all rows: use the model's own make_cache"
    ):
        cache.make_mask(2, window_size=8)


# ----------------------------------------------------------------------------------------------- layers of a cache


class Deaf(KVCache):
    """Trims nothing and says so, as a rotating cache does whose window is full."""

    def trim(self, n):
        return 0


class Lying(KVCache):
    """Trims nothing and says that it did."""

    def trim(self, n):
        return n


class Greedy(KVCache):
    """Trims one row more than it was asked to."""

    def trim(self, n):
        return super().trim(n + 1)


@pytest.mark.parametrize(("kind", "said", "held"), [(Deaf, 0, 5), (Lying, 3, 5), (Greedy, 4, 1)])
def test_a_trim_that_does_not_do_what_it_was_asked_is_an_error(kind, said, held):
    cache = kind()
    cache.update_and_fetch(*rows(5))
    message = rf"layer 7 \({kind.__name__}\) was to drop 3 rows, said {said} and holds {held}, not 2; use a cache"
    with pytest.raises(CacheLengthError, match=message):
        trim(cache, 2, 7)


def test_trimming_to_more_rows_than_there_are_is_refused():
    with pytest.raises(CacheLengthError, match=r"layer 1 holds 3 rows, fewer than the 4 to be kept; refill it"):
        trim(filled(3), 4, 1)


def test_a_copy_and_its_original_do_not_see_each_others_rows():
    original = [filled(3), filled(3)]
    twin = [copied(layer) for layer in original]
    original[0].update_and_fetch(*rows(1, 7))
    twin[0].update_and_fetch(*rows(1, 8))
    twin[1].trim(2)
    assert (kept(original[0]), kept(twin[0])) == ([0, 1, 2, 7], [0, 1, 2, 8])
    assert (offsets(original), offsets(twin)) == ((4, 3), (4, 1))


def test_a_shallow_copy_would_see_the_rows_of_its_original():
    """The control: MLX writes slices in place, so two caches must not share an array object."""
    original = filled(3)
    twin = copy.copy(original)
    original.update_and_fetch(*rows(1, 7))
    twin.update_and_fetch(*rows(1, 8))
    assert kept(original) == [0, 1, 2, 8]


def test_a_model_without_make_cache_gets_one_cache_per_layer():
    class Bare:
        layers = (None, None)

    assert [type(layer) for layer in make_cache(Bare())] == [KVCache, KVCache]
    assert len(make_cache(toy("target"))) == 3
