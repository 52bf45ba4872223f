"""How many proposals a round asks for: always the same number, or the one that past rounds say is fastest.

Why a choice from past rounds keeps the output's distribution: `choose` is called before the round makes any random
choice, and knows counts and times of rounds that are over. So, given the history, k is independent of the coins and
draws to come. A lossless rule emits the target's distribution for each k, and hence for a k chosen so. At temperature
0, and under `coupled`, the tokens themselves are the same for every k; elsewhere times may decide *which* sample a seed
gives, never its law. A choice that looked at the drafted tokens, or at their probabilities, would be another matter.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from mlx_impl.forward import plain_count
from mlx_impl.round_estimates import Acceptance, Costs
from reference.errors import InvalidSetting


@runtime_checkable
class DraftLength(Protocol):
    """Chooses k, round by round. The decoder calls the three methods in this order, unless the round fails."""

    @property
    def max_k(self) -> int:
        """The most that it ever chooses."""
        ...

    def choose(self, limit: int) -> int:
        """A round begins in which at most `limit` proposals have a place: how many to ask for."""
        ...

    def proposed(self, count: int) -> None:
        """The drafter has proposed so many."""
        ...

    def record(self, num_accepted: int) -> None:
        """The round stands, with so many proposals accepted."""
        ...


@dataclass(frozen=True)
class FixedLength:
    """Always k."""

    max_k: int

    def choose(self, limit: int) -> int:
        """k."""
        return self.max_k

    def proposed(self, count: int) -> None:
        """Nothing to learn."""

    def record(self, num_accepted: int) -> None:
        """Nothing to learn."""


def draft_length(value: int | DraftLength) -> DraftLength:
    """A number of proposals as a `DraftLength`.

    Raises:
        InvalidSetting: neither an integer >= 0 nor a `DraftLength`.
    """
    if isinstance(value, DraftLength):
        return value
    return FixedLength(plain_count(value, "num_draft_tokens", " (0 decodes plainly)"))


class AdaptiveLength:
    """Asks for the k that gives most tokens per second, by running acceptance and measured times.

    With acceptance a at every position, k proposals give (1 - a^(k+1)) / ((1 - a) (k c + v)) tokens per second; with
    estimates in place of a, c and v, that is maximised. Where even the best k gives less than plain decoding, it
    pauses: k = 0, for `FIRST_PAUSE` rounds, then a probe of up to `TRIES` rounds. A probe of which nothing is accepted
    doubles the pause, up to `LONGEST_PAUSE`; after one that goes well, speculation is taken up again if it pays.

    So in n rounds of a drafter that is never right, speculation costs what the rounds before the first pause cost, and
    `TRIES` times a round's excess over a plain step for each of at most log2(LONGEST_PAUSE / FIRST_PAUSE) +
    n / LONGEST_PAUSE + 1 probes. While it pays, a plain step is measured now and then, at intervals that double, too.

    A round for which the drafter proposes nothing is a plain step, and is not held against it, unless it took long to
    propose nothing (as a draft model with `min_prob` does): then it counts as one proposal that was rejected.

    In pauses a draft model's cache stays behind; the first round of a probe forwards what it lacks, so that its time is
    not learnt from.

    It learns from every state of its decoder, and like a source of randomness it is shared by their copies.

    Args:
        max_k: most proposals in a round.
        clock: seconds, as `time.perf_counter`.

    Raises:
        InvalidSetting: max_k no integer >= 1.
    """

    FIRST_LENGTH = 4  # asked for while nothing is known
    FIRST_PAUSE = 16  # rounds
    LONGEST_PAUSE = 128
    FIRST_CHECK = 32  # rounds with proposals before a plain step is measured again
    LONGEST_CHECK = 256
    TRIES = 2  # rounds of a probe of which nothing is accepted
    MOST_TRIES = 3  # rounds of a probe that go well, and still do not pay
    FREE = 0.01  # of a plain step: what proposing nothing may take

    def __init__(self, max_k: int, *, clock: Callable[[], float] = time.perf_counter) -> None:
        if plain_count(max_k, "max_k", ", at least 1") == 0:
            raise InvalidSetting("max_k is 0; give an integer >= 1, or num_draft_tokens=0 to decode plainly")
        self.max_k = plain_count(max_k, "max_k")
        self.acceptance = Acceptance(self.max_k)
        self.costs = Costs()
        self._clock = clock
        self._pause, self._paused_for, self._probing, self._tries = self.FIRST_PAUSE, 0, False, 0
        self._check, self._unchecked = self.FIRST_CHECK, self.FIRST_CHECK  # so it begins with plain steps
        self._asked, self._drafted, self._began, self._drafted_at = 0, 0, 0.0, 0.0

    def choose(self, limit: int) -> int:
        """0 in a pause, or where a plain step is due to be measured; else the best k up to `limit`."""
        resting = limit <= 0 or self._paused_for > 0 or self._unchecked >= self._check
        self._asked = 0 if resting else self.best(limit)
        self._began = self._clock()
        return self._asked

    def proposed(self, count: int) -> None:
        """Note how long it took to propose."""
        self._drafted, self._drafted_at = count, self._clock()

    def record(self, num_accepted: int) -> None:
        """Learn from the round."""
        seconds, proposing = self._clock() - self._began, self._drafted_at - self._began
        if self._drafted == 0:
            self._record_plain(seconds - proposing)
            if self._asked == 0 or proposing <= self.FREE * (seconds - proposing):
                return
        else:
            self._unchecked += 1
        self.acceptance.observe(max(self._drafted, 1), num_accepted)
        if not (self._probing and self._tries == 0):
            self.costs.observe(self._drafted, seconds)
        self._judge(num_accepted)

    def best(self, limit: int) -> int:
        """The k of most expected tokens per second, up to `limit` and `max_k`; a first guess before times are known."""
        rates = self._rates(min(limit, self.max_k))
        return min(limit, self.max_k, self.FIRST_LENGTH) if rates is None else 1 + rates.index(max(rates))

    def pays(self) -> bool:
        """Whether the best k is faster than plain decoding, as far as is known."""
        plain, rates = self.costs.plain_seconds, self._rates(self.max_k)
        return plain is None or rates is None or max(rates) * plain > 1

    def _rates(self, most: int) -> list[float] | None:
        """Expected tokens per second with k = 1 .. most; None before times are known."""
        times = self.costs.round_seconds(most)
        if times is None:
            return None
        # A clock too coarse to see a round says nothing: 1e-12 keeps the division defined.
        return [n / max(seconds, 1e-12) for n, seconds in zip(self.acceptance.expected_tokens(), times, strict=False)]

    def _record_plain(self, seconds: float) -> None:
        """A step without proposals: one of a pause, one for its time, or one in which the drafter had none."""
        known = self.costs.plain_seconds is not None
        if self._paused_for > 0:
            self._paused_for -= 1
        elif known and self._unchecked >= self._check:
            self._check = min(2 * self._check, self.LONGEST_CHECK)
        self.costs.observe_plain(seconds)
        self._unchecked = self._unchecked if self.costs.plain_seconds is None else 0

    def _judge(self, num_accepted: int) -> None:
        """Go on, or pause. Of a probe, only one of which something was accepted may end the pauses."""
        pays = self.pays()
        if pays and num_accepted:
            self._probing, self._tries = False, 0
            self._pause = max(self._pause // 2, self.FIRST_PAUSE)
        if pays and not self._probing:
            return
        self._tries += 1
        failed = num_accepted < max(self._drafted, 1) and not (self._probing and self._tries < self.TRIES)
        if failed or self._tries >= self.MOST_TRIES:
            self._paused_for, self._pause = self._pause, min(2 * self._pause, self.LONGEST_PAUSE)
            self._probing, self._tries = True, 0
            self.acceptance.fade()
