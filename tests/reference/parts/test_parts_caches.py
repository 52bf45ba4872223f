"""Caches of every kind: after any blocks and rollbacks they are what a pass without a cache gives."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from parts_models import Block, check_against_pass_without_cache, check_rows, model, scripts

from reference.errors import CacheLengthError
from reference.parts.paged import BLOCK_SIZE, NUM_BLOCKS, BlockPool, OutOfBlocks, PagedCache, blocks_for
from reference.parts.prefix import EVERY, PublishingTarget, begin_inside
from reference.parts.quantised import Packed, rounded
from reference.parts.recurrent import RecurrentTarget
from reference.parts.rotating import WINDOW, RingLayer, WindowedTarget
from reference.parts.short_convolution import convolve, convolve_next, empty_tail, tails
from reference.transformer import Transformer
from specproof.architectures import load_model
from specproof.pairs import toy

CACHED = ("windowed", "recurrent", "quantised", "paged")
TARGETS = (WindowedTarget, RecurrentTarget, PublishingTarget)
LONG = (Block(tuple(range(12)), 0), *[Block((5, 6, 7, 8), 2)] * 4)


def subjects() -> list[Transformer]:
    return [*map(model, CACHED), *(load_model(toy().target, made_of) for made_of in TARGETS)]


@pytest.mark.parametrize("subject", subjects(), ids=lambda subject: type(subject).__name__)
@given(script=scripts)
def test_blocks_that_are_partly_rejected_leave_what_a_pass_without_a_cache_gives(subject, script) -> None:
    check_against_pass_without_cache(subject, script)


@pytest.mark.parametrize("subject", subjects(), ids=lambda subject: type(subject).__name__)
def test_a_copy_of_a_cache_goes_its_own_way(subject: Transformer) -> None:
    cache = check_against_pass_without_cache(subject, LONG)
    history = tuple(range(12)) + (5, 6) * 4
    twin = cache.copy()
    subject.forward((1, 2, 3), twin)
    check_rows(subject, cache, history)
    check_rows(subject, twin, (*history, 1, 2, 3))


@pytest.mark.parametrize("subject", subjects(), ids=lambda subject: type(subject).__name__)
def test_a_cache_that_is_emptied_begins_anew(subject: Transformer) -> None:
    cache = check_against_pass_without_cache(subject, LONG)
    cache.trim_to(0)
    subject.forward((3, 2, 1), cache)
    check_rows(subject, cache, (3, 2, 1))


@pytest.mark.parametrize("name", ["windowed", "recurrent", "quantised"])
def test_the_architecture_changes_what_the_weights_compute(name: str) -> None:
    tokens = tuple(range(10))
    plain = model("llama").forward_without_cache(tokens).logits
    assert np.abs(model(name).forward_without_cache(tokens).logits - plain).max() > 1e-3


# ---------------------------------------------------------------------------------------------------------- windows


def test_a_sliding_layer_holds_no_more_than_its_window_and_the_last_block() -> None:
    cache = check_against_pass_without_cache(load_model(toy().target, WindowedTarget), LONG)
    layer = cache.layers[0]
    assert isinstance(layer, RingLayer)
    assert layer.offset == 20
    assert layer.keys.shape[1] <= WINDOW + 4


@pytest.mark.parametrize(
    ("made_of", "message"), [(WindowedTarget, "a sliding layer"), (RecurrentTarget, "a recurrent")]
)
def test_a_layer_refuses_to_go_back_further_than_it_knows(made_of: type[Transformer], message: str) -> None:
    cache = check_against_pass_without_cache(load_model(toy().target, made_of), LONG)
    with pytest.raises(CacheLengthError, match=f"{message}.* cannot go back to 3.*forward the tokens again"):
        cache.trim_to(3)


def test_a_window_hides_what_is_further_back() -> None:
    """The first layer's rows are the same; what the last token sees is not."""
    seen = model("windowed").visible(0, np.array([9]), 0, 10)  # type: ignore[attr-defined]
    assert np.flatnonzero(seen).tolist() == list(range(10 - WINDOW, 10))
    assert model("windowed").visible(1, np.array([9]), 0, 10).all()  # type: ignore[attr-defined]


