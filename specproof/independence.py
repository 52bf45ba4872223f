"""The check `randomness`: a seed decides a turn's output, and no random number serves two choices.

Four parts. The first two look at tokens only, and at every engine that samples:

- equal seeds give equal output, also while the engine decodes other turns in between, and different seeds do not;
- a prompt-lookup drafter proposes from its own turn, so that no earlier turn shows in the output;
- where the engine's uniforms can be given to it: end points, 0 and just under 1, which sampling never hits;
- where its rounds can be seen: on a pair of constant distributions, the joint law of proposal, verdict and the token
  after it, and that of this token and the next proposal, are those of independent draws.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import cycle, pairwise, product

import numpy as np

from reference.values import Round, SamplingParams
from specproof.architectures import is_grammar
from specproof.engine import Capabilities, Case, Engine, Floats, UniformEngine
from specproof.evidence import Evidence, confirm, gather_all
from specproof.law_cases import Setting, Tokens, law_case, raised, random_prompt, sampling_rules, vocabulary
from specproof.oracle import oracle_of
from specproof.pairs import Pair
from specproof.results import CheckResult, Violation
from specproof.statistics import FAMILY_LEVEL, POWER, CellTest, chi_squared, seeds, smallest_detectable_variation
from specproof.transforms import BANNED, Constant, Disjoint

NAME = "randomness"

SAMPLED = SamplingParams()
SETTINGS = (Setting("T1", SAMPLED), Setting("lookup", SAMPLED, drafter="prompt_lookup"))
NUM_DRAFT_TOKENS = 2
TOKENS = 12
"""Long enough that two seeds hardly ever agree by chance."""

ALMOST_ONE = 1 - 2.0**-53
"""The largest float below 1."""
PATTERNS = tuple(product((0.0, ALMOST_ONE), repeat=3))
"""Uniforms to be given in turn, for ever: every choice of a round meets either end point."""
END_POINT_TOKENS = 6
END_POINT_PAIRS: Mapping[str, tuple[Disjoint | Constant, Disjoint | Constant]] = {
    # A proposal that the target never draws: a coin that accepts by `u <= 0` lets it through.
    "disjoint": (Disjoint(0), Disjoint(1)),
    # The first token is a little less probable than the drafter says and the rest is rounded to the same, so that the
    # residual of a rejection has no mass at all.
    "rounded": (Constant((-46.0, 0.0, BANNED)), Constant((-45.9, 0.0, BANNED))),
    # The first token cannot be drawn, and u = 0 must not draw it.
    "gap": (Constant((BANNED, 0.0, 0.0)), Constant((BANNED, 0.0, 0.5))),
}

P, Q = (0.375, 0.375, 0.25), (0.25, 0.25, 0.5)
"""The last token is refused half of the time, and two are left to replace it. A uniform that drew it, or that refused
it, is above a half: used again it always gives the second of the two."""
JOINT_RULES = ("rejection", "block", "sampler_match")


STUCK, MOST_SEEDS, SMALLEST = 1e-6, 64, 1e-300
"""The chance that a right engine is taken for one that ignores its seed; the most seeds that this may take; log(0)."""


@dataclass(frozen=True)
class Effort:
    """How much to run: seeds to repeat per setting, and long turns, of how many tokens, for the joint laws."""

    seeds: int
    turns: int
    turn_tokens: int


FULL = Effort(seeds=8, turns=12, turn_tokens=120)
QUICK = Effort(seeds=3, turns=3, turn_tokens=120)


def observable(capabilities: Capabilities) -> bool:
    """The engine samples."""
    return bool(sampling_rules(capabilities))


def check(engine: Engine, pair: Pair, seed: int, quick: bool) -> CheckResult:
    """Judge every rule that samples.

    Args:
        engine: the decoder under audit.
        pair: a pair with the vocabulary 3, whose logits are replaced for the last two parts.
        seed: draws the prompts, and the seeds of all turns.
        quick: fewer seeds and turns.
    """
    rules = sampling_rules(engine.capabilities)
    if not rules:
        return CheckResult.not_observable("the engine does not sample, so no random number decides its output")
    return judge(engine, pair, rules, seed, QUICK if quick else FULL)


def judge(engine: Engine, pair: Pair, rules: Sequence[str], seed: int, effort: Effort) -> CheckResult:
    """Judge these rules, all of which sample."""
    pair = pair.built_as(engine.capabilities.architecture)
    prompt = random_prompt(vocabulary(pair), seed)
    violations: list[Violation] = []
    repeated = [case for rule in rules for case in _repeated_cases(engine.capabilities, pair, rule, prompt)]
    for case in repeated:
        violations += _guarded(case, partial(repeats, engine, case, seeds(seed, case.id, 0, effort.seeds)))
    ends = list(_end_point_cases(engine, pair, rules, prompt))
    for case in ends:
        violations += _guarded(case, partial(end_points, engine, case))
    joint = list(_joint_cases(engine.capabilities, pair, rules, prompt))
    tests, found = _joint_laws(engine, joint, seed, effort)
    note = _note(len(repeated), len(ends), tests)
    return CheckResult.judged(len(repeated) + len(ends) + len(joint), [*violations, *found], note)


def _guarded(case: Case, look: Callable[[], list[Violation]]) -> list[Violation]:
    try:
        return look()
    except Exception as error:
        return [raised(NAME, case, error)]


# ------------------------------------------------------------------------------------- nothing but the seed decides


def _repeated_cases(capabilities: Capabilities, pair: Pair, rule: str, prompt: Tokens) -> Iterator[Case]:
    for setting in SETTINGS:
        if setting.runnable(capabilities):
            yield law_case(NAME, pair, rule, NUM_DRAFT_TOKENS, setting, prompt, TOKENS)


def repeats(engine: Engine, case: Case, case_seeds: Sequence[int]) -> list[Violation]:
    """Every seed alone, then again with other turns before, beside and after it."""
    alone = {seed: tuple(engine.start(replace(case, seed=seed))) for seed in case_seeds}
    for seed, first in alone.items():
        again = _disturbed(engine, replace(case, seed=seed))
        if again != first:
            message = (
                f"seed {seed} gives {first}, and {again} while the engine decodes other turns; the output must depend "
                f"on "
                "the case and its seed alone: keep generators, histories and caches in the turn"
            )
            return [Violation(NAME, case.id, None, message, {"seed": seed})]
    if len(set(alone.values())) == 1 and len(alone) > 1 and _is_stuck(engine, case, first, max(alone)):
        message = f"{len(alone)} different seeds give the same output {first}; draw from the seed of the case"
        return [Violation(NAME, case.id, None, message, {"seeds": len(alone)})]
    return []


def _is_stuck(engine: Engine, case: Case, output: Tokens, last_seed: int) -> bool:
    """Whether further seeds give this output too: so many that its probability allows that with a chance of `STUCK`."""
    distributions = oracle_of(case.target).distributions([*case.prompt, *output], len(case.prompt), case.sampling)
    log_p = sum(math.log(max(p[token], SMALLEST)) for p, token in zip(distributions, output, strict=False))
    if log_p * MOST_SEEDS > math.log(STUCK):
        return False  # nearly certain in any case: equal outputs say nothing
    further = range(last_seed + 1, last_seed + 1 + math.ceil(math.log(STUCK) / log_p))
    return all(tuple(engine.start(replace(case, seed=seed % 2**31))) == output for seed in further)


def _disturbed(engine: Engine, case: Case) -> Tokens:
    """The output of a case, another turn being run to its end in the middle of it, and a third one closed early."""
    others = replace(case, seed=case.seed + 1, prompt=case.prompt[::-1] * 2)
    session = engine.start(case)
    tokens = iter(session)
    received = [next(tokens)]
    tuple(engine.start(others))
    if engine.capabilities.early_close:
        closed = engine.start(replace(others, seed=case.seed + 2))
        next(iter(closed))
        closed.close()
    received += tokens
    return tuple(received)


# ------------------------------------------------------------------------------------------------------ end points


def _end_point_cases(engine: Engine, pair: Pair, rules: Sequence[str], prompt: Tokens) -> Iterator[Case]:
    """Every pair of distributions that is built for it; `coupled` draws by noise, not by uniforms."""
    if not (engine.capabilities.injectable_uniforms and isinstance(engine, UniformEngine)):
        return
    for rule, (label, (target, draft)) in product(rules, END_POINT_PAIRS.items()):
        if rule != "coupled":
            case = law_case(NAME, pair, rule, NUM_DRAFT_TOKENS, Setting(label, SAMPLED), prompt, END_POINT_TOKENS)
            yield _with_logits(case, target, draft)


def _with_logits(case: Case, target: Disjoint | Constant, draft: Disjoint | Constant) -> Case:
    assert case.draft is not None, "these cases have a draft model"
    return replace(case, target=replace(case.target, transform=target), draft=replace(case.draft, transform=draft))


def end_points(engine: Engine, case: Case) -> list[Violation]:
    """No token without mass comes out, whatever end point a choice meets."""
    assert isinstance(engine, UniformEngine), "only such engines have these cases"
    target = oracle_of(case.target)
    for pattern in PATTERNS:
        uniforms = cycle(pattern)
        try:
            emitted = tuple(engine.start_uniform(case, uniforms.__next__))
        except Exception as error:
            return [_end_point_violation(case, pattern, f"the engine raised {type(error).__name__}: {error}")]
        for index, token in enumerate(emitted):
            p = target.distribution((*case.prompt, *emitted[:index]), case.sampling)
            if not (0 <= token < len(p) and p[token] > 0):
                return [_end_point_violation(case, pattern, f"token {index} of {emitted} has no mass under the target")]
    return []


def _end_point_violation(case: Case, pattern: Sequence[float], problem: str) -> Violation:
    given = ", ".join("0" if u == 0 else "1 - 2^-53" for u in pattern)
    message = (
        f"with the uniforms {given}, again and again, {problem}; accept if u < ratio, never <=, draw the first token "
        f"whose "
        "cumulative mass is above u, and from p where the residual has no mass"
    )
    return Violation(NAME, case.id, None, message)


# ------------------------------------------------------------------------------------------------------ joint laws


def _joint_cases(capabilities: Capabilities, pair: Pair, rules: Sequence[str], prompt: Tokens) -> Iterator[Case]:
    shows = capabilities.rounds and capabilities.transforms and "draft_model" in capabilities.drafters
    if is_grammar(capabilities.architecture):
        return  # a mask that follows from the context leaves no pair of constant distributions
    for rule in rules if shows and not capabilities.lossy else ():
        if rule in JOINT_RULES:
            case = law_case(NAME, pair, rule, 1, Setting("joint", SAMPLED), prompt, TOKENS)
            yield _with_logits(case, Constant(tuple(np.log(P))), Constant(tuple(np.log(Q))))


def _joint_laws(
    engine: Engine, cases: Sequence[Case], seed: int, effort: Effort
) -> tuple[Sequence[Evidence], list[Violation]]:
    def gather(case: Case, repetition: int) -> Iterator[Evidence]:
        return _joint_evidence(engine, case, seeds(seed, case.id, repetition, effort.turns), effort.turn_tokens)

    found = gather_all(NAME, cases, gather)
    return found.evidence, [*found.errors, *confirm(NAME, found.evidence, gather)]


def _joint_evidence(engine: Engine, case: Case, turn_seeds: Sequence[int], tokens: int) -> Iterator[Evidence]:
    """The rounds of some long turns: each is as good as a turn of its own, as the distributions never change."""
    within: Counter[tuple[int, ...]] = Counter()
    between: Counter[tuple[int, ...]] = Counter()
    for seed in turn_seeds:
        session = engine.start(replace(case, seed=seed, max_tokens=tokens))
        for _ in session:
            pass
        rounds = [b.round for b in session.boundaries if b.round is not None and b.round.drafted]
        within.update(_outcome(done) for done in rounds)
        between.update((before.emitted[-1], after.drafted[0]) for before, after in pairwise(rounds))
    law = joint_law(case.rule, np.array(P), np.array(Q))
    last = {y: sum(mass for (_, _, z), mass in law.items() if z == y) for y in range(len(P))}
    next_law: dict[tuple[int, ...], float] = {(y, d): last[y] * Q[d] for y, d in product(range(len(P)), repeat=2)}
    yield _evidence(case, "proposal, verdict and the token after it", within, law)
    yield _evidence(case, "last token of a round and the next proposal", between, next_law)


def _outcome(done: Round) -> tuple[int, ...]:
    return done.drafted[0], done.num_accepted, done.emitted[-1]


def joint_law(rule: str, p: Floats, q: Floats) -> dict[tuple[int, ...], float]:
    """The law of (proposal, accepted, token after it) in a round of one proposal whose p and q [V] never change.

    Args:
        rule: `rejection`, `block` (the same for one proposal) or `sampler_match`.
        p: of the target, at both places.
        q: of the drafter.
    """
    excess = np.maximum(p - q, 0)
    law: dict[tuple[int, ...], float] = {}
    for d, y in product(range(len(p)), repeat=2):
        if rule == "sampler_match":
            accepted, refused = p[d], p[y] * (y != d)
        else:
            accepted = min(p[d] / q[d], 1.0)
            refused = (1 - accepted) * excess[y] / excess.sum()
        law[d, 1, y] = float(q[d] * accepted * p[y])
        law[d, 0, y] = float(q[d] * refused)
    return {outcome: mass for outcome, mass in law.items() if mass > 0}


def _evidence(
    case: Case, about: str, counts: Mapping[tuple[int, ...], int], law: Mapping[tuple[int, ...], float]
) -> Evidence:
    test = chi_squared(counts, law)
    worst = max(law, key=lambda o: (counts.get(o, 0) - test.samples * law[o]) ** 2 / law[o])
    finding = (
        f"chi-squared of {test.samples} rounds for the joint law of {about} is {test.statistic:.1f} with "
        f"{test.degrees} "
        f"degrees of freedom, p = {test.p_value:.2g}; {worst} was seen {counts.get(worst, 0)} times, expected "
        f"{test.samples * law[worst]:.1f}"
    )
    advice = (
        "Make every choice with a random number of its own: the proposal, the coin, and the token that replaces it."
    )
    return Evidence(case, about, test, finding, advice)


def _note(repeated: int, ends: int, tests: Sequence[Evidence]) -> str:
    sentences = [f"{repeated} settings repeated; end points given in {ends} settings" if ends else
                 f"{repeated} settings repeated; the engine's uniforms cannot be given to it"]  # fmt: skip
    whole = [piece.test for piece in tests if isinstance(piece.test, CellTest)]
    if whole:
        level, power = FAMILY_LEVEL / len(whole), math.sqrt(POWER)
        largest = max(smallest_detectable_variation(test.samples, test.degrees, level, power) for test in whole)
        sentences.append(
            f"{len(whole)} joint laws of {sum(test.samples for test in whole)} rounds, smallest p-value "
            f"{min(test.p_value for test in whole):.2g}; a total variation of {largest:.2f} would have been found with "
            f"probability {POWER:g}"
        )
    else:
        sentences.append("no joint law, as rounds of known distributions cannot be seen")
    return "; ".join(sentences)
