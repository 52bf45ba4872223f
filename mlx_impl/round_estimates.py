"""Running estimates of what a round gives and takes: how many proposals are accepted, and how long it lasts."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from statistics import median_low


@dataclass
class Acceptance:
    """Running estimate of the chance that a proposal is accepted, given that it is reached; one for each position.

    Old rounds are forgotten exponentially. The first position begins with a Beta prior, which is forgotten as they are;
    the prior of every other is a Beta around the estimate of the one before it, after which one that is seldom reached
    takes.

    Attributes:
        max_k: number of positions.
    """

    max_k: int
    tested: list[float] = field(init=False)
    accepted: list[float] = field(init=False)

    KEPT = 0.95  # what a round still counts in the next one
    PRIOR = 0.5
    STRENGTH = 1.0  # of the prior, in rounds

    def __post_init__(self) -> None:
        none = [0.0] * (self.max_k - 1)
        self.tested, self.accepted = [self.STRENGTH, *none], [self.STRENGTH * self.PRIOR, *none]

    def observe(self, drafted: int, num_accepted: int) -> None:
        """A round in which the first `num_accepted` of `drafted` proposals were accepted."""
        self._scale(self.KEPT)
        for position in range(min(num_accepted + 1, drafted)):
            self.tested[position] += 1
            self.accepted[position] += position < num_accepted

    def fade(self) -> None:
        """Let all that was seen count as one round at most, so that the next few can overturn it."""
        self._scale(1 / max(self.tested[0], 1.0))

    def estimates(self) -> list[float]:
        """The chance for each position: [max_k]."""
        mean = self.accepted[0] / self.tested[0]
        found = [mean]
        for tested, accepted in zip(self.tested[1:], self.accepted[1:], strict=True):
            mean = (self.STRENGTH * mean + accepted) / (self.STRENGTH + tested)
            found.append(mean)
        return found

    def expected_tokens(self) -> list[float]:
        """Tokens that a round of k = 1 .. max_k proposals emits, in expectation."""
        expected, total, reached = [], 1.0, 1.0
        for estimate in self.estimates():
            reached *= estimate
            total += reached
            expected.append(total)
        return expected

    def _scale(self, factor: float) -> None:
        self.tested = [count * factor for count in self.tested]
        self.accepted = [count * factor for count in self.accepted]


@dataclass
class Costs:
    """Running estimate of what rounds take, from their times.

    A round waits for the device once, so its parts cannot be timed one by one without slowing it. They need not be: a
    round of k proposals takes k c + v, c being what one proposal adds to drafting and verifying and v what is left, and
    a line through the times says both. Plain steps are kept apart, since v may be more than one of these.
    """

    _plain: deque[float] = field(default_factory=lambda: deque(maxlen=9))
    _seen: set[int] = field(default_factory=set)
    _sums: tuple[float, ...] = (0.0,) * 5  # of 1, k, seconds, k k, k seconds; old rounds are forgotten

    KEPT = 0.97
    ANCHOR = 0.1  # weight of a plain step as a round of k = 0, or rounds of a single length would give no line
    MOST = 2.0  # times the expected: a longer round was held up by something else

    def observe_plain(self, seconds: float) -> None:
        """A step without proposals."""
        if self._is_known(0):
            self._plain.append(seconds)

    def observe(self, k: int, seconds: float) -> None:
        """A round of k proposals."""
        if not self._is_known(k):
            return
        if (line := self.line()) is not None:
            seconds = min(seconds, self.MOST * (line[0] + k * line[1]))
        new = (1.0, k, seconds, k * k, k * seconds)
        self._sums = tuple(self.KEPT * old + more for old, more in zip(self._sums, new, strict=True))

    def _is_known(self, k: int) -> bool:
        """Whether there was one of this length: the first is left out, as the device may compile or allocate for it."""
        known = k in self._seen
        self._seen.add(k)
        return known

    @property
    def plain_seconds(self) -> float | None:
        """A plain step's time, the median of the last ones; None before the first."""
        return median_low(self._plain) if self._plain else None

    def line(self) -> tuple[float, float] | None:
        """(v, c): a round of k proposals takes v + k c, or a plain step if that is more; None before both are known."""
        plain = self.plain_seconds
        if plain is None or self._sums[0] == 0:
            return None
        count, ks, total, squares, products = self._sums
        count, total = count + self.ANCHOR, total + self.ANCHOR * plain
        c = max((count * products - ks * total) / max(count * squares - ks * ks, 1e-12), 0.0)
        return (total - c * ks) / count, c

    def round_seconds(self, most: int) -> list[float] | None:
        """The time of a round of 1 .. most proposals; None before it is known."""
        line, plain = self.line(), self.plain_seconds
        if line is None or plain is None:
            return None
        return [max(line[0] + k * line[1], plain) for k in range(1, most + 1)]
