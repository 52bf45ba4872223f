"""Defects of batches: rows that differ in length, and share what should be their own."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from reference.acceptance import Verdict
from reference.decoder import DecoderState
from reference.parts.batch import BatchCache, BatchTransformer
from reference.parts.batch_decoder import BatchDecoder, BatchRow, Context
from reference.randomness import SeededRandomness
from reference.values import DraftBlock, Round
from specproof.adapters.reference import ENGINE
from specproof.adapters.reference_parts import BATCH, BATCH_GRAMMAR, WrappedBatchModel
from specproof.defects.mutations import NeverChecks
from specproof.defects.parts import part_defect

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]


class ZeroesRejected(BatchCache):
    """D45: rejected rows are zeroed and stay visible up to the longest row; a zero key has the weight e^0."""

    def trim_to(self, row: int, length: int) -> None:
        """Zero what goes."""
        super().trim_to(row, length)
        self.keys[:, :, row, length:] = 0.0
        self.values[:, :, row, length:] = 0.0

    def visible(self, layer: int, rows: Ints, positions: Ints) -> Bools:
        """One's own sequence up to one's own position, and the zeros behind its end up to the end of the longest."""
        ends = self.lengths[layer][rows]  # [N]
        seen = super().visible(layer, rows, positions).reshape(len(rows), *self.keys.shape[2:4])
        slots = np.arange(self.keys.shape[3])
        zeros = (slots >= ends[:, None]) & (slots < self.lengths[layer].max())  # [N, capacity]
        seen[np.arange(len(rows)), rows] |= zeros
        return seen.reshape(len(rows), -1)


class AdvancesByBlock(BatchCache):
    """D46: every row's offset advances by the whole block, whatever the row accepted."""

    def trim_to(self, row: int, length: int) -> None:
        """Only a row that is cleared goes back."""
        if length == 0:
            super().trim_to(row, length)


class NeverChecksRow(BatchDecoder, NeverChecks):
    """A batch decoder that goes on whatever its caches hold."""


class ShiftsMasks(BatchDecoder):
    """D48: mask rows are laid out by the scheduled length of the drafts, and consumed by the trimmed one."""

    def _contexts(self, rows: Sequence[BatchRow], blocks: Sequence[DraftBlock]) -> list[list[Context]]:
        """All rows in one list, as it is laid out; and slices of it, as it is consumed."""
        laid_out: list[Context] = []
        for row, contexts in zip(rows, super()._contexts(rows, blocks), strict=True):
            scheduled = row.decoder.num_draft_tokens + 1
            laid_out += [*contexts, *[contexts[-1]] * (scheduled - len(contexts))]
        starts = np.cumsum([0, *(len(block) + 1 for block in blocks)])
        return [laid_out[start : start + len(block) + 1] for start, block in zip(starts, blocks, strict=False)]


class IndexesModuloTwo(BatchDecoder):
    """D49: the q of a row is looked up at its number modulo 2."""

    def _draft_distributions(self, blocks: Sequence[DraftBlock]) -> list[list[Floats]]:
        """Right for two rows; for more, that of another row where it has one with mass on the proposal."""
        q = super()._draft_distributions(blocks)
        return [
            [
                q[row % 2][i] if i < len(q[row % 2]) and q[row % 2][i][token] > 0 else q[row][i]
                for i, token in enumerate(block.tokens)
            ]
            for row, block in enumerate(blocks)
        ]


class UnwrittenNoise(SeededRandomness):
    """D50: the row is not among those whose noise was written; an odd seed stands for none."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        if seed % 2:
            self.uniform = lambda: 0.0


class RanksDrawApart(NeverChecks):
    """D94: two ranks hold a part of the layers each, and the second tosses coins of its own."""

    def _report(
        self, state: DecoderState, block: DraftBlock, p: list[Floats], q: list[Floats], verdict: Verdict
    ) -> Round:
        done = super()._report(state, block, p, q, verdict)
        other = SeededRandomness(len(state.history))
        theirs = self.acceptance.decide(p, q, block.tokens, other, len(state.history))
        vars(state)["ahead"] = theirs.num_accepted - verdict.num_accepted
        return done

    def _commit(self, state: DecoderState, round_: Round) -> None:
        layers = state.target_cache.layers[1:]
        super()._commit(state, round_)
        kept = state.target_cache.layers[0].offset + vars(state)["ahead"]
        state.target_cache.layers[1:] = [layer.first_rows(kept) for layer in layers]


def _batch(made_of: type[BatchCache]) -> type[WrappedBatchModel]:
    """A batched target with such a cache."""

    class Model(BatchTransformer):
        cache_class = made_of

    class Wrapped(WrappedBatchModel):
        model_class = Model

    return Wrapped


DRAFTER = "draft_cache_offset honest_q bad_input"

DEFECTS = (
    part_defect(
        BATCH, "D45", "batch", "mlx-vlm", "Blaizzy/mlx-vlm#1962",
        "Rejected rows of shorter sequences are zeroed, and a zero key still takes its share of the attention.",
        expected="cache_content greedy_parity", silent=f"{DRAFTER} target_cache_offset processor_history",
        target_class=_batch(ZeroesRejected),
    ),
    part_defect(
        BATCH, "D46", "batch", "mlx-vlm", "Blaizzy/mlx-vlm#1144",
        "The offset of every row advances by the whole block, whatever the row accepted.",
        expected="target_cache_offset cache_content greedy_parity", silent=f"{DRAFTER} processor_history",
        target_class=_batch(AdvancesByBlock), decoder_class=NeverChecksRow,
    ),
    part_defect(
        BATCH_GRAMMAR, "D48", "processors", "vLLM", "vllm-project/vllm#49694",
        "Mask rows are laid out by the scheduled length of the drafts and consumed by their trimmed length.",
        expected="processor_history", silent=f"{DRAFTER} target_cache_offset cache_content",
        decoder_class=ShiftsMasks,
    ),
    part_defect(
        BATCH, "D49", "batch", "1Cat-vLLM", "1CatAI/1Cat-vLLM#656",
        "The drafter's probabilities are indexed by the row modulo two, which is right for two rows only.",
        expected="counters", silent=f"{DRAFTER} target_cache_offset cache_content greedy_parity processor_history",
        decoder_class=IndexesModuloTwo,
    ),
    part_defect(
        BATCH, "D50", "batch", "vLLM", "vllm-project/vllm#10863",
        "In a batch of rows with and without seeds, the noise of those without is never written: all zeros.",
        expected="output_distribution", silent=f"{DRAFTER} target_cache_offset cache_content greedy_parity",
        randomness_class=UnwrittenNoise,
    ),
    part_defect(
        ENGINE, "D94", "randomness", "vLLM", "vllm-project/vllm#17498",
        "Every rank tosses coins of its own, so that ranks accept different numbers of proposals.",
        expected="target_cache_offset", decoder_class=RanksDrawApart,
    ),
)  # fmt: skip
"""In the order of their ids."""
