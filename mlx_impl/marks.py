"""Marks: what the layers of a cache held at some length, and how they are brought back to it, and beyond.

Plain layers are trimmed. A window gets its rows back from a copy, and the accepted ones from the end of the block, of
which the next mark holds a copy. A recurrent state goes back to a copy that was made after a forward, and no further:
tokens behind it must be forwarded again, which is `model_cache`'s business.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import mlx.core as mx

from mlx_impl.layers import Kind, Saved, empty, leaves, newest_rows, restore, saved

Rows = Mapping[int, tuple[mx.array, mx.array]]
"""Keys and values of window layers, by their place among the leaves: [B, n_kv_heads, n, head_dim] each."""


@dataclass(frozen=True)
class Mark:
    """The way back to some length.

    Attributes:
        length: tokens held.
        layers: the caches in use then; quantising puts others in their places.
        held: for each leaf a copy, or None for a plain one, which is trimmed.
    """

    length: int
    layers: tuple[Any, ...]
    held: tuple[Saved | None, ...]

    @classmethod
    def of(cls, length: int, layers: Sequence[Any], kinds: Sequence[Kind]) -> Self:
        """Of what these layers hold now; `kinds` are those of their leaves."""
        held = (None if kind == "plain" else saved(leaf) for leaf, kind in zip(leaves(layers), kinds, strict=True))
        return cls(length, tuple(layers), tuple(held))


def rows_behind(mark: Mark, following: Mark | None, length: int, kinds: Sequence[Kind]) -> Rows | None:
    """For each window the rows from a mark to `length`; None where one is not there any more, or a state is.

    Args:
        mark: the one to go back to.
        following: the next one, made right after the rows came; None where there is none.
        length: not before the mark.
        kinds: of the leaves.
    """
    if mark.length == length:
        return {}
    found = {}
    for place, kind in enumerate(kinds):
        if kind == "plain":
            continue
        held = following.held[place] if following is not None and kind == "window" else None
        rows = None if held is None or following is None else newest_rows(held, following.length - mark.length)
        if rows is None:
            return None
        found[place] = rows
    return found


def put_back(parts: Sequence[Any], kinds: Sequence[Kind], mark: Mark | None, rows: Rows, count: int) -> None:
    """Bring all leaves but the plain ones to a mark (None: empty), and append the first `count` of some rows."""
    for place, (leaf, kind) in enumerate(zip(parts, kinds, strict=True)):
        if kind == "plain":
            continue
        held = None if mark is None else mark.held[place]
        empty(leaf) if held is None else restore(leaf, held)
        if place in rows:
            keys, values = rows[place]
            leaf.update_and_fetch(keys[..., :count, :], values[..., :count, :])
