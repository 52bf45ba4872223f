"""The check `acceptance_rate`: proposals are accepted as often as the pair and the rule can give.

Every tested proposal is a coin whose chance is known before it is thrown: the rule's closed form of p and q after the
history and the proposals before it. The differences add up to a martingale, so that rounds of one run, which depend
on each other, can be tested together. Rates are conditional on a position being reached: a proposal behind
a rejection was not tested, and counts nowhere.

p and q come from the cache-free oracle. A drafter whose cache has gone wrong proposes from another q, and is seen here
although its output stays right; where the engine reports its own sums of p and q, they are held against its
acceptance as well, which tells a wrong rule from a wrong drafter.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from reference.acceptance import RULES
from reference.values import Round, SamplingParams
from specproof.engine import Boundary, Capabilities, Case, Engine, Floats
from specproof.evidence import Evidence, confirm, gather_all
from specproof.invariants.base import LOGIT_NOISE
from specproof.law_cases import GREEDY, Setting, contrary, law_case, random_prompt, sampling_rules, vocabulary
from specproof.oracle import oracle_of
from specproof.pairs import Pair
from specproof.results import CheckResult
from specproof.statistics import CERTAIN, FAMILY_LEVEL, POWER, CoinTest, coin_test, seeds, trend_test

NAME = "acceptance_rate"

SETTINGS = (
    Setting("T1", SamplingParams()),
    Setting("T0.7-top_p0.75", SamplingParams(temperature=0.7, top_p=0.75)),
)
NUM_DRAFT_TOKENS = 3
TOKENS = 48
"""Long turns: what goes wrong with a drafter's cache mostly gets worse from round to round."""

FULL_TURNS, QUICK_TURNS = 30, 12
"""Turns per setting."""

TREND_ROUNDS = 30
"""Rounds over which the weights of the trend grow; later rounds weigh like the last of these."""

PAIR, ENGINE = "the oracle's p and q", "the engine's own sums"
ALL_POSITIONS = "all positions"

FORMULAS = {
    "greedy": "1 if both argmaxes agree, else 0",
    "sampler_match": "sum_x p(x) q(x)",
    "rejection": "sum_x min(p(x), q(x))",
    "block": "sum_x min(p(x), q(x) / w), w the weight of the proposals before",
    "coupled": "sum_x 1 / sum_y max(p(y) / p(x), q(y) / q(x))",
}

ADVICE = {
    PAIR: "Look at the drafter's cache and at what it draws from, then at the rule.",
    ENGINE: "p and q are what the engine says they are, so look at the rule and its coins.",
}


def expected_acceptances(rule: str, p: Sequence[Floats], q: Sequence[Floats], drafted: Sequence[int]) -> list[float]:
    """The chance that proposal i is accepted, given that it is reached and what was drafted before it: k numbers.

    For `block`, position i counts as reached if at least i - 1 proposals were accepted. Given the first i - 1 that has
    probability w_{i-1}, and accepting one more has sum_x q_i(x) min(w_{i-1} p_i(x) / q_i(x), 1), whence
    sum_x min(p_i(x), q_i(x) / w_{i-1}): at least the sum of minima that `rejection` gives, as w <= 1.

    Args:
        rule: a name in `reference.acceptance.RULES`.
        p: at least k distributions [V] of the target, at the places of the proposals.
        q: k distributions [V] of the drafter.
        drafted: the k proposals.
    """
    if rule != "block":
        return [float(RULES[rule].expected_acceptance(p_i, q_i)) for p_i, q_i in zip(p, q, strict=False)]
    weight, expected = 1.0, []
    for p_i, q_i, token in zip(p, q, drafted, strict=False):
        expected.append(float(np.minimum(p_i, q_i / weight).sum()) if weight > 0 else 0.0)
        weight = min(weight * p_i[token] / q_i[token], 1.0) if q_i[token] > 0 else 0.0
    return expected


def observable(capabilities: Capabilities) -> bool:
    """The engine shows its rounds: what was drafted, and how much of it was accepted."""
    return capabilities.rounds and "draft_model" in capabilities.drafters and bool(_rules(capabilities))


