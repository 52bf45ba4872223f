"""What a turn drafted and accepted, counted from its rounds, and the one line that says it.

What was never looked at has no rate: None, and a dash in print, neither 0 nor 1.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from reference.values import Round

VARIABLE = "SPECPROOF_ACCEPT_DIAG"
"""Set to 1 in the environment, it makes every generation print its statistics to standard error when it ends."""


@dataclass(frozen=True)
class PlaceStatistics:
    """One place of a block, over the rounds that drafted it.

    Attributes:
        drafted: rounds with a proposal there.
        reached: those that accepted every proposal before it.
        accepted: those that accepted it, too.
    """

    drafted: int
    reached: int
    accepted: int

    @property
    def rate(self) -> float | None:
        """How often the proposal was accepted, given that its place was reached; None where it never was."""
        return self.accepted / self.reached if self.reached else None


@dataclass(frozen=True)
class Statistics:
    """The counts of some rounds.

    Attributes:
        rounds: how many.
        drafted, accepted: proposals made, and accepted by the rule, those that a stop token cut off included.
        tested: proposals that were decided upon: of each round all before the first rejection, and that one.
        places: for each place of a block, the first one first.
        sum_min: mean of sum_x min(p, q) over the tested proposals: what `rejection` is expected to accept. None where
            no round reports it, as under an opaque sampler.
        sum_prod: mean of sum_x p q: what `sampler_match` is expected to accept. None as `sum_min`.
        rounds_by_drafted, rounds_by_accepted: histograms: number of proposals -> rounds.
    """

    rounds: int
    drafted: int
    tested: int
    accepted: int
    places: tuple[PlaceStatistics, ...]
    sum_min: float | None
    sum_prod: float | None
    rounds_by_drafted: Mapping[int, int]
    rounds_by_accepted: Mapping[int, int]

    @classmethod
    def of(cls, rounds: Sequence[Round]) -> Statistics:
        """Of these rounds, which may be none."""
        drafted, accepted = [len(done.drafted) for done in rounds], [done.num_accepted for done in rounds]
        return cls(
            rounds=len(rounds),
            drafted=sum(drafted),
            tested=sum(done.num_tested for done in rounds),
            accepted=sum(accepted),
            places=tuple(
                PlaceStatistics(
                    drafted=sum(k > place for k in drafted),
                    reached=sum(k > place and a >= place for k, a in zip(drafted, accepted, strict=True)),
                    accepted=sum(a > place for a in accepted),
                )
                for place in range(max(drafted, default=0))
            ),
            sum_min=_mean([figure for done in rounds for figure in done.sum_min]),
            sum_prod=_mean([figure for done in rounds for figure in done.sum_prod]),
            rounds_by_drafted=dict(sorted(Counter(drafted).items())),
            rounds_by_accepted=dict(sorted(Counter(accepted).items())),
        )

    def __str__(self) -> str:
        """One line."""
        rates = [f"{_shown(place.rate)} ({place.accepted}/{place.reached})" for place in self.places]
        return (
            f"{self.rounds} rounds; {self.drafted} drafted, {self.tested} tested, {self.accepted} accepted; "
            f"accepted where reached, by place: {', '.join(rates) or '-'}; "
            f"sum min(p, q) {_shown(self.sum_min)}, sum p q {_shown(self.sum_prod)}; "
            f"rounds by drafted: {_counts(self.rounds_by_drafted)}; by accepted: {_counts(self.rounds_by_accepted)}"
        )


def print_if_asked(rounds: Sequence[Round]) -> None:
    """Print one line to standard error where the environment asks for it."""
    if os.environ.get(VARIABLE) == "1":
        print(f"{VARIABLE}: {Statistics.of(rounds)}", file=sys.stderr)


def _mean(figures: Sequence[float]) -> float | None:
    return sum(figures) / len(figures) if figures else None


def _shown(figure: float | None) -> str:
    return "-" if figure is None else f"{figure:.3f}"


def _counts(histogram: Mapping[int, int]) -> str:
    return ", ".join(f"{count} with {number}" for number, count in histogram.items()) or "-"
