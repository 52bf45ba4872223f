"""Known defects of the drafter's cache as mutations of the MLX decoder: where their price in speed can be measured.

The catalogue has the same ones on the oracle, which is written to be read and says nothing about speed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import mlx.core as mx

from mlx_impl.drafters import DeviceBlock, DraftModel
from specproof.adapters.mlx_impl import MlxImplEngine


class TrimsRejectedPlusOne(DraftModel):
    """D01: after a rejection min(rejected + 1, k) rows are trimmed, and only the pending token is ever forwarded.

    As in the engine it was found in, a round without a rejection trims nothing.
    """

    _proposed: int | None = None
    _length = 0

    def propose(self, history: Sequence[int], target_hidden: mx.array | None, budget: int) -> DeviceBlock:
        """As the right one, from whatever the cache holds."""
        block = super().propose(history, target_hidden, budget)
        self._proposed, self._length = len(block), len(history)
        return block

    def commit(self, history: Sequence[int]) -> None:
        """Two rows too many, where something was rejected."""
        if self._proposed is None:
            return
        rejected = self._proposed - (len(history) - self._length - 1)
        if rejected > 0:
            self.cache.rollback(self.cache.length - min(rejected + 1, self._proposed))
        self._proposed = None

    def settle(self, history: Sequence[int]) -> None:
        """After prefill it forwards the prompt; at an end it does what it does after any round."""
        if self._length == 0:
            super().settle(history)
        else:
            self.commit(history)

    def _cut(self, tokens: Sequence[int], held: int) -> int:
        """Never looks: takes it that they are all there."""
        return super()._cut(tokens, held) if self._length == 0 else len(tokens)


DRAFTERS: Mapping[str, type[DraftModel]] = {"D01": TrimsRejectedPlusOne}


def defective(id_: str) -> MlxImplEngine:
    """The MLX decoder with the defect of that id in `DRAFTERS`."""
    return MlxImplEngine(id_, drafter_class=DRAFTERS[id_])
