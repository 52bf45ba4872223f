"""States of a recurrence kept by the way, so that a later turn can begin inside what an earlier one has seen.

Rows of attention can be cut anywhere; a recurrent state is that of one place. So a layer publishes its state at every
second token, and a turn begins at the last one that is published. A state behind a rejected proposal is no state of the
history: what a rollback passes is published no longer.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self, cast

import numpy as np
from numpy.typing import NDArray

from reference.cache import KVCache, LayerCache
from reference.parts.recurrent import RecurrentLayer, RecurrentState, RecurrentTarget

Floats = NDArray[np.float64]

EVERY = 2
"""A state is published after so many tokens, and again after as many."""


@dataclass(frozen=True)
class PublishingLayer(RecurrentLayer):
    """A recurrent layer that publishes states.

    Attributes:
        published: in the order of their offsets.
    """

    published: tuple[RecurrentState, ...] = ()

    def with_rows(self, keys: Floats, values: Floats) -> Self:
        """As `RecurrentLayer.with_rows`; states on the way are published, where none is yet."""
        done = super().with_rows(keys, values)
        last = self.published[-1].offset if self.published else 0
        fresh = tuple(state for state in done.latest if state.offset % EVERY == 0 and state.offset > last)
        return replace(done, published=self.published + fresh)

    def first_rows(self, length: int) -> Self:
        """As `RecurrentLayer.first_rows`; what it passes on the way back is withdrawn."""
        kept = super().first_rows(length)
        return replace(kept, published=tuple(state for state in kept.published if state.offset <= length))

    def begun_at(self, length: int) -> Self:
        """Itself, starting from what was published for `length` tokens; empty where that is 0."""
        if length == 0:
            return self.empty(len(self.staged_keys), self.staged_keys.shape[-1], self.room)
        state = next(state for state in self.published if state.offset == length)
        nothing = self.staged_keys[:, :0]
        return replace(self, checkpoint=state, state=state, staged_keys=nothing, staged_values=nothing)


class PublishingTarget(RecurrentTarget):
    """A recurrent target whose states are published."""

    layer_class = PublishingLayer


def begin_inside(cache: KVCache, most: int) -> int:
    """Take a cache back to the last place, up to `most` tokens, that all its layers can begin at. Returns it."""
    most = min(most, cache.offset)
    layers = [cast(RecurrentLayer | LayerCache, layer) for layer in cache.layers]
    recurrent = [layer for layer in layers if isinstance(layer, PublishingLayer)]
    places = [max((s.offset for s in layer.published if s.offset <= most), default=0) for layer in recurrent]
    length = min(places, default=most)
    cache.layers = cast(
        list[LayerCache],
        [
            layer.begun_at(length) if isinstance(layer, PublishingLayer) else layer.first_rows(length)
            for layer in layers
        ],
    )
    return length
