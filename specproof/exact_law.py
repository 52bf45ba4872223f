"""The check `exact_law`: the law of an engine, by enumeration of its random choices, equals the target's.

Sequences are as long as a first round that accepts everything: k proposals and their bonus behind the token of
prefill. Every later round is then cut by the budget, so that every k' <= k and the plain last draw are covered too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from reference.values import SamplingParams
from specproof.engine import Capabilities, Case, Engine, ExactEngine, ExactSession
from specproof.enumeration import EnumeratedRandomness
from specproof.exact import LawResult, SequenceLaw, first_difference, law, target_law, total_variation
from specproof.exact_turns import ExtendableSession, TwoTurnCase, TwoTurns, two_turn_law
from specproof.law_cases import (
    GREEDY,
    Setting,
    case_id,
    clear_prompt,
    contrary,
    law_case,
    raised,
    random_prompt,
    sampling_rules,
    vocabulary,
    with_drafter,
)
from specproof.oracle import oracle_of
from specproof.pairs import Pair
from specproof.results import CheckResult, Violation

NAME = "exact_law"

TOLERANCE = {"float64": 1e-12, "float32": 1e-5}
"""Largest total variation that rounding explains."""

TOKENS = 4
"""Length of the sequences, unless a block needs more."""

REPLAYED_TOKENS = 2
"""Length where every outcome has to be run from the prompt."""

LARGEST_BLOCK = 3
AFFORDABLE_ROUNDS = 600
"""The largest block is enumerated over the whole vocabulary only if a block one smaller took at most so many rounds.
Engines that draw for positions behind a rejection have many times the outcomes of those that do not."""

PLAIN = Setting("T1", SamplingParams())
NARROW = Setting("T0.7-top_p0.75", SamplingParams(temperature=0.7, top_p=0.75))
"""Mostly two tokens to choose from, so that the largest block is cheap. No substitute for the whole vocabulary:
with two tokens a residual has one, and its weights do not show."""

GREEDY_SETTINGS = tuple((k, Setting("T0", GREEDY)) for k in range(1, LARGEST_BLOCK + 1))
PENALTIES = SamplingParams(repetition_penalty=1.3, presence_penalty=0.4, frequency_penalty=0.2)
STOP = Setting("stop", SamplingParams(), stop_tokens=frozenset({1}))
VARIANTS = (
    (1, Setting("bias", SamplingParams(logit_bias={0: -0.5, 2: 0.5}))),
    (2, NARROW),
    (2, STOP),
    (2, Setting("T0.7-top_k2", SamplingParams(temperature=0.7, top_k=2))),
    (2, Setting("T0.7-min_p0.3", SamplingParams(temperature=0.7, min_p=0.3))),
    (2, Setting("T0.7-penalties", replace(PENALTIES, temperature=0.7))),
    (2, Setting("window", replace(PENALTIES, penalty_window=2))),
    (2, Setting("floor", SamplingParams(), min_prob=0.5)),
    (2, Setting("lookup", SamplingParams(), drafter="prompt_lookup")),
)
"""Block size and setting of what a full check adds for every rule that samples."""

BUDGET = (LARGEST_BLOCK, 3, Setting("budget3", SamplingParams()))
"""Block size, tokens and setting: the budget ends inside the first block (in all other cases, a later one)."""

TURNS = (
    (2, 2, 2, Setting("two_turns", SamplingParams())),
    (2, 0, 3, Setting("warm_start", SamplingParams())),
)
"""Block size, tokens of the first turn, tokens of the second, setting."""
ADDED = (1,)
"""What comes between two turns."""


def observable(capabilities: Capabilities) -> bool:
    """The harness can make the engine's choices, and it knows a rule whose choices are discrete."""
    return capabilities.injectable_choices and bool(_discrete_rules(capabilities))


def check(engine: Engine, pair: Pair, seed: int, quick: bool) -> CheckResult:
    """Judge all cases that the engine can run.

    Args:
        engine: the decoder under audit.
        pair: a pair with a small vocabulary V: a round has about V ** (k + 1) outcomes or more.
        seed: draws the prompt.
        quick: fewer settings.
    """
    found = list(cases(engine.capabilities, pair, seed, quick))
    if not (found and observable(engine.capabilities) and isinstance(engine, ExactEngine)):
        return CheckResult.not_observable("the engine's random choices cannot be made by the harness")
    return judge(engine, found)


