"""Defects of sliding windows: a ring forgets, so a rollback that comes too late, or not at all, cannot be made good."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from reference.cache import KVCache
from reference.parts.rotating import WINDOW, RingLayer, WindowedTarget, WindowedTransformer
from reference.randomness import Randomness
from reference.transformer import advance
from specproof.adapters.reference import ReferenceEngine
from specproof.adapters.reference_parts import WINDOWED
from specproof.adapters.reference_sessions import ReferenceSession, WrappedModel, running
from specproof.defects.draft_cache import OUTPUT, NeverCatchesUp
from specproof.defects.mutations import NeverChecks
from specproof.defects.parts import part_defect
from specproof.engine import Case

Bools = NDArray[np.bool_]


class CountsItsRows(NeverCatchesUp):
    """A drafter as most engines have it, and a right one: it trims by counts, and forwards what no trim can add."""

    def commit(self, history: Sequence[int]) -> None:
        """Trim, and after a full acceptance (of nothing, too) forward the last token but one."""
        full = self._proposed is not None and len(history) - self._length - 1 == self._proposed
        super().commit(history)
        if full:
            advance(self.model, history[-2:-1], self.cache)


class AllOrNothing(KVCache):
    """D13, and D08 for a drafter: where one layer cannot be trimmed any more, a trim returns 0 and changes none."""

    def trim(self, n: int) -> int:
        """0, once a ring is full."""
        full = any(isinstance(layer, RingLayer) and layer.offset >= WINDOW for layer in self.layers)
        return 0 if full else super().trim(n)

    def copy(self) -> Self:
        """Another one."""
        return type(self)(self.layers)


@dataclass(frozen=True)
class WritesLiveRing(RingLayer):
    """D15: proposals are written into the ring at once; a rollback moves the index, and what they overwrote is gone."""

    def first_rows(self, length: int) -> Self:
        """The index goes back."""
        if not 0 < length < self.offset:
            return super().first_rows(length)
        return replace(self.fold(int(self.staged_keys.shape[1])), folded=length)


class MasksByWindow(WindowedTarget):
    """D19: rows kept for a rollback are returned to attention, under a mask that is made for the window alone."""

    def visible(self, index: int, positions: NDArray[np.int64], first: int, count: int) -> Bools:
        """The right mask, laid over the oldest rows where there are more than the window needs."""
        seen = super().visible(index, positions, first, count)
        surplus = max(count - (WINDOW + len(positions) - 1), 0) if self.is_sliding(index) else 0
        return np.roll(seen, -surplus, axis=1)


@dataclass(frozen=True)
class CannotCrop(RingLayer):
    """D20: a cache for plain decoding, which cannot go back, is used for speculation."""

    def first_rows(self, length: int) -> Self:
        """Itself."""
        return self if 0 < length < self.offset else super().first_rows(length)


class SlicesRingOnReuse(ReferenceEngine):
    """D30: the next turn takes the ring's storage as if it began with the oldest row, and leaves the index alone."""

    def _session(
        self, case: Case, history: Sequence[int], target_cache: KVCache | None, draft_cache: KVCache | None,
        randomness: Randomness,
    ) -> ReferenceSession:  # fmt: skip
        for index, layer in enumerate(target_cache.layers if target_cache else ()):
            if isinstance(layer, RingLayer) and target_cache and layer.folded > 0:
                rows = layer.folded - layer.first
                ring_keys, ring_values = np.zeros_like(layer.ring_keys), np.zeros_like(layer.ring_values)
                ring_keys[:, :rows], ring_values[:, :rows] = layer.keys[:, :rows], layer.values[:, :rows]
                target_cache.layers[index] = replace(layer, ring_keys=ring_keys, ring_values=ring_values)
        return super()._session(case, history, target_cache, draft_cache, randomness)


def _rings(made_of: type[RingLayer]) -> type[WrappedModel]:
    """A windowed model with these rings."""

    class Model(WindowedTarget):
        ring_class = made_of

    return running(Model)


def _cached(made_of: type[AllOrNothing], base: type[WindowedTransformer] = WindowedTarget) -> type[WrappedModel]:
    """A windowed model with such a cache."""

    class Model(base):  # type: ignore[misc, valid-type]  # a base class known only now
        def new_cache(self) -> KVCache:
            return made_of(super().new_cache().layers)

    return running(Model)


TARGET = "target_cache_offset greedy_parity exit_state"
DRAFTER = "draft_cache_offset honest_q processor_history bad_input"
"""What a target with wrong rows leaves right."""

DEFECTS = (
    part_defect(
        WINDOWED, "D08", "draft_cache", "mlx-lm", "ml-explore/mlx-lm#1109",
        "Whether a cache can be trimmed is checked for the target only: a full ring of the drafter is never trimmed.",
        expected="draft_cache_offset", silent=OUTPUT,
        drafter_class=CountsItsRows, draft_class=_cached(AllOrNothing, WindowedTransformer),
    ),
    part_defect(
        WINDOWED, "D13", "target_cache", "mlx-lm", "ml-explore/mlx-lm#1423",
        "When a sliding layer fills in mid-run, trimming returns 0 for all layers, and nobody looks at it.",
        expected=f"{TARGET} cache_content", silent=DRAFTER,
        decoder_class=NeverChecks, target_class=_cached(AllOrNothing),
    ),
    part_defect(
        WINDOWED, "D15", "target_cache", "mlx-swift-lm", "ml-explore/mlx-swift-lm#474",
        "Proposals are written into the live ring, so a rejected one costs a row of the window.",
        expected="cache_content greedy_parity exit_state", silent=f"target_cache_offset {DRAFTER}",
        target_class=_rings(WritesLiveRing),
    ),
    part_defect(
        WINDOWED, "D19", "target_cache", "transformers", "huggingface/transformers#48280",
        "While rows are kept for a rollback, a sliding layer returns more of them than its mask is made for.",
        expected="cache_content greedy_parity", silent=f"target_cache_offset {DRAFTER}",
        target_class=running(MasksByWindow),
    ),
    part_defect(
        WINDOWED, "D20", "target_cache", "transformers", "huggingface/transformers#46629",
        "The guard that gives speculation caches which can be cropped is lost, so sliding layers keep rejected rows.",
        expected="target_cache_offset", target_class=_rings(CannotCrop),
    ),
    part_defect(
        WINDOWED, "D30", "target_cache", "mlx-vlm", "Blaizzy/mlx-vlm#1715",
        "A prefix is reused by slicing the ring's storage by logical length, and its index is left where it was.",
        expected="exit_state", silent=f"target_cache_offset cache_content greedy_parity exact_law {DRAFTER}",
        make=SlicesRingOnReuse, architecture="windowed", target_class=WINDOWED.target_class,
    ),
)  # fmt: skip
"""In the order of their ids."""