def check(engine: Engine, pair: Pair, seed: int, quick: bool) -> CheckResult:
    """Judge all cases that the engine can run, with the turns of a full or a quick audit.

    Args:
        engine: the decoder under audit.
        pair: target and drafter.
        seed: draws the prompts, and the seeds of all turns.
        quick: fewer turns.
    """
    if not observable(engine.capabilities):
        return CheckResult.not_observable(
            "the engine does not show what a draft model proposed and how much was accepted"
        )
    return judge(engine, list(cases(engine.capabilities, pair, seed)), seed, QUICK_TURNS if quick else FULL_TURNS)


def cases(capabilities: Capabilities, pair: Pair, seed: int) -> Iterator[Case]:
    """Every rule in every setting that the engine honours, and once with a contrary draft model."""
    pair = pair.built_as(capabilities.architecture)
    prompt = random_prompt(vocabulary(pair), seed)
    for rule in _rules(capabilities):
        sampled = {setting.label: setting for setting in (*SETTINGS, contrary(SETTINGS[0], capabilities))}
        for setting in (Setting("T0", GREEDY),) if rule == "greedy" else sampled.values():
            if setting.runnable(capabilities):
                yield law_case(NAME, pair, rule, NUM_DRAFT_TOKENS, setting, prompt, TOKENS)


def judge(engine: Engine, cases: Sequence[Case], seed: int, turns: int) -> CheckResult:
    """Compare acceptance with its closed form, and repeat on fresh seeds what looks wrong; twice wrong is reported."""

    def gather(case: Case, repetition: int) -> Iterator[Evidence]:
        return rate_evidence(engine, case, seeds(seed, case.id, repetition, turns))

    found = gather_all(NAME, cases, gather)
    note = _note(found.evidence, engine.capabilities.lossy)
    if engine.capabilities.lossy:
        return CheckResult.measured(len(cases), found.errors, note)
    return CheckResult.judged(len(cases), [*found.errors, *confirm(NAME, found.evidence, gather)], note)


def _rules(capabilities: Capabilities) -> list[str]:
    greedy = ["greedy"] if "greedy" in capabilities.rules else []
    return [*greedy, *sampling_rules(capabilities)]


@dataclass(frozen=True)
class Coin:
    """One tested proposal.

    Attributes:
        position: its place in the block, from 0.
        round: the number of its round in the turn, from 0.
        accepted: what became of it.
        chances: the closed forms for it, by their source: `PAIR`, and `ENGINE` where it reports them.
    """

    position: int
    round: int
    accepted: bool
    chances: dict[str, float]


def rate_evidence(engine: Engine, case: Case, turn_seeds: Sequence[int]) -> Iterator[Evidence]:
    """Every position, all together, and their trend, against every source of closed forms that the rounds have.

    Args:
        engine: the decoder under audit.
        case: run with another prompt and seed each turn.
        turn_seeds: one per turn.

    Raises:
        Exception: whatever the engine raises.
    """
    vocab_size = oracle_of(case.target).vocab_size
    thrown = [
        coin
        for seed in turn_seeds
        for coin in throw(engine, replace(case, prompt=random_prompt(vocab_size, seed), seed=seed))
    ]
    for source in dict.fromkeys(source for coin in thrown for source in coin.chances):
        shown = [coin for coin in thrown if source in coin.chances]
        yield _evidence(case, ALL_POSITIONS, source, shown)
        yield _trend(case, source, shown)
        for position in range(case.num_draft_tokens):
            reached = [coin for coin in shown if coin.position == position]
            if reached:
                yield _evidence(case, f"position {position}", source, reached)


def throw(engine: Engine, case: Case) -> Iterator[Coin]:
    """Run one turn and look at its tested proposals. Raises whatever the engine raises.

    One that went against a certain outcome is left out where a near-tie lets rounding decide what is certain.
    """
    noise = LOGIT_NOISE[engine.capabilities.precision]
    session = engine.start(case)
    for _ in session:
        pass
    boundaries = session.boundaries
    if boundaries and case.draft is not None:
        history = (*case.prompt, *boundaries[-1].emitted[:-1])
        for spec in (case.target, case.draft):
            oracle_of(spec).logits(history)  # one pass, remembered for its prefixes, which the rounds ask about
    for number, (before, after) in enumerate(pairwise(boundaries)):
        if after.round is not None:
            yield from _coins(case, before, number, after.round, noise)