def cases(capabilities: Capabilities, pair: Pair, seed: int, quick: bool) -> Iterator[Case]:
    """Every discrete rule in every setting that the engine honours; blocks of one rule from small to large."""
    pair = pair.built_as(capabilities.architecture)
    prompt = random_prompt(vocabulary(pair), seed)
    for rule in _discrete_rules(capabilities):
        if rule == "greedy":
            for k, setting in GREEDY_SETTINGS:
                tokens = max(TOKENS, k + 2)
                yield law_case(
                    NAME, pair, rule, k, with_drafter(setting, capabilities), clear_prompt(pair, tokens), tokens
                )
            continue
        opposed = contrary(PLAIN, capabilities)  # where p and q lie far apart, residuals do not look alike by chance
        for k, setting in [*_sampled_settings(quick), *([(2, opposed)] if opposed != PLAIN else [])]:
            adapted = with_drafter(setting, capabilities)
            if adapted.runnable(capabilities):
                yield law_case(NAME, pair, rule, k, adapted, prompt, max(TOKENS, k + 2))
        k, tokens, setting = BUDGET
        yield law_case(NAME, pair, rule, k, with_drafter(setting, capabilities), prompt, tokens)
        if capabilities.resumable:
            for k, first, second, setting in TURNS[: 1 if quick else None]:
                case = law_case(NAME, pair, rule, k, with_drafter(setting, capabilities), prompt, first)
                yield TwoTurnCase(**vars(case), added=ADDED, second=second)


def judge(engine: ExactEngine, cases: Sequence[Case]) -> CheckResult:
    """Enumerate every case (at least one) that can be afforded."""
    session = _first_session(engine, cases[0])
    remarks: list[str] = []
    if (
        session is not None
        and not isinstance(session, ExtendableSession)
        and any(isinstance(case, TwoTurnCase) for case in cases)
    ):
        cases = [case for case in cases if not isinstance(case, TwoTurnCase)]
        remarks.append("the engine's exact sessions cannot be continued: no second turn was enumerated")
    if session is not None and session.copy() is None:
        cases = _replayable(cases)
    measured: dict[str, Measured] = {}
    skipped: list[Case] = []
    violations: list[Violation] = []
    for case in cases:
        if not _affordable(case, measured):
            skipped.append(case)
            continue
        try:
            measured[case.id] = measure(engine, case)
        except Exception as error:
            violations.append(raised(NAME, case, error))
    tolerance, lossy = TOLERANCE[engine.capabilities.precision], engine.capabilities.lossy
    judged = len(cases) - len(skipped)
    if lossy:
        remarks.append("the engine declares that it is lossy: measured, not judged")
    note = "; ".join([*_note(list(measured.values()), skipped, tolerance), *remarks])
    if lossy:
        return CheckResult.measured(judged, violations, note)
    wrong = [violation(found, tolerance) for found in measured.values() if found.variation > tolerance]
    return CheckResult.judged(judged, [*violations, *wrong], note)


def _replayable(cases: Sequence[Case]) -> list[Case]:
    """The cases as replay affords them: of few tokens. Larger blocks are left out where they are then the same case."""
    cut = [replace(case, max_tokens=min(case.max_tokens, REPLAYED_TOKENS)) for case in cases]
    return [
        case
        for case in cut
        if case.num_draft_tokens <= REPLAYED_TOKENS
        or not any(replace(case, id=other.id, num_draft_tokens=REPLAYED_TOKENS) == other for other in cut)
    ]


def _affordable(case: Case, measured: Mapping[str, Measured]) -> bool:
    """Whether a case over the whole vocabulary with the largest block may be run, given what the next smaller took."""
    smaller = measured.get(case_id(NAME, case.rule, LARGEST_BLOCK - 1, PLAIN))
    largest = case.id == case_id(NAME, case.rule, LARGEST_BLOCK, PLAIN)
    return not largest or smaller is None or smaller.result.rounds <= AFFORDABLE_ROUNDS


