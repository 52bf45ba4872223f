"""Drafters one behind the other: the next is asked where those before it propose nothing."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Self

import mlx.core as mx

from mlx_impl.drafters import DeviceBlock, Drafter
from mlx_impl.model_cache import ModelCache
from reference.errors import InvalidSetting


class Chain:
    """Asks its drafters in turn until one proposes: the cheap first, such as a lookup, a draft model behind it.

    A drafter that is not needed is asked for no proposals, and falls behind by the tokens of the round. At the
    boundary it is told the history as the others are, and a draft model then forwards all of them in one pass, so
    that its cache, too, always holds exactly the rows of `history[:-1]`. So a round that the lookup served costs
    one forward of the draft model, of a + 1 tokens.

    Which drafter proposes depends on the history alone, never on tokens still to be drawn, so a rule that keeps the
    target's distribution with each of them keeps it with the chain.

    Args:
        drafters: at least one; at most one of them with a cache.

    Attributes:
        proposer: the index of the drafter whose block was the last one.

    Raises:
        InvalidSetting: none, or two with a cache.
    """

    def __init__(self, drafters: Sequence[Drafter]) -> None:
        self.drafters = tuple(drafters)
        self.proposer = 0
        if not self.drafters:
            raise InvalidSetting("the chain has no drafters; give at least one")
        cached = [type(drafter).__name__ for drafter in self.drafters if drafter.cache is not None]
        if len(cached) > 1:
            raise InvalidSetting(
                f"{len(cached)} drafters have a cache ({', '.join(cached)}), and a chain shows only one; "
                "give at most one draft model"
            )

    @property
    def cache(self) -> ModelCache | None:
        """That of its draft model; None where it has none."""
        return next((drafter.cache for drafter in self.drafters if drafter.cache is not None), None)

    def check_vocabulary(self, target: Any) -> None:
        """Raises `VocabularyMismatch` unless each of them numbers its tokens as the target does."""
        for drafter in self.drafters:
            drafter.check_vocabulary(target)

    def propose(self, history: Sequence[int], target_hidden: mx.array | None, budget: int) -> DeviceBlock:
        """The proposals of the first drafter that has any, at most `budget`.

        What was wrong with the logits of a drafter that then proposed nothing is reported with them.

        Raises:
            As the drafters do.
        """
        first, *others = self.drafters
        block = first.propose(history, target_hidden, budget)
        looked_at = [block.faults]
        self.proposer = 0
        for index, drafter in enumerate(others, 1):
            if len(block):
                # For none: or its cache would remember the way back through all rounds since it was last asked.
                drafter.propose(history, target_hidden, 0)
            else:
                block = drafter.propose(history, target_hidden, budget)
                looked_at.append(block.faults)
                self.proposer = index
        return replace(block, faults=mx.concatenate(looked_at))

    def commit(self, history: Sequence[int]) -> None:
        """Each is brought to the boundary, asked or not."""
        for drafter in self.drafters:
            drafter.commit(history)

    def settle(self, history: Sequence[int]) -> None:
        """Each is brought in step with the history."""
        for drafter in self.drafters:
            drafter.settle(history)

    def rollback(self, history: Sequence[int]) -> None:
        """Each goes back to the boundary, or before it."""
        for drafter in self.drafters:
            drafter.rollback(history)

    def copy(self) -> Self:
        """A chain of copies."""
        twin = copy.copy(self)
        twin.drafters = tuple(drafter.copy() for drafter in self.drafters)
        return twin
