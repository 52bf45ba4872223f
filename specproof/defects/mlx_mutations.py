"""The mutations behind `on_mlx`, through what the MLX decoder is made of: `KVCache`, a rule's `decide`, one method.

Each function at the end makes an engine, and is given its name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import mlx.core as mx

from mlx_impl.acceptance import Decision
from mlx_impl.cache import KVCache, make_cache
from mlx_impl.decoder import Decoder, DecoderState
from mlx_impl.drafters import DeviceBlock, Drafter, DraftModel
from mlx_impl.model_cache import ModelCache
from mlx_impl.randomness import Randomness
from mlx_impl.readout import RoundReadout
from specproof.adapters.mlx_impl import MlxImplEngine

Arrays = tuple[mx.array, mx.array]
PromptCache = ModelCache | Sequence[Any] | None

# ---------------------------------------------------------------------------------------------------------- caches


class HalfPrecision(KVCache):
    """D07, D31: rows are stored as float16."""

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> Arrays:
        """As the right cache's, of rows that lost half of their bits."""
        return super().update_and_fetch(*(rows.astype(mx.float16).astype(rows.dtype) for rows in (keys, values)))


class LosesFirstBlock(KVCache):
    """D27: blocks are small, and one more is got at the price of the first, whose rows are zeros from then on."""

    step = 4

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> Arrays:
        """Grow wrongly where the rows do not fit."""
        if self.keys is not None and self.values is not None and self.offset + keys.shape[2] > self.capacity:
            self.keys, self.values = (_without_first_block(rows, self.step) for rows in (self.keys, self.values))
        return super().update_and_fetch(keys, values)


def _without_first_block(rows: mx.array, size: int) -> mx.array:
    """[B, n_kv_heads, capacity, head_dim], its first rows zeroed."""
    return mx.concatenate([mx.zeros_like(rows[..., :size, :]), rows[..., size:, :]], axis=2)


class LeavesWriteIndex(KVCache):
    """D30: `trim` changes the offset only; rows are written behind the last ones that ever were."""

    index = 0

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> Arrays:
        """Write at the index; give as many rows as the offset says, from the start."""
        end = self.offset + keys.shape[2]
        self.offset = max(self.index, self.offset)
        super().update_and_fetch(keys, values)
        self.index, self.offset = self.offset, end
        all_keys, all_values, _ = self.state
        return cast(Arrays, (all_keys, all_values))


class ReadsOldView(KVCache):
    """D44: the view that attention reads is made before the new rows are written, and MLX's views are snapshots."""

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> Arrays:
        """Right only where the storage has to grow."""
        end = self.offset + keys.shape[2]
        if self.keys is None or self.values is None or end > self.capacity:
            return super().update_and_fetch(keys, values)
        views = self.keys[..., :end, :], self.values[..., :end, :]
        super().update_and_fetch(keys, values)
        return views


def _turned_into(cache: Sequence[Any], made_of: type[KVCache]) -> None:
    """Let every layer of a cache be of this class from now on; its rows stay."""
    for layer in cache:
        layer.__class__ = made_of


def _decoder_on(made_of: type[KVCache]) -> type[Decoder]:
    """A decoder whose target has such caches."""

    class OnWrongCache(Decoder):
        def prefill(
            self, prompt: Sequence[int], drafter: Drafter, max_tokens: int, target_cache: PromptCache = None
        ) -> DecoderState:
            cache = make_cache(self.target) if target_cache is None else target_cache
            _turned_into(cache, made_of)
            return super().prefill(prompt, drafter, max_tokens, cache)

    return OnWrongCache