def _coins(case: Case, before: Boundary, number: int, done: Round, noise: float) -> Iterator[Coin]:
    """The tested proposals of a round, by its number, that began at the boundary `before`."""
    assert case.draft is not None, "the cases of this check have a draft model"
    target, draft = oracle_of(case.target), oracle_of(case.draft)
    history = [*case.prompt, *before.emitted]
    tokens = [*history, *done.drafted[: max(done.num_tested - 1, 0)]]  # before the last one that was tested
    p, q = (oracle.distributions(tokens, len(history), case.sampling)[: done.num_tested] for oracle in (target, draft))
    expected = expected_acceptances(case.rule, p, q, done.drafted)
    own = _own_sums(case.rule, done)
    for i in range(done.num_tested):
        accepted, prefix = i < done.num_accepted, tokens[: len(history) + i]
        if abs(accepted - expected[i]) > 1 - CERTAIN and any(
            oracle.alternatives(prefix, case.sampling, noise) for oracle in (target, draft)
        ):
            continue
        chances = {PAIR: expected[i]} | ({ENGINE: own[i]} if i < len(own) else {})
        yield Coin(i, number, accepted, chances)


def _own_sums(rule: str, done: Round) -> tuple[float, ...]:
    """The closed forms that the engine reports itself, for rules that have one of them."""
    if rule == "rejection":
        return done.sum_min
    return done.sum_prod if rule in ("sampler_match", "greedy") else ()


def _evidence(case: Case, place: str, source: str, coins: Sequence[Coin]) -> Evidence:
    test = coin_test([coin.accepted for coin in coins], [coin.chances[source] for coin in coins])
    certain = f"; {test.impossible} proposals went against a certain outcome" if test.impossible else ""
    finding = (
        f"acceptance, {place}, is {test.observed:.4f} of {test.trials} tested proposals, expected {test.expected:.4f} "
        f"(mean of {FORMULAS[case.rule]}, from {source}): z = {test.z:.2f}, p = {test.p_value:.2g}{certain}"
    )
    return Evidence(case, f"{place}, {source}", test, finding, ADVICE[source])


def _trend(case: Case, source: str, coins: Sequence[Coin]) -> Evidence:
    """Whether acceptance falls or rises over a turn, beyond what p and q explain: a starving drafter's falls."""
    weights = [2 * min(coin.round / TREND_ROUNDS, 1.0) - 1 for coin in coins]
    test = trend_test([coin.accepted for coin in coins], [coin.chances[source] for coin in coins], weights)
    finding = (
        f"acceptance {'falls' if test.z < 0 else 'rises'} over the rounds of a turn, against its closed form (mean of "
        f"{FORMULAS[case.rule]}, from {source}): z of the trend = {test.z:.2f}, p = {test.p_value:.2g}, over "
        f"{test.trials} tested proposals"
    )
    return Evidence(case, f"trend, {source}", test, finding, ADVICE[source])


def _note(evidence: Sequence[Evidence], lossy: bool) -> str:
    tests = {
        piece.case.id.removeprefix(f"{NAME}/"): piece.test
        for piece in evidence
        if piece.about == f"{ALL_POSITIONS}, {PAIR}" and isinstance(piece.test, CoinTest)
    }
    if not tests:
        return "no proposal was tested"
    # A deviation is reported only if it is found twice, so each time with the root of the power.
    level, power = FAMILY_LEVEL / len(evidence), math.sqrt(POWER)
    detectable = max(test.smallest_detectable_rate(level, power) for test in tests.values())
    rates = ", ".join(f"{case} {test.observed:.3f} (expected {test.expected:.3f})" for case, test in tests.items())
    sentences = [
        f"{len(evidence)} tests on {sum(test.trials for test in tests.values())} tested proposals: {rates}",
        f"an overall rate off by {detectable:.3f} would have been found with probability {POWER:g}",
    ]
    if lossy:
        sentences.append("the engine declares that it is lossy: measured, not judged")
    return "; ".join(sentences)
