"""How fast the harness is: rounds enumerated, samples drawn, and recorded rounds judged, each per second and engine.

    python bench/harness.py [--repeats N] [--seconds S]

Writes bench/results/harness.md. Every figure is the median of some repetitions, with the lowest and the highest; the
engines alternate. Cases repeat, so what is remembered between them (forwards of toys on MLX, the oracle's passes) is
looked up, as in a long audit: this is the speed of the harness and of the engines' loops, not of models.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import cycle, islice

from timing import RESULTS, machine  # first: it loads the BLAS that the environment names

from specproof import exact_law, output_distribution
from specproof.audit import Settings
from specproof.engine import Case, Engine, ExactEngine
from specproof.enumeration import EnumeratedRandomness
from specproof.exact import law
from specproof.exact_law import PLAIN, REPLAYED_TOKENS, TOKENS
from specproof.invariants import RUN_INVARIANTS
from specproof.invariants.base import look
from specproof.law_cases import law_case, random_prompt, vocabulary
from specproof.pairs import tiny
from specproof.registry import installed_engines
from specproof.runner import Run, run_case

Work = Callable[[], int]
"""Does a piece of work, and says how many things it was."""
ENUMERATED_K = 2
SAMPLES = 100
CASES = 24
"""Of the quick audit, spread evenly."""


def enumerating(engine: Engine) -> Work | None:
    """Exact enumeration of `rejection` on the tiny pair; None where the engine's choices cannot be made for it."""
    if not (isinstance(engine, ExactEngine) and exact_law.observable(engine.capabilities)):
        return None
    case = _tiny_case(engine)
    randomness = EnumeratedRandomness()
    if any(engine.start_exact(case, randomness).copy() is None for _ in islice(randomness.walk(), 1)):
        case = replace(case, max_tokens=REPLAYED_TOKENS)  # every outcome is run from the prompt

    def work() -> int:
        randomness = EnumeratedRandomness()
        return law(lambda: engine.start_exact(case, randomness), randomness, case.max_tokens).rounds

    return work


def sampling(engine: Engine) -> Work | None:
    """Sequences for the distribution test, as `output_distribution` draws them."""
    case = _tiny_case(engine)
    begin = iter(range(0, 2**31, SAMPLES))

    def work() -> int:
        first = next(begin)
        return output_distribution.draw(engine, case, range(first, first + SAMPLES)).samples

    return work


def recording(engine: Engine) -> Work | None:
    """Turns of the audit, run with everything noted that the engine shows; None where it shows no rounds."""
    if not engine.capabilities.rounds:
        return None
    cases = cycle(_audit_cases(engine))
    return lambda: sum(_rounds(run_case(engine, case)) for case in islice(cases, CASES))


def judging(engine: Engine) -> Work | None:
    """Recorded rounds, judged by all invariants of single runs; None where the engine shows no rounds."""
    if not engine.capabilities.rounds:
        return None
    runs = [run_case(engine, case) for case in _audit_cases(engine)]

    def work() -> int:
        for run in runs:
            unseen = replace(run)  # without what it remembers from being looked at before
            for invariant in RUN_INVARIANTS.values():
                look(invariant, unseen)
        return sum(map(_rounds, runs))

    return work


def _tiny_case(engine: Engine) -> Case:
    rule = "rejection" if "rejection" in engine.capabilities.rules else "sampler_match"
    prompt = random_prompt(vocabulary(tiny()), 0)
    return law_case("bench", tiny(), rule, ENUMERATED_K, PLAIN, prompt, TOKENS)


def _audit_cases(engine: Engine) -> list[Case]:
    every = Settings(quick=True).cases(engine)
    return every[:: max(len(every) // CASES, 1)][:CASES]


def _rounds(run: Run) -> int:
    return sum(boundary.round is not None for boundary in run.boundaries)


KINDS: Mapping[str, Callable[[Engine], Work | None]] = {
    "exact enumeration, rounds": enumerating,
    "distribution test, samples": sampling,
    "traces recorded, rounds": recording,
    "traces judged, rounds": judging,
}


def rate(work: Work, seconds: float) -> float:
    """Things per second, over at least so many seconds."""
    count, start = 0, time.perf_counter()
    while (passed := time.perf_counter() - start) < seconds or count == 0:
        count += work()
    return count / passed


def table(repeats: int, seconds: float) -> Iterator[str]:
    """A line for each kind and engine."""
    yield from ("| what | engine | per second: median (lowest to highest) |", "|---|---|---|")
    engines, _ = installed_engines()
    for kind, make in KINDS.items():
        works = {name: work for name, engine in engines.items() if (work := make(engine)) is not None}
        for work in works.values():
            work()  # unmeasured: models are loaded, and forwards remembered, as in the midst of an audit
        rates: dict[str, list[float]] = {name: [] for name in works}
        for name in list(works) * repeats:
            rates[name].append(rate(works[name], seconds))
        for name, found in rates.items():
            print(f"{kind}, {name}: {found}", flush=True)
            yield f"| {kind} | {name} | {statistics.median(found):,.0f} ({min(found):,.0f} to {max(found):,.0f}) |"


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each repetition, at least")
    given = parser.parse_args()
    lines = list(table(given.repeats, given.seconds))
    text = "\n".join([
        "# Speed of the harness", "",
        f"`python bench/harness.py --repeats {given.repeats} --seconds {given.seconds:g}`: {machine()}.", "",
        *lines, "",
        f"Exact enumeration and the distribution test: `rejection` (mlx_lm: `sampler_match`), k = {ENUMERATED_K}, "
        f"{TOKENS} tokens (in mlx_lm's enumeration, which replays every outcome, {REPLAYED_TOKENS}), on the pair of "
        "vocabulary 3; MLX's forwards of it are remembered between cases, as in an audit. Traces: what an audit notes "
        f"of {CASES} of its quick cases on the toy pair, all cache rows and distributions included; judged by all "
        "invariants of single runs, against the oracle.",
    ])  # fmt: skip
    print(text)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "harness.md").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
