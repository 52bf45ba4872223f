"""Defects of recurrent and convolution state: it cannot be trimmed, and what goes back must be replayed.

None changes a length: every layer still says how many tokens it has seen. Only what it holds is wrong.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from reference.parts.prefix import PublishingLayer
from reference.parts.recurrent import RecurrentLayer, RecurrentState, RecurrentTarget
from specproof.adapters.reference_parts import PREFIX, RECURRENT
from specproof.adapters.reference_sessions import WrappedModel, running
from specproof.defects.parts import part_defect

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class NeverRefuses(RecurrentLayer):
    """A layer that, asked for a state that it no longer knows, goes on with the one it has; the right one refuses."""

    def first_rows(self, length: int) -> Self:
        """Never an exception."""
        if 0 < length < self.checkpoint.offset:
            return self.restarted(self.state, length)
        return super().first_rows(length)

    def restarted(self, state: RecurrentState, length: int) -> Self:
        """Itself with a state that is taken for the one after `length` tokens, and no way back."""
        state, nothing = replace(state, offset=length), self.staged_keys[:, :0]
        return replace(self, checkpoint=state, state=state, staged_keys=nothing, staged_values=nothing)


@dataclass(frozen=True)
class KeepsState(NeverRefuses):
    """D35: a trim changes nothing but the number of tokens."""

    def first_rows(self, length: int) -> Self:
        """The state as it is."""
        return self.restarted(self.state, length) if 0 < length < self.offset else super().first_rows(length)


@dataclass(frozen=True)
class ReplaysOneTooFew(NeverRefuses):
    """D36: the accepted proposals are replayed, and the pending token before them is not counted."""

    def first_rows(self, length: int) -> Self:
        """One input less than there should be."""
        if not self.checkpoint.offset < length < self.offset:
            return super().first_rows(length)
        short = super().first_rows(length - 1)
        checkpoint, state = (replace(found, offset=found.offset + 1) for found in (short.checkpoint, short.state))
        return replace(short, checkpoint=checkpoint, state=state)


@dataclass(frozen=True)
class ReadsFirstSlot(NeverRefuses):
    """D39: a round without proposals starts at the first slot of the round before, whatever was accepted there."""

    first_slot: RecurrentState | None = None

    def with_rows(self, keys: Floats, values: Floats) -> Self:
        """A block leaves a slot for its first token; a single token starts at that slot."""
        if keys.shape[1] == 1 and self.first_slot is not None:
            stale = replace(self.restarted(self.first_slot, self.offset), first_slot=None)
            return RecurrentLayer.with_rows(stale, keys, values)
        done = super().with_rows(keys, values)
        block = keys.shape[1] > 1 and self.offset > 0
        return replace(done, first_slot=self.state.advanced(keys[:, 0], values[:, 0]) if block else None)


@dataclass(frozen=True)
class KeepsConvolution(NeverRefuses):
    """D40: the recurrence goes back, the short convolution does not."""

    def first_rows(self, length: int) -> Self:
        """The tail of the block's end with the memory of the right place."""
        kept = super().first_rows(length)
        went_back = 0 < length < self.offset
        return self.restarted(replace(kept.state, tail=self.state.tail), length) if went_back else kept


@dataclass(frozen=True)
class IndexesByAccepted(NeverRefuses):
    """D41: the state is picked by accepted - 1, and for none accepted that is the last of the block."""

    block: int = 0

    def with_rows(self, keys: Floats, values: Floats) -> Self:
        """Notes how long the block is."""
        return replace(super().with_rows(keys, values), block=keys.shape[1])

    def first_rows(self, length: int) -> Self:
        """Right, unless only the pending token stays."""
        none_accepted = self.block > 1 and length == self.offset - self.block + 1
        return self.restarted(self.state, length) if none_accepted else super().first_rows(length)


@dataclass(frozen=True)
class PublishesTooEarly(PublishingLayer):
    """D42: a state is published before it is known whether its tokens stay, and is never withdrawn."""

    def first_rows(self, length: int) -> Self:
        """Right, and all that was published stays."""
        kept = super().first_rows(length)
        return replace(kept, published=self.published) if length else kept