@dataclass(frozen=True)
class Measured:
    """The law of one case, and how far it is from the target's."""

    case: Case
    result: LawResult
    wanted: SequenceLaw

    @property
    def variation(self) -> float:
        """Total variation between the two."""
        return total_variation(self.result.probabilities, self.wanted)


def measure(engine: ExactEngine, case: Case) -> Measured:
    """Enumerate one case. Raises whatever the engine raises."""
    randomness = EnumeratedRandomness()
    if isinstance(case, TwoTurnCase):
        turns = law(
            lambda: TwoTurns(case, engine.start_exact(case, randomness)), randomness, case.max_tokens + case.second
        )
        return Measured(case, turns, two_turn_law(case))
    result = law(lambda: engine.start_exact(case, randomness), randomness, case.max_tokens)
    target = oracle_of(case.target)
    return Measured(case, result, target_law(target, case.prompt, case.sampling, case.max_tokens, case.stop_tokens))


def violation(measured: Measured, tolerance: float) -> Violation:
    """What to say of a law that is not the target's: by how much, and the shortest sequence that shows it."""
    found, case = measured.variation, measured.case
    worst = first_difference(measured.result.probabilities, measured.wanted, tolerance)
    assert worst is not None, "laws that differ on whole sequences differ on their longest prefixes"
    message = (
        f"total variation between the decoder's law and the target's is {found:.3g}, expected at most {tolerance:g} "
        f"(1/2 sum |decoder - target| over sequences of up to {max(map(len, measured.wanted))} tokens, "
        f"{measured.result.rounds} rounds enumerated after prompt {case.prompt}). Already those of the first "
        f"{len(worst.sequence)} tokens differ: {worst.sequence} has probability {worst.found:.6g}, the target gives "
        f"{worst.wanted:.6g}. "
        f"Check the coin, residual and bonus of rule {case.rule!r}, and that q is what the drafter draws from."
    )
    numbers = {
        "total_variation": found,
        "tolerance": tolerance,
        "rounds": measured.result.rounds,
        "probability": worst.found,
        "expected_probability": worst.wanted,
    }
    return Violation(NAME, case.id, None, message, numbers)


def _note(measured: Sequence[Measured], skipped: Sequence[Case], tolerance: float) -> list[str]:
    if not measured:
        return ["no case could be enumerated"]
    worst = max(measured, key=lambda found: found.variation)
    rounds, states = (sum(getattr(found.result, name) for found in measured) for name in ("rounds", "states"))
    sentences = [
        f"{len(measured)} laws from {rounds} rounds out of {states} states; largest total variation "
        f"{worst.variation:.2g} ({worst.case.id}), limit {tolerance:g}"
    ]
    if skipped:
        sentences.append(
            f"left out: {', '.join(case.id for case in skipped)}, as its block one smaller took more than "
            f"{AFFORDABLE_ROUNDS} rounds (the engine makes choices whose outcome it does not use)"
        )
    if any(found.result.replayed for found in measured):
        sentences.append(
            f"the engine cannot copy its state: every outcome was replayed from the prompt, sequences of "
            f"{REPLAYED_TOKENS} tokens only, so no block of more than {REPLAYED_TOKENS} proposals was emitted"
        )
    return sentences


def _discrete_rules(capabilities: Capabilities) -> list[str]:
    sampling = [rule for rule in sampling_rules(capabilities) if rule != "coupled"]
    return [*(["greedy"] if "greedy" in capabilities.rules else []), *sampling]


def _sampled_settings(quick: bool) -> list[tuple[int, Setting]]:
    """Block sizes and settings for a rule that samples."""
    smaller = [(k, PLAIN) for k in range(1, LARGEST_BLOCK)]
    if quick:
        return [*smaller, (LARGEST_BLOCK, NARROW)]
    return [*smaller, (LARGEST_BLOCK, NARROW), (LARGEST_BLOCK, PLAIN), *VARIANTS]


def _first_session(engine: ExactEngine, case: Case) -> ExactSession | None:
    """A session, to see what the engine offers. None where none can be started: running the cases will say why."""
    randomness = EnumeratedRandomness()
    try:
        for _ in randomness.walk():
            return engine.start_exact(case, randomness)
    except Exception:
        pass
    return None
