"""The state of a decode between rounds, and the two ways back to a boundary.

It knows which rows belong to which history, and how to drop the others. Rounds are `decoder`'s business.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from reference.cache import KVCache
from reference.drafters import Drafter
from reference.errors import CacheLengthError, InvalidSetting
from reference.values import DraftBlock, Finish, GeneratedToken, Round

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
        superseded: whether `extend` has used the state up: its caches belong to the state that `extend` returned.
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
    superseded: bool = False

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

    def check_usable(self) -> None:
        """Refuse to go on with caches that belong to another state.

        Raises:
            InvalidSetting: the state was used up by `extend`.
        """
        if self.superseded:
            raise InvalidSetting("this state was used up by extend; go on with the state it returned")

    def check_boundary(self) -> None:
        """Refuse a target cache that does not hold `history[:-1]`.

        Raises:
            CacheLengthError: it holds another number of rows.
        """
        rows, expected = self.target_cache.offset, len(self.history) - 1
        if rows != expected:
            raise CacheLengthError(
                f"the target cache holds {rows} rows, a history of {len(self.history)} tokens needs {expected}; "
                "something else used this cache: give every state its own (copy), or prefill anew"
            )

    def after(self, round_: Round, block: DraftBlock, hidden: Floats) -> dict[str, object]:
        """The attributes as they are once a round stands, to be set all at once by `record`."""
        fresh = [GeneratedToken(t, i < round_.num_accepted, self.num_rounds) for i, t in enumerate(round_.emitted)]
        return {
            "history": [*self.history, *round_.emitted],
            "tokens": [*self.tokens, *fresh],
            "target_hidden": hidden[: len(round_.emitted)],
            "block": block,
            "finish": round_.finish,
            "num_rounds": self.num_rounds + 1,
        }

    def record(self, changes: dict[str, object]) -> None:
        """Set attributes in one call, which no signal can interrupt half-way: the history always names a boundary."""
        vars(self).update(changes)

    def roll_back(self) -> None:
        """Undo a round that failed, whatever it left half-written: back to the boundary that `history` names."""
        self.target_cache.trim_to(len(self.history) - 1)
        self.drafter.rollback(self.history)

    def take_back_undelivered(self) -> None:
        """End the history with the last token delivered: a boundary like any other, from which the turn may go on."""
        if self.superseded:
            return  # the caches, and the tokens that were waiting, are another state's now
        num_cut = len(self.tokens) - self.delivered
        if num_cut:
            hidden = self.target_hidden
            kept = None if hidden is None else hidden[: max(len(hidden) - num_cut, 0)]
            history, tokens = self.history[:-num_cut], self.tokens[:-num_cut]
            self.record({"history": history, "tokens": tokens, "finish": None, "target_hidden": kept})
        self.roll_back()
        try:
            self.drafter.settle(self.history)  # only `deferred` may have a row to catch up
        except BaseException:
            self.roll_back()
            raise