@dataclass(frozen=True)
class RestoresStaleCell(NeverRefuses):
    """D43: what comes back is an old cell, without the tokens that were committed since."""

    def first_rows(self, length: int) -> Self:
        """The checkpoint as it is."""
        return self.restarted(self.checkpoint, length) if 0 < length < self.offset else super().first_rows(length)


@dataclass(frozen=True)
class KeepsOldView(RecurrentLayer):
    """D44: the state is restored, and the next forward reads it through a view from before.

    Attributes:
        captured: what a view shows that was made before the last rollback.
    """

    captured: RecurrentState | None = None

    def with_rows(self, keys: Floats, values: Floats) -> Self:
        """The view is used once."""
        done = super().with_rows(keys, values)
        if self.captured is None:
            return done
        _, *stale = self.run(self.captured, keys, values)
        return replace(done, latest=tuple(stale), captured=None)

    def first_rows(self, length: int) -> Self:
        """Right, with a view that is not made anew."""
        kept = super().first_rows(length)
        return replace(kept, captured=self.state) if 0 < length < self.offset else kept


def _target(made_of: type[RecurrentLayer]) -> type[WrappedModel]:
    """A recurrent target with these layers."""

    class Model(RecurrentTarget):
        layer_class = made_of

    return running(Model)


WRONG_STATE = "cache_content greedy_parity exit_state exact_law"
DRAFTER = "target_cache_offset draft_cache_offset honest_q processor_history bad_input"
"""What a target with a wrong state leaves right."""

DEFECTS = (
    part_defect(
        RECURRENT, "D35", "recurrent", "mlx-lm", "ml-explore/mlx-lm#846",
        "Trimming does nothing to a recurrent state, so rejected tokens stay in it.",
        expected=WRONG_STATE, silent=DRAFTER, target_class=_target(KeepsState),
    ),
    part_defect(
        RECURRENT, "D36", "recurrent", "mlx-swift-lm", "ekryski/mlx-swift-lm#143",
        "The state is replayed through the accepted proposals without the pending token that opens every block.",
        expected=WRONG_STATE, silent=DRAFTER, target_class=_target(ReplaysOneTooFew),
    ),
    part_defect(
        RECURRENT, "D39", "recurrent", "vLLM", "vllm-project/vllm#39273",
        "A round without proposals reads the first state slot, whatever the round before it accepted.",
        expected="cache_content exit_state", silent=DRAFTER, target_class=_target(ReadsFirstSlot),
    ),
    part_defect(
        RECURRENT, "D40", "recurrent", "vLLM", "vllm-project/vllm#50272",
        "The state of a short convolution has no room for proposals and is not told how many were accepted.",
        expected=WRONG_STATE, silent=DRAFTER, target_class=_target(KeepsConvolution),
    ),
    part_defect(
        RECURRENT, "D41", "recurrent", "vLLM", "vllm-project/vllm#50021",
        "The state is picked by the number accepted minus one, without a bound: none accepted picks the last.",
        expected=WRONG_STATE, silent=DRAFTER, target_class=_target(IndexesByAccepted),
    ),
    part_defect(
        PREFIX, "D42", "recurrent", "vLLM", "vllm-project/vllm#57128",
        "A prefix that is looked up gives a state that was written over rejected positions.",
        expected="exit_state", silent=f"{DRAFTER} cache_content greedy_parity exact_law",
        target_class=_target(PublishesTooEarly),
    ),
    part_defect(
        RECURRENT, "D43", "recurrent", "llama.cpp", "ggml-org/llama.cpp#20075",
        "A rollback restores a stale cell: the state from before the block, without what was accepted of it.",
        expected=WRONG_STATE, silent=DRAFTER, target_class=_target(RestoresStaleCell),
    ),
    part_defect(
        RECURRENT, "D44", "recurrent", "ik_llama.cpp", "ikawrakow/ik_llama.cpp#1728",
        "A cached graph goes on reading the state through a view from before the rollback.",
        expected="cache_content greedy_parity exact_law", silent=DRAFTER, target_class=_target(KeepsOldView),
    ),
)  # fmt: skip
"""In the order of their ids."""
