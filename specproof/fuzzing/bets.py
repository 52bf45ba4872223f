"""Anytime-valid tests of many draws of one case: bets that may be looked at after every draw.

A right law lets a bet's capital come to 1 / level with a chance of at most level, ever. So a bet ends as soon as it is
sure, or once nothing speaks against the law any more: where there is doubt, draws are spent.

A campaign has no end, and makes bets without end. The i-th of a campaign, over all its engines and laws, has the level
FAMILY_LEVEL / (i (i + 1)). These sum to FAMILY_LEVEL: the chance that right engines are ever accused by any bet, in a
campaign of any length, is at most that. What leaves nothing to chance (a broken invariant, an enumerated law, a refusal
that does not come) needs no level.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

from reference.values import Round
from specproof.acceptance_rate import FORMULAS, Coin, throw
from specproof.engine import Case, Engine
from specproof.exact import target_law
from specproof.fuzzing.coin_bets import CoinBet
from specproof.independence import joint_law
from specproof.invariants.base import LOGIT_NOISE
from specproof.law_cases import random_prompt
from specproof.oracle import oracle_of
from specproof.output_distribution import Drawn
from specproof.statistics import FAMILY_LEVEL, Bet, chi_squared, seeds

DOUBT = 0.2
"""A bet goes on while a plain test of its draws has a p-value below this. Decides on effort only."""
SEQUENCES, ROUNDS, TURNS = (200, 20_000), (150, 20_000), (3, 60)
"""Draws that every bet is worth, and after which it ends in any case: sequences, rounds, turns of tested proposals."""
JOINT_TOKENS = 100
"""Length of a turn whose rounds are as good as turns of their own."""


@dataclass
class Levels:
    """The level of every bet: level / (i (i + 1)) for the i-th. These sum to the level of the family."""

    bets: int = 0

    def take(self) -> float:
        """The level of the next bet."""
        self.bets += 1
        return FAMILY_LEVEL / (self.bets * (self.bets + 1))


@dataclass
class Stake:
    """What one look at a case may cost, and what it did.

    Attributes:
        level: chance of accusing a right engine.
        out_of_time: ends a bet undecided.
        draws: sequences, rounds or tested proposals drawn.
    """

    level: float
    out_of_time: Callable[[], bool] = lambda: False
    draws: int = 0


def sequence_bet(engine: Engine, case: Case, stake: Stake) -> str | None:
    """Draw sequences, and bet against the target's exact law. What is wrong, if the bet is sure."""
    law = target_law(oracle_of(case.target), case.prompt, case.sampling, case.max_tokens, case.stop_tokens)
    least, most = SEQUENCES
    drawn = (
        [tuple(int(token) for token in engine.start(replace(case, seed=seed)))]
        for seed in seeds(case.seed, case.id, 0, most)
    )
    bet = _settled(law, drawn, least, most, stake)
    if bet is None:
        return None
    found = Drawn(case, bet.counts, law)
    return (
        f"{found.witness}; observed total variation {found.variation:.2g} from the target's exact law in "
        f"{found.samples} sequences, where chance gives about {found.variation_by_chance:.2g}. "
        f"{_won(bet.log_capital, stake.level)} If exact_law holds, look at the generator: reused keys, a coin that "
        "decides twice, the draft's noise in the correction. If it fails too, look at the rule."
    )


