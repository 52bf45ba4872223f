"""Defects of the drafter's bookkeeping: the output stays right, and acceptance quietly dies.

Only checks that look at the drafter itself can see them, which is why they last so long in public engines.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.typing import NDArray

from reference.cache import LayerCache
from reference.drafters import DraftModel
from reference.prompt_lookup import PromptLookup
from reference.transformer import advance
from reference.values import DraftBlock, DraftDistribution
from specproof.adapters.reference import ReferenceEngine
from specproof.defects.mutations import oracle_defect

Floats = NDArray[np.float64]

OUTPUT = "target_cache_offset emitted_block greedy_parity processor_history log_probabilities exact_law"
"""What a drafter with a wrong cache leaves right: a proposal from another q is still a proposal."""


class FeedsPendingOnly(DraftModel):
    """A drafter as most engines have it: it forwards the pending token and its own proposals, and nothing else.

    Unlike the oracle's it never looks at how much of the history its cache holds, so rows that are lost stay lost.
    Subclasses say how many rows to trim after a round.
    """

    _proposed: int | None = None
    _length = 0

    def rows_to_trim(self, proposed: int, accepted: int) -> int:
        """Rows to drop after a round."""
        raise NotImplementedError

    def propose(self, history: Sequence[int], target_hidden: Floats | None, budget: int) -> DraftBlock:
        """`budget` proposals, one forward of one token each."""
        tokens: list[int] = []
        distributions: list[DraftDistribution] = []
        for _ in range(budget):
            context = [*history, *tokens]
            q = self._distribution(advance(self.model, context[-1:], self.cache).logits[-1], context)
            tokens.append(self._draw(q, len(context)))
            distributions.append(DraftDistribution.from_dense(q))
        self._proposed, self._length = len(tokens), len(history)
        return DraftBlock(tuple(tokens), tuple(distributions))

    def commit(self, history: Sequence[int]) -> None:
        """Trim what the subclass says."""
        if self._proposed is not None:
            accepted = len(history) - self._length - 1
            self.cache.trim(self.rows_to_trim(self._proposed, accepted))
            self._proposed = None

    def settle(self, history: Sequence[int]) -> None:
        """After prefill it forwards the prompt, like any engine; at an end it does what it does after any round."""
        if self._length == 0:
            super().settle(history)
        else:
            self.commit(history)


class TrimsRejectedPlusOne(FeedsPendingOnly):
    """D01: rejected + 1, capped at k, where rejected - 1 is right."""

    def rows_to_trim(self, proposed: int, accepted: int) -> int:
        """Two too many."""
        return min(proposed - accepted + 1, proposed)


class NeverCatchesUp(FeedsPendingOnly):
    """D02: the right trim, but after a full acceptance the last proposal is not forwarded."""

    def rows_to_trim(self, proposed: int, accepted: int) -> int:
        """The right number, where there is one."""
        return max(proposed - accepted - 1, 0)


class NeverTrims(FeedsPendingOnly):
    """D04: rejected proposals stay in the cache."""

    def rows_to_trim(self, proposed: int, accepted: int) -> int:
        """None."""
        return 0


class RewindsOnlyAfterDrafting(DraftModel):
    """D05: a round without proposals leaves the drafter as it is, so that it misses the round's token."""

    _drafted = True

    def propose(self, history: Sequence[int], target_hidden: Floats | None, budget: int) -> DraftBlock:
        """As the oracle's; notes whether anything was proposed."""
        block = super().propose(history, target_hidden, budget)
        self._drafted = len(block) > 0
        return block

    def commit(self, history: Sequence[int]) -> None:
        """Only on the branch that drafted."""
        if self._drafted:
            super().commit(history)

    def settle(self, history: Sequence[int]) -> None:
        """As `commit`."""
        if self._drafted:
            super().settle(history)


class KeepsApproximateRows(DraftModel):
    """D07: rows of proposals are approximate, and those of accepted ones are kept instead of computed anew."""

    def propose(self, history: Sequence[int], target_hidden: Floats | None, budget: int) -> DraftBlock:
        """As the oracle's, the rows of the round rounded to half precision."""
        block = super().propose(history, target_hidden, budget)
        first = len(history) - 1
        self.cache.layers = [
            LayerCache(_rounded(layer.keys, first), _rounded(layer.values, first)) for layer in self.cache.layers
        ]
        return block


