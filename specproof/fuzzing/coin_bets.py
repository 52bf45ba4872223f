"""An anytime-valid test of coins whose chances are known before they are thrown, each with its own."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import scipy

from specproof.statistics import CERTAIN

SHIFTS = (1 / 3, 2 / 3, 3 / 2, 3.0)
"""Alternatives that multiply the odds of every coin: acceptance is a little or much too rare or too frequent."""
BLENDS = (0.02, 0.3)
"""Alternatives that replace so much of every chance by a half: outcomes that are certain do not come."""


def _alternatives(chance: float) -> Iterator[float]:
    """What the chance would be under each alternative."""
    for shift in SHIFTS:
        yield chance * shift / (1 - chance + chance * shift)
    for blend in BLENDS:
        yield chance + blend * (0.5 - chance)


@dataclass
class CoinBet:
    """A gambler's capital, in equal parts on some alternatives, against coins with known chances.

    Every part grows by the ratio of the alternative's probability of what came up to the known one. If each chance is
    right (given all that came before), the capital is a martingale that begins at 1 and is never negative: it ever
    reaches 1 / level with a chance of at most level (Ville 1939). Where chances are known up to `noise`, each outcome's
    probability is taken as high as that allows, and the capital can only be less.

    Attributes:
        noise: how far a chance may be off, by rounding.
        count, accepted, expected: coins thrown, those that came up, and the sum of the chances.
        variance: the sum of theirs.
    """

    noise: float
    count: int = 0
    accepted: int = 0
    expected: float = 0.0
    variance: float = 0.0
    _parts: list[float] = field(default_factory=lambda: [0.0] * len((*SHIFTS, *BLENDS)))

    def throw(self, came_up: bool, chance: float) -> None:
        """Take one coin into account."""
        chance = min(max(chance, 0.0), 1.0)  # rounding
        known = (chance if came_up else 1 - chance) + max(self.noise, CERTAIN)
        for i, other in enumerate(_alternatives(chance)):
            supposed = other if came_up else 1 - other
            self._parts[i] += math.log(supposed / known) if supposed > 0 else -math.inf
        self.count += 1
        self.accepted += came_up
        self.expected += chance
        self.variance += chance * (1 - chance)

    @property
    def log_capital(self) -> float:
        """Natural logarithm of the capital."""
        return float(scipy.special.logsumexp(self._parts)) - math.log(len(self._parts))

    @property
    def p_value(self) -> float:
        """Of a z-test: how doubtful the chances look, to decide on effort only."""
        if self.variance == 0:
            return 1.0
        return float(2 * scipy.special.ndtr(-abs(self.accepted - self.expected) / math.sqrt(self.variance)))

    def rejects(self, level: float) -> bool:
        """Whether the capital is at least 1 / level now."""
        return self.log_capital >= -math.log(level)
