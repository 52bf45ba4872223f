"""The check `output_distribution`: what the engine draws with its own generator follows the target's exact law.

`exact_law` replaces the generator; this check leaves it in place, and so sees reused keys, coins that decide twice
and draws that are correlated. Two kinds of test share one family-wise level: chi-squared over whole short sequences,
which sees every kind of deviation, and the frequencies of tokens in long turns (`token_frequency`), which see fewer
kinds and smaller sizes. For `coupled`, whose noise cannot be enumerated, an equality joins them: with one seed the
output is the same for every k.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from reference.values import SamplingParams
from specproof.engine import Capabilities, Case, Engine
from specproof.evidence import Evidence, confirm, gather_all
from specproof.exact import SequenceLaw, target_law
from specproof.law_cases import (
    Setting,
    Tokens,
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
from specproof.statistics import (
    FAMILY_LEVEL,
    POWER,
    CellTest,
    CoinTest,
    chi_squared,
    g_test,
    seeds,
    smallest_detectable_variation,
)
from specproof.token_frequency import token_evidence

NAME = "output_distribution"

SETTINGS = (
    Setting("T1", SamplingParams()),
    Setting("T0.7", SamplingParams(temperature=0.7)),
    Setting("T1-top_p0.75", SamplingParams(top_p=0.75)),
)
"""All with a contrary draft model, where wrong rules show best, and the first also with the pair as it is, where a
wrong q does."""
NUM_DRAFT_TOKENS = 2
TOKENS = 4
"""Prefill's token, and a whole block with its bonus."""


@dataclass(frozen=True)
class Effort:
    """How much to draw: short sequences and long turns per setting, and seeds for the equality of `coupled`."""

    samples: int
    turns: int
    coupled_seeds: int


FULL = Effort(samples=1000, turns=30, coupled_seeds=40)
QUICK = Effort(samples=400, turns=12, coupled_seeds=10)
"""Enough for every lossy rule that the tests know to be found: fewer samples are no evidence."""

COUPLED_BLOCKS = (0, 1, 2, 3)
COUPLED_TOKENS = 12


def observable(capabilities: Capabilities) -> bool:
    """The engine samples: tokens are all that is looked at."""
    return bool(sampling_rules(capabilities))


def check(engine: Engine, pair: Pair, seed: int, quick: bool) -> CheckResult:
    """Judge all cases that the engine can run, with the effort of a full or a quick audit.

    Args:
        engine: the decoder under audit.
        pair: a pair with a small vocabulary, or the cells of the test are too many.
        seed: draws the prompts, and the seeds of all samples.
        quick: fewer samples.
    """
    found = list(cases(engine.capabilities, pair, seed, quick))
    if not found:
        return CheckResult.not_observable("the engine does not sample, so its output has no distribution")
    return judge(engine, found, seed, QUICK if quick else FULL)


def cases(capabilities: Capabilities, pair: Pair, seed: int, quick: bool) -> Iterator[Case]:
    """Every rule that samples in every setting that the engine honours; quick: all settings for one rule only.

    That rule is `rejection` where the engine has it: it makes the most decisions that can go wrong.
    """
    pair = pair.built_as(capabilities.architecture)
    prompt = random_prompt(vocabulary(pair), seed)
    rules = sampling_rules(capabilities)
    most = "rejection" if "rejection" in rules else rules[0] if rules else ""
    for rule in rules:
        plain = [with_drafter(setting, capabilities) for setting in SETTINGS]
        every = [*(contrary(setting, capabilities) for setting in plain), plain[0]]
        runnable = {setting.label: setting for setting in every if setting.runnable(capabilities)}
        for setting in list(runnable.values())[: None if rule == most or not quick else 1]:
            yield law_case(NAME, pair, rule, NUM_DRAFT_TOKENS, setting, prompt, TOKENS)


def judge(engine: Engine, cases: Sequence[Case], seed: int, effort: Effort) -> CheckResult:
    """Draw every case, and repeat on fresh seeds those that look biased; what looks biased twice is reported."""

    def gather(case: Case, repetition: int) -> Iterator[Evidence]:
        yield from sequence_evidence(draw(engine, case, seeds(seed, case.id, repetition, effort.samples)))
        yield from token_evidence(engine, case, seeds(seed, f"{case.id}/turns", repetition, effort.turns))

    found = gather_all(NAME, cases, gather)
    note = _note(found.evidence, len(cases), engine.capabilities.lossy)
    if engine.capabilities.lossy:
        return CheckResult.measured(len(cases), found.errors, note)
    violations = [*found.errors, *confirm(NAME, found.evidence, gather)]
    coupled = [case for case in cases if case.rule == "coupled"][:1]
    for case in coupled:
        violations += _block_size_matters(engine, case, seeds(seed, f"{case.id}/equal", 0, effort.coupled_seeds))
    return CheckResult.judged(len(cases) + len(coupled), violations, note)