def _rounded(rows: Floats, first: int) -> Floats:
    """[n_kv_heads, T, head_dim], the rows from `first` on in half precision."""
    return np.concatenate([rows[:, :first], rows[:, first:].astype(np.float16).astype(np.float64)], axis=1)


@dataclass(frozen=True)
class KeepsLastRequest(PromptLookup):
    """D09: the text that is searched is only ever added to, beyond the longest history seen.

    A request that is shorter than an earlier one is never taken in.
    """

    seen: list[int] = field(default_factory=list)

    def propose(self, history: Sequence[int], target_hidden: Floats | None, budget: int) -> DraftBlock:
        """What followed in the text that was taken in."""
        self.seen.extend(history[len(self.seen) :])
        return super().propose(self.seen, target_hidden, budget)


@dataclass(frozen=True)
class ReplaysLeftOvers(PromptLookup):
    """D10: a turn begins with the proposals that an earlier one left, whatever its own text says."""

    left: list[int] = field(default_factory=list)
    own: list[DraftBlock] = field(default_factory=list)

    def propose(self, history: Sequence[int], target_hidden: Floats | None, budget: int) -> DraftBlock:
        """The left-overs first, then as the oracle's."""
        if not self.own and self.left:
            tokens = tuple(self.left[:budget])
            block = DraftBlock(tokens, tuple(DraftDistribution.point_mass(t, self.vocab_size) for t in tokens))
        else:
            block = super().propose(history, target_hidden, budget)
            self.left[:] = block.tokens or self.left
        self.own.append(block)
        return block


def _keeps_last_request() -> ReferenceEngine:
    return ReferenceEngine("D09", lookup_class=partial(KeepsLastRequest, seen=[]))


def _replays_left_overs() -> ReferenceEngine:
    return ReferenceEngine("D10", lookup_class=partial(ReplaysLeftOvers, left=[]))


DEFECTS = (
    oracle_defect(
        "D01", "draft_cache", "mlxcel", "lablup/mlxcel#994",
        "After a rejection the drafter is trimmed by rejected + 1 rows, capped at k, where rejected - 1 is right.",
        expected="draft_cache_offset exit_state acceptance_rate", silent=OUTPUT, drafter_class=TrimsRejectedPlusOne,
    ),
    oracle_defect(
        "D02", "draft_cache", "mlxcel", "lablup/mlxcel#1002",
        "After a full acceptance the last proposal is never forwarded by the drafter, and no trim can express that.",
        expected="draft_cache_offset cache_content acceptance_rate", silent=OUTPUT, drafter_class=NeverCatchesUp,
    ),
    oracle_defect(
        "D04", "draft_cache", "MLC-LLM", "mlc-ai/mlc-llm#2939",
        "Rejected proposals are never trimmed from the drafter's cache.",
        expected="draft_cache_offset cache_content honest_q acceptance_rate", silent=OUTPUT, drafter_class=NeverTrims,
    ),
    oracle_defect(
        "D05", "draft_cache", "TensorRT-LLM", "NVIDIA/TensorRT-LLM#10160",
        "The drafter is rewound only on the branch that drafted, so a round without proposals leaves it behind.",
        expected="draft_cache_offset", silent=f"{OUTPUT} cache_content honest_q",
        drafter_class=RewindsOnlyAfterDrafting,
    ),
    oracle_defect(
        "D07", "draft_cache", "vLLM", "vllm-project/vllm#14649",
        "Accepted positions keep the drafter's own approximate rows instead of being computed anew.",
        expected="cache_content honest_q", silent=f"{OUTPUT} draft_cache_offset", drafter_class=KeepsApproximateRows,
    ),
    oracle_defect(
        "D09", "draft_cache", "llama.cpp", "ggml-org/llama.cpp#27852",
        "The n-gram drafter's text is not reset at the start of a request, so a shorter one is never taken in.",
        expected="randomness", silent=f"{OUTPUT} draft_cache_offset cache_content exit_state", make=_keeps_last_request,
    ),
    oracle_defect(
        "D10", "draft_cache", "llama.cpp", "ggml-org/llama.cpp#26100",
        "Proposals left over by an earlier request are replayed at the start of the next one.",
        expected="randomness", silent=f"{OUTPUT} draft_cache_offset cache_content exit_state", make=_replays_left_overs,
    ),
)  # fmt: skip
"""In the order of their ids."""
