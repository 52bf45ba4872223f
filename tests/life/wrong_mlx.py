"""As `wrong`, of the MLX decoder. Its drafter that forgets rows is D01 of the catalogue, on MLX."""

from __future__ import annotations

from mlx_impl.decoder import Decoder, DecoderState
from mlx_impl.drafters import DeviceBlock
from mlx_impl.readout import RoundReadout
from reference.values import Round
from specproof.defects.mlx_drafters import TrimsRejectedPlusOne

__all__ = ["TrimsOneTooFew", "TrimsRejectedPlusOne"]


class TrimsOneTooFew(Decoder):
    """After a rejection the row of the first rejected proposal stays in the target's cache, and nobody looks."""

    def step(self, state: DecoderState) -> Round:
        vars(state)["check_rows"] = lambda: None
        return super().step(state)

    def _commit(self, state: DecoderState, block: DeviceBlock, verdict: RoundReadout, is_pause: bool) -> Round:
        cache, rejected = state.target_cache, list(verdict.drafted[verdict.num_accepted :])
        right = cache.commit
        vars(cache)["commit"] = lambda model, tokens: right(model, [*tokens, *rejected[:1]])
        try:
            return super()._commit(state, block, verdict, is_pause)
        finally:
            del vars(cache)["commit"]