# ------------------------------------------------------------------------------------------------ recurrent states


def test_a_convolution_step_by_step_is_the_one_over_all_inputs() -> None:
    rows = np.random.default_rng(0).normal(size=(2, 6, 3))
    tail, outputs = empty_tail(2, 3), []
    for place in range(6):
        output, tail = convolve_next(tail, rows[:, place])
        outputs.append(output)
        np.testing.assert_allclose(tail, tails(rows)[:, place])
    np.testing.assert_allclose(np.stack(outputs, axis=1), convolve(rows), atol=1e-12)


@pytest.mark.parametrize(("most", "held"), [(20, 20), (7, 6), (1, 0)])
def test_a_turn_begins_at_the_last_state_that_was_published(most: int, held: int) -> None:
    subject = load_model(toy().target, PublishingTarget)
    cache = check_against_pass_without_cache(subject, LONG)
    history = tuple(range(12)) + (5, 6) * 4
    assert held % EVERY == 0
    assert begin_inside(cache, most) == held
    subject.forward((9, 9), cache)
    check_rows(subject, cache, (*history[:held], 9, 9))


def test_a_state_behind_rejected_tokens_is_withdrawn() -> None:
    subject = load_model(toy().target, PublishingTarget)
    cache = check_against_pass_without_cache(subject, (Block((1, 2, 3, 4, 5, 6), 3), Block((7, 8, 9), 0)))
    assert begin_inside(cache, 5) == 4
    check_rows(subject, cache, (1, 2, 3, 7))


# -------------------------------------------------------------------------------------------------- quantised rows


@given(seed=st.integers(0, 999))
def test_eight_bits_are_off_by_half_a_step_at_most(seed: int) -> None:
    rows = np.random.default_rng(seed).normal(size=(2, 3, 8))
    packed = Packed.of(rows)
    assert np.abs(packed.rows() - rows).max() <= packed.scales.max() / 2 + 1e-12
    np.testing.assert_allclose(packed.rows(), rounded(rows), atol=1e-12)


def test_a_group_of_equal_entries_keeps_them() -> None:
    rows = np.full((1, 1, 4), 0.3)
    assert (Packed.of(rows).rows() == rows).all()
    assert (rounded(rows) == rows).all()


# ------------------------------------------------------------------------------------------------------ paged rows


@given(script=scripts)
def test_a_table_has_as_many_blocks_as_its_rows_need_and_no_other_is_in_use(script) -> None:
    cache = check_against_pass_without_cache(model("paged"), script)
    assert isinstance(cache, PagedCache)
    assert len(cache.table) == blocks_for(cache.offset) == cache.pool.in_use
    assert len(set(cache.table)) == len(cache.table)
    cache.release()
    assert (cache.table, cache.pool.in_use) == ([], 0)


@pytest.mark.parametrize(("rows", "blocks"), [(0, 0), (1, 1), (BLOCK_SIZE, 1), (BLOCK_SIZE + 1, 2)])
def test_a_block_is_needed_as_soon_as_a_row_is_in_it(rows: int, blocks: int) -> None:
    assert blocks_for(rows) == blocks


def test_a_pool_says_when_it_is_empty_and_takes_no_block_twice() -> None:
    pool = BlockPool(1, 1, 4)
    taken = [pool.take() for _ in range(NUM_BLOCKS)]
    assert sorted(taken) == list(range(NUM_BLOCKS))
    with pytest.raises(OutOfBlocks, match="all 48 blocks are in use"):
        pool.take()
    pool.give_back(7)
    with pytest.raises(CacheLengthError, match="block 7 is given back twice"):
        pool.give_back(7)


def test_a_paged_cache_cannot_be_cut_to_less_than_nothing() -> None:
    with pytest.raises(CacheLengthError, match="cannot trim a cache to -1 rows"):
        model("paged").new_cache().trim_to(-1)