def round_bet(engine: Engine, case: Case, stake: Stake) -> str | None:
    """Bet against the joint law of proposal, verdict, the token after it and the next proposal.

    The models' distributions never change. Of every two rounds one pair is taken, so that pairs are independent.
    """
    assert case.draft is not None, "these cases have a draft model"
    p, q = (oracle_of(spec).distribution(case.prompt, case.sampling) for spec in (case.target, case.draft))
    law = {(*done, d): mass * float(q[d]) for done, mass in joint_law(case.rule, p, q).items() for d in range(len(q))}
    least, most = ROUNDS
    turns = (
        list(_pairs(engine, replace(case, seed=seed)))
        for seed in seeds(case.seed, case.id, 0, 1 + 4 * most // JOINT_TOKENS)
    )
    bet = _settled(law, turns, least, most, stake)
    if bet is None:
        return None
    total = bet.counts.total()
    worst = max(law.keys() | bet.counts.keys(), key=lambda found: _oddity(bet.counts[found], total * law.get(found, 0)))
    return (
        f"in {total} rounds and what followed them, (proposal, accepted, token after it, next proposal) was {worst} "
        f"{bet.counts[worst]} times, expected {total * law.get(worst, 0):.1f} for independent draws. "
        f"{_won(bet.log_capital, stake.level)} Make every choice with a random number of its own: the proposal, the "
        "coin, and the token that replaces it."
    )


def _pairs(engine: Engine, case: Case) -> Iterator[tuple[int, int, int, int]]:
    """(proposal, accepted, token after it, next proposal) of every other round of a turn."""
    session = engine.start(case)
    for _ in session:
        pass
    rounds: list[Round] = [b.round for b in session.boundaries if b.round is not None and b.round.drafted]
    for done, following in zip(rounds[::2], rounds[1::2], strict=False):
        yield done.drafted[0], done.num_accepted, done.emitted[-1], following.drafted[0]


def _oddity(seen: int, expected: float) -> float:
    return (seen - expected) ** 2 / expected if expected else math.inf if seen else 0.0


def _settled(
    law: Mapping[Any, float], turns: Iterable[Iterable[Any]], least: int, most: int, stake: Stake
) -> Bet[Any] | None:
    """A bet on everything in `turns`, if it gets sure before doubt, time or draws run out."""
    bet: Bet[Any] = Bet(law)
    next_look = least
    for turn in turns:
        if stake.out_of_time() or bet.counts.total() >= most:
            return None
        if bet.counts.total() >= next_look:
            if chi_squared(bet.counts, law).p_value >= DOUBT:
                return None
            next_look = bet.counts.total() + least // 2
        for outcome in turn:
            bet.draw(outcome)
            stake.draws += 1
        if bet.rejects(stake.level):
            return bet
    return None


def _won(log_capital: float, level: float) -> str:
    capital, needed = log_capital / math.log(10), -math.log10(level)
    return (
        f"A bet against the law, which may be looked at any time, multiplied its capital by 10^{capital:.1f}; a right "
        f"engine lets it come to 10^{needed:.1f} with a chance of at most {level:.2g}."
    )


@dataclass
class _Acceptance:
    """Tested proposals and the bets on them, by the source of their closed form."""

    noise: float
    bets: dict[str, CoinBet] = field(default_factory=dict)

    def take(self, coins: Iterable[Coin]) -> int:
        """Bet on some; how many they were."""
        taken = list(coins)
        for coin in taken:
            for source, chance in coin.chances.items():
                self.bets.setdefault(source, CoinBet(self.noise)).throw(coin.accepted, chance)
        return len(taken)


def acceptance_bet(engine: Engine, case: Case, stake: Stake) -> str | None:
    """Run turns with random prompts, and bet against the closed form of every tested proposal's acceptance.

    The closed form is known before the coin is thrown, so the bets are martingales however rounds depend on each other.
    There is one for the oracle's p and q, and one for the engine's own; each has half of the level.
    """
    vocab_size, acceptance = oracle_of(case.target).vocab_size, _Acceptance(LOGIT_NOISE[engine.capabilities.precision])
    least, most = TURNS
    for turn, seed in enumerate(seeds(case.seed, case.id, 0, most)):
        bets = acceptance.bets
        doubtful = any(bet.p_value < DOUBT for bet in bets.values())
        if stake.out_of_time() or (turn >= least and not doubtful):
            return None
        prompt = chain(case.prompt, random_prompt(vocab_size, seed))
        stake.draws += acceptance.take(throw(engine, replace(case, prompt=tuple(prompt), seed=seed)))
        for source, bet in bets.items():
            if bet.rejects(stake.level / 2):
                return (
                    f"acceptance is {bet.accepted / bet.count:.4f} of {bet.count} tested proposals, expected "
                    f"{bet.expected / bet.count:.4f} (mean of {FORMULAS[case.rule]}, from {source}). "
                    f"{_won(bet.log_capital, stake.level / 2)} Look at the drafter's cache and at what it draws from, "
                    "then at the rule."
                )
    return None
