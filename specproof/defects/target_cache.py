"""Defects of the rollback of a plain target cache: rows of rejected proposals stay, or accepted ones go."""

from __future__ import annotations

from reference.cache import KVCache
from reference.decoder import Decoder, DecoderState
from reference.values import Round
from specproof.adapters.reference_sessions import WrappedModel
from specproof.defects.mutations import NeverChecks, oracle_defect


class KeepsRejectedRows(NeverChecks):
    """D23: nothing is trimmed from the target's cache after a round."""

    def _commit(self, state: DecoderState, round_: Round) -> None:
        state.drafter.settle([*state.history, *round_.emitted])


class TrimsFirstLayerOnly(Decoder):
    """D17: rejected rows leave one layer only."""

    def _commit(self, state: DecoderState, round_: Round) -> None:
        others = state.target_cache.layers[1:]
        super()._commit(state, round_)
        state.target_cache.layers[1:] = others


class InheritsEmptyRewind(KVCache):
    """D24: a wrapper whose rewind does nothing and says that it did."""

    def trim_to(self, length: int) -> None:
        """Not passed on to the layers."""

    def copy(self) -> KVCache:
        """Another wrapper of the same layers."""
        return type(self)(self.layers)


class Wrapper(WrappedModel):
    """The model with such a cache."""

    def new_cache(self) -> KVCache:
        """The model's cache, wrapped."""
        return InheritsEmptyRewind(super().new_cache().layers)


DEFECTS = (
    oracle_defect(
        "D17", "target_cache", "mlx-swift-lm", "ml-explore/mlx-swift-lm#173",
        "Trimming the cache touches its first layer only.",
        expected="target_cache_offset", silent="bad_input", decoder_class=TrimsFirstLayerOnly,
    ),
    oracle_defect(
        "D23", "target_cache", "Pie", "pie-project/pie#197",
        "Rows of rejected proposals stay in the target's cache.",
        expected="target_cache_offset cache_content greedy_parity exit_state exact_law",
        silent="draft_cache_offset honest_q processor_history bad_input",
        decoder_class=KeepsRejectedRows,
    ),
    oracle_defect(
        "D24", "target_cache", "ONNX Runtime GenAI", "microsoft/onnxruntime-genai#2441",
        "The state of a wrapped model inherits a rewind that does nothing, so only the list of tokens is rewound.",
        expected="target_cache_offset cache_content greedy_parity exit_state exact_law",
        silent="draft_cache_offset honest_q processor_history bad_input",
        decoder_class=NeverChecks, target_class=Wrapper,
    ),
)  # fmt: skip
"""In the order of their ids."""