class DraftsInHalfPrecision(DraftModel):
    """D07: the drafter's cache is such a one."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        _turned_into(self.cache, HalfPrecision)


class SharesStorage(Decoder):
    """D28: behind prefill the drafter has the very arrays of the target's last layer, which are written in place."""

    def prefill(
        self, prompt: Sequence[int], drafter: Drafter, max_tokens: int, target_cache: PromptCache = None
    ) -> DecoderState:
        """As the right one's, and then the mistake."""
        state = super().prefill(prompt, drafter, max_tokens, target_cache)
        if state.drafter.cache is not None:
            ours, theirs = cast(KVCache, state.target_cache[-1]), cast(KVCache, state.drafter.cache[0])
            theirs.keys, theirs.values = ours.keys, ours.values
        return state


# ----------------------------------------------------------------------------------------------- rules and kernels


def residual_of_row_before(
    p: mx.array, q: mx.array, drafted: mx.array, randomness: Randomness, position: int
) -> Decision:
    """D74: p [k + 1, V], q [k, V], drafted [k]; the residual's row is one too low, unless all were accepted."""
    chances = [mx.take_along_axis(rows, drafted[:, None], axis=-1)[:, 0] for rows in (p[:-1], q)]  # [k] each
    coins = randomness.bernoulli(mx.minimum(chances[0] / chances[1], 1.0))
    num_accepted = mx.sum(mx.cumprod(coins.astype(mx.int32)))
    row = mx.where(num_accepted < len(drafted), mx.maximum(num_accepted - 1, 0), num_accepted)
    excess = mx.maximum(p[row] - mx.concatenate([q, mx.zeros_like(p[-1:])])[row], 0.0)  # [V]
    weights = mx.where(mx.sum(excess) > 0, excess, p[row])
    return num_accepted, randomness.categorical((weights / mx.sum(weights))[None])[0]


class GathersRowBefore(Decoder):
    """D74: `rejection` decides so."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        if self.rule.name == "rejection":
            self.rule = replace(self.rule, decide=residual_of_row_before)


class FirstRowForAll:
    """A model that gives the logits of the first row for every row, unless their number is a power of two."""

    def __init__(self, inner: Any) -> None:
        self.inner, self.args, self.layers = inner, inner.args, inner.layers

    def __call__(self, inputs: mx.array, cache: Any) -> mx.array:
        """Tokens [1, T] -> logits [1, T, V]."""
        logits: mx.array = self.inner(inputs, cache=cache)
        count = logits.shape[1]
        return logits if count & (count - 1) == 0 else mx.broadcast_to(logits[:, :1], logits.shape)


class BroadcastsFirstRow(Decoder):
    """D115: verifications go through such a kernel."""

    def _verify(self, state: DecoderState, block: DeviceBlock) -> RoundReadout:
        right = self.target
        self.target = FirstRowForAll(right)
        try:
            return super()._verify(state, block)
        finally:
            self.target = right


# --------------------------------------------------------------------------------------------------------- engines


def drafter_in_half_precision(name: str) -> MlxImplEngine:
    """D07."""
    return MlxImplEngine(name, drafter_class=DraftsInHalfPrecision)


def loses_first_block(name: str) -> MlxImplEngine:
    """D27."""
    return MlxImplEngine(name, _decoder_on(LosesFirstBlock))


def shares_storage(name: str) -> MlxImplEngine:
    """D28."""
    return MlxImplEngine(name, SharesStorage)


def leaves_write_index(name: str) -> MlxImplEngine:
    """D30."""
    return MlxImplEngine(name, _decoder_on(LeavesWriteIndex))


def target_in_half_precision(name: str) -> MlxImplEngine:
    """D31."""
    return MlxImplEngine(name, _decoder_on(HalfPrecision))


def reads_old_view(name: str) -> MlxImplEngine:
    """D44."""
    return MlxImplEngine(name, _decoder_on(ReadsOldView))


def gathers_row_before(name: str) -> MlxImplEngine:
    """D74."""
    return MlxImplEngine(name, GathersRowBefore)


def broadcasts_first_row(name: str) -> MlxImplEngine:
    """D115."""
    return MlxImplEngine(name, BroadcastsFirstRow)
