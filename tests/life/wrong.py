"""Decoders that are right in every single turn, and wrong later in life."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, Self

from reference.decoder import Decoder, DecoderState
from reference.drafters import DraftModel
from reference.transformer import advance
from reference.values import DraftBlock, Floats


class CountsItsRowsItself(DraftModel):
    """Keeps the number of its rows beside the cache: right until a user cuts the cache to edit the history."""

    _rows = 0

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **{**named, "schedule": "catch_up"})  # what it counts is only right for this one

    def propose(self, history: Sequence[int], target_hidden: Floats | None, budget: int) -> DraftBlock:
        block = super().propose(history, target_hidden, budget)
        self._rows = max(self._rows, self.cache.offset)
        return block

    def rollback(self, history: Sequence[int]) -> None:
        super().rollback(history)
        self._rows = min(self._rows, max(len(history) - 1, 0))

    def _feed(self, tokens: Sequence[int]) -> None:
        missing = tokens[self._rows :]
        if missing:
            advance(self.model, missing, self.cache)
            self._rows = len(tokens)


class LagsAtTheEnd(DraftModel):
    """Settles as it commits: a deferred drafter stays a row short when its turn is over."""

    def settle(self, history: Sequence[int]) -> None:
        self.commit(history)


class SharesItsCache(DraftModel):
    """A copy that draws from the same cache."""

    def copy(self) -> Self:
        return copy.copy(self)


class SpendsOneBudget(Decoder):
    """What the turns before have emitted counts against the budget of the next."""

    def extend(self, state: DecoderState, tokens: Sequence[int], max_tokens: int) -> DecoderState:
        return super().extend(state, tokens, max(max_tokens - len(state.emitted), 1 if max_tokens else 0))
