"""Transforms change logits and nothing else, position by position."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import scripts

from specproof.engine import LogitTransform
from specproof.transforms import BanArgmax, Chain, Disjoint, Flat, Identity, Recite, Scripted, Sharpen

LOGITS = np.random.default_rng(0).normal(size=(6, 8))
POSITIONS = np.arange(10, 16)
ALL = [
    Identity(), Sharpen(50.0), Disjoint(0), Disjoint(1), BanArgmax(), Flat(), Recite((0, 1, 2)),
    Scripted((True, False)), Chain((Recite((0, 1)), BanArgmax())),
]  # fmt: skip


@pytest.mark.parametrize("transform", ALL, ids=repr)
def test_a_transform_works_row_by_row_and_leaves_its_argument_alone(transform: LogitTransform) -> None:
    before = LOGITS.copy()
    whole = transform(LOGITS, POSITIONS)
    rows = [transform(LOGITS[i : i + 1], POSITIONS[i : i + 1])[0] for i in range(len(LOGITS))]
    assert np.array_equal(whole, np.stack(rows)), "a pass over several tokens equals one pass each"
    assert np.array_equal(LOGITS, before)
    assert np.isfinite(whole.astype(np.float32)).all()
    assert hash(transform) == hash(transform)


def test_disjoint_parts_share_no_token() -> None:
    parts = [Disjoint(part)(LOGITS, POSITIONS) > -1e8 for part in (0, 1)]
    assert (parts[0] ^ parts[1]).all()


def test_ban_argmax_leaves_the_second_choice() -> None:
    assert np.array_equal(BanArgmax()(LOGITS, POSITIONS).argmax(-1), np.argsort(LOGITS)[:, -2])


@given(script=scripts(), start=st.integers(0, 20))
def test_a_script_goes_by_absolute_position(script: tuple[bool, ...], start: int) -> None:
    positions = np.arange(start, start + len(LOGITS))
    kept = (Scripted(script)(LOGITS, positions) == LOGITS).all(axis=-1)
    assert list(kept) == [script[position % len(script)] for position in positions]


def test_recite_gives_the_token_after_each_position() -> None:
    assert list(Recite((4, 5, 6))(LOGITS, POSITIONS).argmax(-1)) == [(4, 5, 6)[(p + 1) % 3] for p in POSITIONS]
