"""The state of a decode between rounds, and the two ways back to a boundary.

It knows which rows belong to which history, and how to drop the others. Rounds are `decoder`'s business.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from reference.cache import KVCache
from reference.drafters import Drafter
from reference.values import DraftBlock, Finish, GeneratedToken

Floats = NDArray[np.float64]


@dataclass
class DecoderState:
    """Everything a decode has come to. `Decoder.step` changes it in place; `copy` it to try several futures.

    Attributes:
        history: prompt + emitted tokens. The last one is pending: no cache holds it yet.
        prompt_length: P.
        max_tokens: the most tokens this turn may emit.
        target_cache: holds the rows of `history[:-1]`.
        drafter: its cache, if it has one, holds the same tokens (`deferred`: perhaps one less between rounds).
        target_hidden: [n, D], the target's hidden states of the last n committed tokens.
        tokens: the emitted tokens, with where each came from.
        delivered: how many of them `generate` has handed out.
        finish: why the turn ended; None while it goes on.
        num_rounds: rounds done in this turn.
        block: the proposals of the last round.
    """

    history: list[int]
    prompt_length: int
    max_tokens: int
    target_cache: KVCache
    drafter: Drafter
    target_hidden: Floats | None = None
    tokens: list[GeneratedToken] = field(default_factory=list)
    delivered: int = 0
    finish: Finish | None = None
    num_rounds: int = 0
    block: DraftBlock = field(default_factory=DraftBlock)

    @property
    def emitted(self) -> list[int]:
        """The tokens of this turn. E is its length."""
        return self.history[self.prompt_length :]

    def copy(self) -> DecoderState:
        """An independent state: own history, own caches. Models and randomness are shared."""
        return replace(
            self,
            history=list(self.history),
            tokens=list(self.tokens),
            target_cache=self.target_cache.copy(),
            drafter=self.drafter.copy(),
        )

    def roll_back(self) -> None:
        """Undo a round that failed, whatever it left half-written: back to the boundary that `history` names."""
        self.target_cache.trim_to(len(self.history) - 1)
        self.drafter.rollback(self.history)

    def take_back_undelivered(self) -> None:
        """End the history with the last token delivered: a boundary like any other, from which the turn may go on."""
        num_cut = len(self.tokens) - self.delivered
        if num_cut:
            del self.history[-num_cut:], self.tokens[-num_cut:]
            self.finish = None
            if self.target_hidden is not None:
                self.target_hidden = self.target_hidden[: max(len(self.target_hidden) - num_cut, 0)]
        self.roll_back()
        try:
            self.drafter.settle(self.history)  # only `deferred` may have a row to catch up
        except BaseException:
            self.roll_back()
            raise