@dataclass(frozen=True)
class Drawn:
    """The sequences drawn in one case, and the law that they should have."""

    case: Case
    counts: Mapping[Tokens, int]
    wanted: SequenceLaw

    @property
    def samples(self) -> int:
        """How many sequences."""
        return sum(self.counts.values())

    @property
    def variation(self) -> float:
        """Total variation between the observed frequencies and the target's law; chance alone makes it positive."""
        outcomes = self.counts.keys() | self.wanted.keys()
        return sum(abs(self.counts.get(seq, 0) / self.samples - self.wanted.get(seq, 0.0)) for seq in outcomes) / 2

    @property
    def variation_by_chance(self) -> float:
        """What `variation` is about for a right engine: half the sum of the means of |N(0, p (1 - p) / n)|."""
        return sum(math.sqrt(2 * p * (1 - p) / (math.pi * self.samples)) for p in self.wanted.values()) / 2

    @property
    def witness(self) -> str:
        """The sequence that speaks most against the law."""
        if foreign := sorted(self.counts.keys() - self.wanted.keys()):
            return f"{foreign[0]} was drawn {self.counts[foreign[0]]} times and has probability 0 under the target"
        expected = {seq: self.samples * mass for seq, mass in self.wanted.items()}
        worst = max(expected, key=lambda seq: (self.counts.get(seq, 0) - expected[seq]) ** 2 / expected[seq])
        return f"{worst} was drawn {self.counts.get(worst, 0)} times, expected {expected[worst]:.1f}"


def draw(engine: Engine, case: Case, sample_seeds: Sequence[int]) -> Drawn:
    """Run `case` once per seed, on the engine's own random numbers. Raises whatever the engine raises."""
    counts = Counter(tuple(int(token) for token in engine.start(replace(case, seed=seed))) for seed in sample_seeds)
    wanted = target_law(oracle_of(case.target), case.prompt, case.sampling, case.max_tokens, case.stop_tokens)
    return Drawn(case, counts, wanted)


def sequence_evidence(drawn: Drawn) -> Iterator[Evidence]:
    """The two tests of whole sequences: each sees best what the other weighs least."""
    yield _sequence_evidence(drawn, "chi-squared", chi_squared(drawn.counts, drawn.wanted))
    yield _sequence_evidence(drawn, "G", g_test(drawn.counts, drawn.wanted))


def _sequence_evidence(drawn: Drawn, name: str, test: CellTest) -> Evidence:
    finding = (
        f"{name} of {test.samples} sequences of {drawn.case.max_tokens} tokens against the target's exact law is "
        f"{test.statistic:.1f} with {test.degrees} degrees of freedom, p = {test.p_value:.2g}; observed total "
        f"variation {drawn.variation:.2g}, chance gives about {drawn.variation_by_chance:.2g}; {drawn.witness}"
    )
    advice = (
        "If exact_law holds, look at the generator: reused keys, a coin that decides twice, the draft's noise in the "
        "correction. If it fails too, look at the rule."
    )
    return Evidence(drawn.case, f"sequences, {name}", test, finding, advice)


def _block_size_matters(engine: Engine, case: Case, sample_seeds: Sequence[int]) -> list[Violation]:
    """With coupled draws the output is a function of the seed and the target: the same with and without a drafter."""
    for seed in sample_seeds:
        runs = {k: replace(case, seed=seed, num_draft_tokens=k, max_tokens=COUPLED_TOKENS) for k in COUPLED_BLOCKS}
        try:
            outputs = {k: tuple(engine.start(run)) for k, run in runs.items()}
        except Exception as error:
            return [raised(NAME, case, error)]
        for k, output in outputs.items():
            if output != outputs[0]:
                message = (
                    f"seed {seed} gives {output} with k = {k}, but {outputs[0]} without a drafter; coupled draws "
                    "depend on the seed and the target alone: key their noise by the absolute position of the token"
                )
                return [Violation(NAME, case.id, None, message, {"seed": seed, "num_draft_tokens": k})]
    return []


def _note(evidence: Sequence[Evidence], num_cases: int, lossy: bool) -> str:
    if not evidence:
        return "no setting could be drawn"
    # A bias is reported only if it is found twice, so each time with the root of the power.
    level, power = FAMILY_LEVEL / len(evidence), math.sqrt(POWER)
    whole = [piece.test for piece in evidence if isinstance(piece.test, CellTest)]
    single = [piece.test for piece in evidence if isinstance(piece.test, CoinTest)]
    detectable = [smallest_detectable_variation(test.samples, test.degrees, level, power) for test in whole]
    rates = [test.smallest_detectable_rate(level, power) for test in single]
    least = min(evidence, key=lambda piece: piece.test.p_value)
    sentences = [
        f"{num_cases} settings, {len(evidence)} tests, smallest p-value {least.test.p_value:.2g} ({least.case.id}, "
        f"{least.about}); with probability {POWER:g} a total variation of {min(detectable):.2f} to "
        f"{max(detectable):.2f} between sequences would have been found (rare ones, up to "
        f"{max(test.pooled_mass for test in whole):.2g} of the mass, were pooled), and one of "
        f"{min(rates):.3f} to {max(rates):.3f} in how often a kind of token is emitted"
    ]
    if lossy:
        sentences.append(f"the engine declares that it is lossy: measured, not judged ({least.finding})")
    return "; ".join(sentences)
