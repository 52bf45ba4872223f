"""From rounds to figures: acceptance by position with its interval, closed forms, tokens per round, lag, speed.

Pure arithmetic on `Turn`s. A figure that is not defined is None: the acceptance of a position that no round reached is
neither 0 nor 1.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise, zip_longest

import scipy

from reference.values import Round

CONFIDENCE = 0.95
"""Of every interval."""


@dataclass(frozen=True)
class Turn:
    """One decode, as far as figures need it.

    Attributes:
        prompt: which of the prompts, from 0.
        seed: of the engine's random numbers.
        emitted: its tokens.
        rounds: in their order; `sum_min` and `sum_prod` have an entry for each tested position.
        begins: how many tokens had been emitted when each of the rounds began.
        lags: rows by which the drafter's cache was short of the committed history: after prefill, then after every
            round. Empty: the engine does not show it.
        seconds: from the first token to the last, nothing being noted meanwhile; None: not timed.
        as_plain: whether decoding without a drafter gives the same tokens; None: nothing says that it should.
    """

    prompt: int
    seed: int
    emitted: tuple[int, ...]
    rounds: tuple[Round, ...]
    begins: tuple[int, ...]
    lags: tuple[int, ...] = ()
    seconds: float | None = None
    as_plain: bool | None = None

    @property
    def tokens_per_second(self) -> float | None:
        """Behind the first token, which prefill draws."""
        return (len(self.emitted) - 1) / self.seconds if self.seconds and len(self.emitted) > 1 else None


@dataclass(frozen=True)
class Position:
    """What became of the proposals at one place of a block.

    Attributes:
        reached: rounds in which all proposals before it were accepted, so that it was tested.
        accepted: how many of these accepted it.
        sum_min, sum_prod: means over these of sum_x min(p, q) and sum_x p q.
    """

    reached: int
    accepted: int
    sum_min: float | None
    sum_prod: float | None

    @property
    def rate(self) -> float | None:
        """Acceptance, given that the position was reached."""
        return self.accepted / self.reached if self.reached else None

    @property
    def ci(self) -> tuple[float, float] | None:
        """The interval of the rate (`wilson`)."""
        return wilson(self.accepted, self.reached)


@dataclass(frozen=True)
class Figures:
    """Everything that is measured of one engine under one rule.

    Attributes:
        positions: k of them, the first proposal's first.
        tested: all positions as one.
        num_draft_tokens: k.
        rounds: how many there were; `full_rounds` of them proposed k tokens (fewer near the end of a budget).
        tokens_per_round: mean of a + 1 over full rounds.
        lag: by rounds done, from 0 (after prefill): mean over the turns that got so far.
        tokens_per_second: median over the turns.
        as_plain: turns whose text is that of decoding without a drafter, of so many that should be.
    """

    positions: tuple[Position, ...]
    tested: Position
    num_draft_tokens: int
    rounds: int
    full_rounds: int
    tokens_per_round: float | None
    lag: tuple[float, ...]
    tokens_per_second: float | None
    as_plain: tuple[int, int]

    @property
    def tokens_per_round_formula(self) -> float | None:
        """(1 - alpha^(k + 1)) / (1 - alpha), alpha being the acceptance over all tested positions."""
        return None if self.tested.rate is None else tokens_per_round(self.tested.rate, self.num_draft_tokens)


def figures(turns: Sequence[Turn], num_draft_tokens: int) -> Figures:
    """All figures of some turns of one engine with at most `num_draft_tokens` proposals in a round."""
    rounds = [done for turn in turns for done in turn.rounds]
    full = [done.num_accepted + 1 for done in rounds if len(done.drafted) == num_draft_tokens]
    compared = [turn.as_plain for turn in turns if turn.as_plain is not None]
    return Figures(
        positions=tuple(_position(rounds, [place]) for place in range(num_draft_tokens)),
        tested=_position(rounds, range(num_draft_tokens)),
        num_draft_tokens=num_draft_tokens,
        rounds=len(rounds),
        full_rounds=len(full),
        tokens_per_round=_mean(full),
        lag=mean_lag([turn.lags for turn in turns]),
        tokens_per_second=_median(turn.tokens_per_second for turn in turns),
        as_plain=(sum(compared), len(compared)),
    )


def _position(rounds: Iterable[Round], places: Iterable[int]) -> Position:
    """Some places of all rounds, taken together."""
    tested = [(done, place) for done in rounds for place in places if place < done.num_tested]
    return Position(
        reached=len(tested),
        accepted=sum(place < done.num_accepted for done, place in tested),
        sum_min=_mean([done.sum_min[place] for done, place in tested if place < len(done.sum_min)]),
        sum_prod=_mean([done.sum_prod[place] for done, place in tested if place < len(done.sum_prod)]),
    )


def wilson(successes: int, trials: int, confidence: float = CONFIDENCE) -> tuple[float, float] | None:
    """Wilson's score interval (1927) of a rate; None without trials.

    Within 0..1 whatever the rate, and of some width at 0 and 1, too. The tested proposals are a martingale, not
    independent coins; what that changes is small beside the width.
    """
    if trials == 0:
        return None
    z = float(scipy.special.ndtri(0.5 + confidence / 2))
    rate, weight = successes / trials, z * z / trials
    centre = (rate + weight / 2) / (1 + weight)
    half = z * math.sqrt(rate * (1 - rate) / trials + weight / (4 * trials)) / (1 + weight)
    return max(0.0, centre - half), min(1.0, centre + half)


def tokens_per_round(rate: float, num_draft_tokens: int) -> float:
    """1 + alpha + .. + alpha^k = (1 - alpha^(k + 1)) / (1 - alpha): expected, if every position accepts at this rate.

    Leviathan et al. 2023, equation 1. Rates that differ from position to position give another number.
    """
    return math.fsum(rate**power for power in range(num_draft_tokens + 1))


def predicted_speed_up(rate: float, num_draft_tokens: int, draft_cost: float, verify_cost: float) -> float:
    """How many times faster than plain decoding, if every position accepts at this rate: Leviathan et al. 2023.

    Args:
        rate: alpha.
        num_draft_tokens: k.
        draft_cost: c, a step of the drafter in units of a plain step of the target.
        verify_cost: v, the target's pass over k + 1 tokens in the same units (1 in the paper).
    """
    return tokens_per_round(rate, num_draft_tokens) / (num_draft_tokens * draft_cost + verify_cost)


def mean_lag(lags: Sequence[Sequence[int]]) -> tuple[float, ...]:
    """The mean over turns at every boundary, over those that have it."""
    columns = ([lag for lag in column if lag is not None] for column in zip_longest(*lags))
    return tuple(math.fsum(column) / len(column) for column in columns)


def recoveries(turns: Iterable[Turn]) -> int:
    """Rounds after which the drafter is less far behind than before them."""
    return sum(after < before for turn in turns for before, after in pairwise(turn.lags))


@dataclass(frozen=True)
class Proposals:
    """Rounds of two engines that began at the same place of the same text, and in how many they proposed otherwise."""

    compared: int
    different: int


def compare_proposals(some: Sequence[Turn], others: Sequence[Turn]) -> Proposals:
    """Compare what was proposed at the same places. Turns are matched by prompt and seed, rounds by their history."""
    known = dict(chain.from_iterable(_by_history(turn) for turn in others))
    pairs = [(drafted, known[key]) for turn in some for key, drafted in _by_history(turn) if key in known]
    shared = [(a[: len(b)], b[: len(a)]) for a, b in pairs if a and b]
    return Proposals(len(shared), sum(a != b for a, b in shared))


_Place = tuple[int, int, tuple[int, ...]]


def _by_history(turn: Turn) -> Iterable[tuple[_Place, tuple[int, ...]]]:
    for begin, done in zip(turn.begins, turn.rounds, strict=True):
        yield (turn.prompt, turn.seed, turn.emitted[:begin]), done.drafted


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None
