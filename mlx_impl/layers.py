"""What a decoder must know of one layer's cache: its kind, and how rows are taken back from it.

Works on the caches of mlx-lm and on `mlx_impl.cache.KVCache` by what they offer, with one exception. Three kinds:

- *plain*: key-value rows that can be dropped from the end at any time (full, quantised);
- *window*: key-value rows of which the oldest are overwritten or dropped (rotating, chunked). What a forward drops no
  trim brings back, though `is_trimmable()` may say so (mlx-lm's `RotatingKVCache` until its window is full);
- *state*: anything else, such as the states of recurrent and convolutional layers (mlx-lm's `ArraysCache`), and
  caches that only say that they were trimmed (`KEEP_TRIMMED_ROWS`).

The last two are put back by copies of what they held. A copy costs nothing until a layer is written in place.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import mlx.core as mx
from mlx.utils import tree_map

from reference.errors import CacheLengthError, InvalidSetting

KEEP_TRIMMED_ROWS = ("ConcatenateKVCache",)
"""Caches that let themselves be trimmed, and bring the dropped rows back with the next ones."""

Kind = Literal["plain", "window", "state"]
Saved = dict[str, Any]
"""What a layer's cache held: its attributes, with array objects of their own."""


def leaves(layers: Sequence[Any]) -> Iterator[Any]:
    """The layers, with composite ones (mlx-lm's `CacheList`) replaced by their parts."""
    for layer in layers:
        parts = getattr(layer, "caches", None)
        if parts is None:
            yield layer
        else:
            yield from leaves(parts)


def kind_of(layer: Any) -> Kind:
    """Which kind of cache a layer has.

    Raises:
        InvalidSetting: it serves a batch of sequences.
    """
    offset = getattr(layer, "offset", None)
    if isinstance(offset, mx.array):
        raise InvalidSetting(
            f"a layer has a {type(layer).__name__}, which serves a batch of sequences; give caches of one sequence"
        )
    if offset is None:
        return "state"
    if getattr(layer, "max_size", None) is not None or getattr(layer, "chunk_size", None) is not None:
        return "window"
    return "plain" if layer.is_trimmable() and type(layer).__name__ not in KEEP_TRIMMED_ROWS else "state"


def saved(layer: Any) -> Saved:
    """What a layer's cache holds now: later writes to the layer do not change it.

    `mx.array(a)` shares the data but is another object: an assignment to a slice makes its own data then.
    """
    return _with_own_arrays(vars(layer))


def restore(layer: Any, held: Saved) -> None:
    """Make a layer hold again what was saved; `held` may be used again."""
    _replace(layer, _with_own_arrays(held))


def _with_own_arrays(attributes: Saved) -> Saved:
    return {
        name: tree_map(lambda leaf: mx.array(leaf) if isinstance(leaf, mx.array) else leaf, value)
        for name, value in attributes.items()
    }


def _replace(layer: Any, attributes: Saved) -> None:
    layer.__dict__ = dict(attributes)  # one assignment: no signal finds a layer with half of its attributes


def copied(layer: Any) -> Any:
    """An independent copy of a layer's cache: writing to either leaves the other as it is."""
    twin = copy.copy(layer)
    _replace(twin, saved(layer))
    parts = getattr(layer, "caches", None)
    if parts is not None:
        twin.caches = type(parts)(copied(part) for part in parts)
    return twin


def trim(layer: Any, length: int, index: int) -> None:
    """Cut a plain layer to `length` rows.

    Every trim's return value is checked: a trim that silently does nothing is the most common cause of corrupt
    caches in speculative decoders (mlx-lm#1423 is an example).

    Raises:
        CacheLengthError: it holds fewer rows, or dropped another number of rows than it was asked to.
    """
    excess = layer.offset - length
    if excess < 0:
        raise CacheLengthError(
            f"layer {index} holds {layer.offset} rows, fewer than the {length} to be kept; refill it"
        )
    trimmed = layer.trim(excess) if excess else 0
    if trimmed != excess or layer.offset != length:
        raise CacheLengthError(
            f"layer {index} ({type(layer).__name__}) was to drop {excess} rows, said {trimmed} and holds "
            f"{layer.offset}, not {length}; use a cache that can be trimmed"
        )


def newest_rows(held: Saved, count: int) -> tuple[mx.array, mx.array] | None:
    """The last `count` rows of a window layer right after their forward; None where they are not side by side.

    A pass of several tokens leaves its rows at the end: a rotating cache unrolls itself for it. After several passes
    the row before them may be one of the first, which a rotating cache keeps.
    """
    keys, values = held["keys"], held["values"]
    end = held["_idx"] if "_idx" in held else held["offset"] - held["start_position"]
    kept = held.get("keep", 0) if held["offset"] > end else 0
    if keys is None or not count <= end - kept <= keys.shape[2] - kept:
        return None
    return keys[..., end - count : end, :], values[..., end - count : end, :]


def empty(layer: Any) -> None:
    """Make a layer hold nothing.

    Raises:
        InvalidSetting: it is of a kind that this module does not know how to empty.
    """
    if hasattr(layer, "keys"):
        blank: Saved = {"keys": None, "values": None, "offset": 0, "_idx": 0, "start_position": 0}
        vars(layer).update({name: value for name, value in blank.items() if name in vars(layer)})
    elif hasattr(layer, "cache"):
        _replace(layer, vars(type(layer)(len(layer.cache))))
    else:
        raise InvalidSetting(
            f"a {type(layer).__name__} cannot be brought back to an earlier history; begin with fresh caches"
        )


def emptied(layer: Any) -> Any:
    """A copy of a layer's cache that holds nothing.

    Raises:
        InvalidSetting: as `empty`.
    """
    twin = copied(layer)
    empty(twin)
    return twin


def changed(layer: Any, before: Sequence[mx.array | None]) -> bool:
    """Whether a layer's states are others than they were: for one that has no offset to tell, but shows its states."""
    return not before or any(new is not old for new, old in zip(arrays(layer), before, strict=True))


def arrays(layer: Any) -> list[mx.array | None]:
    """The states of a layer without an offset; empty where it does not keep them as mlx-lm's `ArraysCache` does."""
    return list(getattr(layer, "cache", ()))
