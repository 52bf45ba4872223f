"""What is looked for over many runs of one case: another law of the output than the target's.

A case is drawn again and again, and every sequence is a stake in a `Bet` against the target's exact law. A bet may be
looked at after every draw: it ends as soon as it is sure, or once nothing speaks against the law any more. Where there
is doubt, draws are spent. The level is split over all bets of a campaign, however many there will be.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from specproof.engine import Case, Engine
from specproof.exact import SequenceLaw, target_law
from specproof.law_cases import Tokens
from specproof.oracle import oracle_of
from specproof.output_distribution import NAME, Drawn
from specproof.results import Violation
from specproof.runner import ENGINE_ERRORS, error_text
from specproof.statistics import FAMILY_LEVEL, Bet, chi_squared, seeds

LOOK = 100
"""Draws between two looks at whether there is doubt left."""
FIRST_LOOK = 200
"""Draws that every bet is worth."""
DOUBT = 0.2
"""A bet goes on while a chi-squared test of its draws has a p-value below this. Decides on effort only."""
MOST_DRAWS = 20_000
"""Draws after which a bet ends in any case."""


@dataclass
class Levels:
    """The level of every bet: level / (i (i + 1)) for the i-th. These sum to the level of the family."""

    bets: int = 0

    def take(self) -> float:
        """The level of the next bet."""
        self.bets += 1
        return FAMILY_LEVEL / (self.bets * (self.bets + 1))


@dataclass
class Wager:
    """One bet on one case.

    Attributes:
        engine: whose draws.
        case: what is drawn; its seed gives those of all draws.
        level: chance of accusing a right engine.
        law: the target's, by sequence.
        bet: how it stands.
    """

    engine: Engine
    case: Case
    level: float
    law: SequenceLaw = field(init=False)
    bet: Bet[Tokens] = field(init=False)

    def __post_init__(self) -> None:
        case = self.case
        self.law = target_law(oracle_of(case.target), case.prompt, case.sampling, case.max_tokens, case.stop_tokens)
        self.bet = Bet(self.law)

    @property
    def draws(self) -> int:
        """Sequences drawn so far."""
        return self.bet.counts.total()

    def settle(self, out_of_time: Callable[[], bool] = lambda: False) -> Violation | None:
        """Draw until the bet is sure, or no doubt is left, or time is out. What the engine raises is a violation."""
        for seed in seeds(self.case.seed, self.case.id, 0, MOST_DRAWS):
            if out_of_time() or self._is_pointless():
                return None
            try:
                tokens = tuple(int(token) for token in self.engine.start(replace(self.case, seed=seed)))
            except ENGINE_ERRORS as error:
                problem = f"the engine raised {error_text(error)}, with seed {seed}"
                return Violation(NAME, self.case.id, None, problem)
            self.bet.draw(tokens)
            if self.bet.rejects(self.level):
                return self._violation()
        return None

    def _is_pointless(self) -> bool:
        looks = self.draws >= FIRST_LOOK and self.draws % LOOK == 0
        return looks and chi_squared(self.bet.counts, self.law).p_value >= DOUBT

    def _violation(self) -> Violation:
        drawn = Drawn(self.case, self.bet.counts, self.law)
        capital, needed = self.bet.log_capital / math.log(10), -math.log10(self.level)
        message = (
            f"{drawn.witness}; observed total variation {drawn.variation:.2g} from the target's exact law in "
            f"{drawn.samples} sequences, where chance gives about {drawn.variation_by_chance:.2g}. A bet against the "
            f"law, which may be looked at any time, multiplied its capital by 10^{capital:.1f}; a right engine lets it "
            f"come to 10^{needed:.1f} with a chance of at most {self.level:.2g}. If exact_law holds, look at the "
            "generator: reused keys, a coin that decides twice, the draft's noise in the correction. If it fails too, "
            "look at the rule."
        )
        numbers = {"samples": drawn.samples, "log10_capital": capital, "level": self.level}
        return Violation(NAME, self.case.id, None, message, numbers)


@dataclass(frozen=True)
class LostBet:
    """A bet that an engine's output lost, and its level."""

    violation: Violation
    level: float


@dataclass
class BetJudge:
    """Judges cases of an engine by a bet on each.

    Attributes:
        engine: whose output.
        levels: gives every bet its level.
        out_of_time: ends a bet undecided, as long as none was lost.
        draws: sequences drawn in all.
    """

    engine: Engine
    levels: Levels
    out_of_time: Callable[[], bool]
    draws: int = 0
    has_lost: bool = False

    def __call__(self, case: Case) -> LostBet | None:
        """What the engine lost on a case."""
        wager = Wager(self.engine, case, self.levels.take())
        violation = wager.settle((lambda: False) if self.has_lost else self.out_of_time)
        self.draws += wager.draws
        if violation is None:
            return None
        self.has_lost = True
        return LostBet(violation, wager.level)
