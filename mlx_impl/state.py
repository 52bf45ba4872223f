"""The state of a decode between rounds, and the two ways back to a boundary.

Knows which rows belong to which history, and how to drop the others. Rounds are `decoder`'s business.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from mlx_impl.drafters import DeviceBlock, Drafter
from mlx_impl.model_cache import ModelCache
from mlx_impl.statistics import Statistics
from reference.errors import CacheLengthError, InvalidSetting
from reference.values import Finish, GeneratedToken, Round

UNLIMITED = -1
"""As `max_tokens`: the turn goes on until a stop token, or until its iterator is closed."""


@dataclass
class DecoderState:
    """A decode between two rounds. `Decoder.step` changes it in place; `copy` it to try several futures.

    Attributes:
        history: prompt and emitted tokens; the last one is pending.
        prompt_length: P, where this turn's emitted tokens begin.
        max_tokens: most tokens to emit in this turn; `UNLIMITED` (-1) for no limit.
        target_cache: the target's cache; holds the rows of `history[:-1]`.
        drafter: with its cache, which holds its own rows of the same tokens.
        block: the proposals of the last round, on the device.
        tokens: the emitted tokens, with where each came from.
        delivered: how many of them `generate` has handed out.
        finish: why the turn ended; None while it goes on.
        rounds: those of this turn so far. One that was taken back in part stays as it was decided.
        superseded: set by `extend`: the caches now belong to the state that it returned.
        unsettled: a call has begun to change the caches, and neither came to its end nor all the way back (a second
            interrupt may come during a roll-back). The next call goes back first.
    """

    history: list[int]
    prompt_length: int
    max_tokens: int
    target_cache: ModelCache
    drafter: Drafter
    block: DeviceBlock
    tokens: list[GeneratedToken] = field(default_factory=list)
    delivered: int = 0
    finish: Finish | None = None
    rounds: tuple[Round, ...] = ()
    superseded: bool = False
    unsettled: bool = False

    @property
    def num_rounds(self) -> int:
        """Rounds so far in this turn."""
        return len(self.rounds)

    @property
    def statistics(self) -> Statistics:
        """What was drafted and accepted in this turn so far."""
        return Statistics.of(self.rounds)

    @property
    def emitted(self) -> tuple[int, ...]:
        """The tokens of this turn."""
        return tuple(self.history[self.prompt_length :])

    @property
    def remaining(self) -> int | None:
        """How many more tokens this turn may emit; None without a limit."""
        return None if self.max_tokens == UNLIMITED else self.max_tokens - (len(self.history) - self.prompt_length)

    def copy(self) -> DecoderState:
        """An independent copy, caches included; models and source of randomness are shared."""
        return replace(
            self,
            history=list(self.history),
            target_cache=self.target_cache.copy(),
            drafter=self.drafter.copy(),
            tokens=list(self.tokens),
        )

    def refuse_if_superseded(self) -> None:
        """Refuse to touch caches that another state goes on with.

        Raises:
            InvalidSetting: `extend` has used this state up.
        """
        if self.superseded:
            raise InvalidSetting("this state was used up by extend; go on with the state it returned")

    def check_rows(self) -> None:
        """Refuse a target's cache that something else has written to or cut.

        Raises:
            CacheLengthError: it does not hold one row for each token of the history but the last, or those of others.
        """
        wanted, cache = len(self.history) - 1, self.target_cache
        if cache.behind:
            return
        if cache.length != wanted or cache.shared(self.history) != wanted:
            raise CacheLengthError(
                f"the target's cache holds {cache.length} rows, not the {wanted} of the history without its pending "
                "token, or those of other tokens; let no one else use a state's caches: decode on a copy, or prefill "
                "again"
            )

    def record(self, tokens: Sequence[GeneratedToken], block: DeviceBlock, done: Round) -> None:
        """A round stands: take its tokens in, all at once.

        One call that no signal handler can interrupt half-way, so that at every moment the history names a boundary.
        """
        vars(self).update(
            history=[*self.history, *(item.token for item in tokens)],
            tokens=[*self.tokens, *tokens],
            block=block,
            finish=done.finish,
            rounds=(*self.rounds, done),
            unsettled=False,
        )

    def roll_back(self) -> None:
        """Go back to the boundary that the history names. Forwards nothing: the models may be what failed."""
        self.target_cache.rollback(len(self.history) - 1)
        self.drafter.rollback(self.history)
        self.unsettled = False

    def settle(self) -> None:
        """Go back all the way, where an earlier way back was interrupted itself."""
        if self.unsettled:
            self.roll_back()

    def take_back_undelivered(self, target: Any) -> None:
        """End with the last token delivered: a boundary like any other, from which the turn may go on.

        Where a recurrent layer has no other way back, tokens are forwarded again by the target's model, which is given.
        Should that fail, or be interrupted, both caches are at that boundary or before it, and the next step makes up
        for what they lack.
        """
        if self.superseded:
            return
        self.settle()
        try:
            if cut := len(self.tokens) - self.delivered:
                vars(self).update(history=self.history[:-cut], tokens=self.tokens[:-cut], finish=None, unsettled=True)
                self.target_cache.commit(target, self.history[:-1])
            self.drafter.settle(self.history)  # a `deferred` one may lack a row even where nothing was cut
            self.unsettled = False
        except BaseException:
            self.roll_back()
            raise
