"""Defects of paged and quantised caches, and rows that are not where they are read."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from reference.cache import KVCache, LayerCache
from reference.parts.paged import BLOCK_SIZE, PagedCache, PagedTransformer, blocks_for
from reference.parts.quantised import QuantisedTransformer
from reference.randomness import Randomness
from reference.transformer import Transformer
from specproof.adapters.reference import ReferenceEngine
from specproof.adapters.reference_parts import PAGED, QUANTISED
from specproof.adapters.reference_sessions import ReferenceSession, WrappedModel, running
from specproof.defects import windows
from specproof.defects.draft_cache import OUTPUT
from specproof.defects.parts import part_defect
from specproof.engine import Case

Floats = NDArray[np.float64]


class KeepsFreedBlock(PagedCache):
    """D25: a block is given back, and its id stays in the table."""

    def shrink(self, length: int) -> None:
        """Give back, forget nothing."""
        for block in self.table[blocks_for(length) :]:
            if block not in self.pool.free:
                self.pool.give_back(block)


class TakesOneMore(PagedCache):
    """D26: every block of proposals takes a block of the pool that no table names."""

    def append(self, layer: int, keys: Floats, values: Floats) -> LayerCache:
        """One more than is accounted for."""
        if layer == 0 and keys.shape[1] > 1 and self.lengths[0] > 0 and self.pool.free:
            self.pool.take()
        return super().append(layer, keys, values)


class DropsFirstBlock(PagedCache):
    """D27: where a cut falls on the edge of a block, the block that goes is the first one."""

    def shrink(self, length: int) -> None:
        """The wrong end of the table."""
        while len(self.table) > blocks_for(length):
            self.pool.give_back(self.table.pop(0 if length % BLOCK_SIZE == 0 and length else -1))


class ReadsOtherTable(PagedCache):
    """D28: rows are read through the table of the other model's pool."""

    other: PagedCache | None = None

    def gather(self, blocks: Floats, length: int) -> Floats:
        """Through the wrong table, as far as it goes."""
        own = self.table
        if self.other is not None:
            self.table = [*self.other.table, *own[len(self.other.table) :]]
        try:
            return super().gather(blocks, length)
        finally:
            self.table = own


class LeavesTableInPlace(ReferenceEngine):
    """D28: the drafter's cache is given the target's table."""

    def _session(
        self, case: Case, history: Sequence[int], target_cache: KVCache | None, draft_cache: KVCache | None,
        randomness: Randomness,
    ) -> ReferenceSession:  # fmt: skip
        session = super()._session(case, history, target_cache, draft_cache, randomness)
        if isinstance(session.drafter.cache, ReadsOtherTable):
            session.drafter.cache.other = session.target_cache
        return session


class IgnoresBits(QuantisedTransformer):
    """D31: the cache is made without regard to the setting that it be quantised."""

    def new_cache(self) -> KVCache:
        """A plain one."""
        return Transformer.new_cache(self)


def _paged(made_of: type[PagedCache]) -> type[WrappedModel]:
    """A paged model with such a cache."""

    class Model(PagedTransformer):
        cache_class = made_of

    return running(Model)


DRAFTER = "draft_cache_offset honest_q processor_history bad_input"
REST = f"{DRAFTER} target_cache_offset emitted_block"

DEFECTS = (
    *windows.DEFECTS,
    part_defect(
        PAGED, "D25", "target_cache", "TensorRT-LLM", "NVIDIA/TensorRT-LLM#16448",
        "A rewind across the edge of a block gives the block back, and the list of blocks only ever grows.",
        expected="block_table", silent=REST, target_class=_paged(KeepsFreedBlock),
    ),
    part_defect(
        PAGED, "D26", "target_cache", "sglang-jax", "sgl-project/sglang-jax#1147",
        "Slots for proposals are taken in every round and counted for no request, so the pool runs dry.",
        expected="block_table", silent=REST, target_class=_paged(TakesOneMore),
    ),
    part_defect(
        PAGED, "D27", "target_cache", "vLLM", "vllm-project/vllm#43996",
        "Two sides differ by one look-ahead block, and trimming to a multiple of the block size drops the first block.",
        expected="cache_content greedy_parity exit_state", silent=f"{DRAFTER} target_cache_offset",
        target_class=_paged(DropsFirstBlock),
    ),
    part_defect(
        PAGED, "D28", "draft_cache", "TensorRT-LLM", "NVIDIA/TensorRT-LLM#15251",
        "The drafter reads its rows through the block table of the target's pool, which was left in place.",
        expected="cache_content honest_q", silent=f"{OUTPUT} draft_cache_offset",
        make=LeavesTableInPlace, architecture="paged", draft_class=_paged(ReadsOtherTable),
    ),
    part_defect(
        QUANTISED, "D31", "target_cache", "mlx-vlm", "Blaizzy/mlx-vlm#2093",
        "Having a drafter brings another cache factory, which ignores that the cache is to be quantised.",
        expected="cache_content exact_law", silent=f"{DRAFTER} target_cache_offset emitted_block",
        target_class=running(IgnoresBits),
    ),
)  # fmt: skip
"""Sliding windows first, then in the order of their ids."""
