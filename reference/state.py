"""The state of a decode between rounds, and the two ways back to a boundary.

It knows which rows belong to which history, and how to drop the others. Rounds are `decoder`'s business.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from reference.cache import KVCache
from reference.drafters import Drafter
from reference.errors import CacheLengthError, InvalidSetting
from reference.values import DraftBlock, Finish, Floats, GeneratedToken, Round


@dataclass
class DecoderState:
    """Everything a decode has come to. `Decoder.step` changes it in place; `copy` it to try several futures."""

    history: list[int]  # prompt + emitted tokens; the last one is pending: no cache holds it yet
    prompt_length: int  # P
    max_tokens: int  # the most tokens this turn may emit
    target_cache: KVCache  # holds the rows of `history[:-1]`
    drafter: Drafter  # its cache, if any, holds the same tokens (`deferred`: perhaps one less between rounds)
    target_hidden: Floats | None = None  # [n, D], the target's hidden states of the last n committed tokens
    tokens: list[GeneratedToken] = field(default_factory=list)  # the emitted tokens, with where each came from
    delivered: int = 0  # how many of them `generate` has handed out
    finish: Finish | None = None  # why the turn ended; None while it goes on
    num_rounds: int = 0  # rounds done in this turn
    block: DraftBlock = field(default_factory=DraftBlock)  # the proposals of the last round
    superseded: bool = False  # whether `extend` used it up: its caches belong to the state that `extend` returned

    @property
    def emitted(self) -> list[int]:
        """The tokens of this turn. E is its length."""
        return self.history[self.prompt_length :]

    def copy(self) -> DecoderState:
        """An independent state: own history, own caches. Models and randomness are shared."""
        cache, drafter = self.target_cache.copy(), self.drafter.copy()
        return replace(self, history=[*self.history], tokens=[*self.tokens], target_cache=cache, drafter=drafter)

    def check_usable(self) -> None:
        """Raises InvalidSetting where `extend` has used the state up."""
        if self.superseded:
            raise InvalidSetting("this state was used up by extend; go on with the state it returned")

    def check_boundary(self) -> None:
        """As `check_usable`; CacheLengthError where the target cache holds not as many rows as `history[:-1]`."""
        self.check_usable()
        rows, expected = self.target_cache.offset, len(self.history) - 1
        if rows != expected:
            held = f"the target cache holds {rows} rows, a history of {len(self.history)} tokens needs {expected}"
            raise CacheLengthError(f"{held}; something else used it: give every state its own (copy), or prefill anew")

    def record(self, round_: Round, block: DraftBlock, hidden: Floats) -> None:
        """A round stands. One call sets all, which no signal can interrupt half-way: the history names a boundary."""
        fresh = [GeneratedToken(t, i < round_.num_accepted, self.num_rounds) for i, t in enumerate(round_.emitted)]
        vars(self).update(
            history=[*self.history, *round_.emitted], tokens=[*self.tokens, *fresh], block=block,
            target_hidden=hidden[: len(round_.emitted)], finish=round_.finish, num_rounds=self.num_rounds + 1,
        )  # fmt: skip

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
            kept = None if self.target_hidden is None else self.target_hidden[:-num_cut]
            history, tokens = self.history[:-num_cut], self.tokens[:-num_cut]
            vars(self).update(history=history, tokens=tokens, finish=None, target_hidden=kept)  # at once, as `record`
        try:
            self.drafter.settle(self.history)  # only `deferred` may have a row to catch up
        finally:
            self.roll_back()
