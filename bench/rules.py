"""Acceptance rules on the trained pair, side by side: what they accept, how fast they are, and their order.

    SPECPROOF_BLAS=openblas python bench/rules.py [--prompts N] [--tokens N]

Writes bench/results/rules.md. Theory: sampler_match <= coupled <= rejection at every position, rejection <= block for
every block. The closed forms are compared on the very distributions of the pair, and the rules on what they accepted.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence

from timing import RESULTS, machine  # first: it loads the BLAS that the environment names

from reference.values import SamplingParams
from specproof.held_out import held_out_prompts
from specproof.measuring.command import compared, subjects_of
from specproof.measuring.figures import figures
from specproof.measuring.ordering import ORDER, Comparison, Step
from specproof.measuring.report import THEORY_OF, Column, Measurement
from specproof.measuring.turns import Plan, measure
from specproof.pairs import trained
from specproof.statistics import FAMILY_LEVEL

TEMPERATURES = (0.7, 1.0)
K = 4
PROMPT_TOKENS = 128


def measured(temperature: float, prompts: Sequence[Sequence[int]], tokens: int) -> Measurement:
    """All rules at one temperature, turn by turn in alternation."""
    subjects = subjects_of("mlx_impl", None, ORDER)
    plan = Plan(trained(), SamplingParams(temperature=temperature), K, tokens, tuple(map(tuple, prompts)), seeds=(0,))
    turns = measure(subjects, plan, lambda doing: print(doing, flush=True))
    return compared(plan, [Column(s, turns[s.label], figures(turns[s.label], K)) for s in subjects])


def table(measurement: Measurement) -> Iterator[str]:
    """A line for each rule."""
    yield "| rule | accepted of tested [95%] | accepted a round | tokens a round | tokens/s |"
    yield "|---|---|---|---|---|"
    for column in measurement.columns:
        found = column.figures
        low, high = found.tested.ci or (0.0, 1.0)
        tokens = found.tokens_per_round or 1.0
        yield (
            f"| `{column.subject.rule}` | {found.tested.rate:.3f} [{low:.3f}, {high:.3f}] | {tokens - 1:.3f} | "
            f"{tokens:.2f} | {found.tokens_per_second:.1f} |"
        )


def theory(comparison: Comparison, places: str) -> str:
    """What the closed forms say."""
    order = " <= ".join(f"`{rule}` {mean:.3f}" for rule, mean in comparison.means.items())
    holds = "holds at each of them" if comparison.violations == 0 else f"is VIOLATED at {comparison.violations} of them"
    return f"- Closed forms on the same {comparison.places} {places}: {order}; {holds}."


def measured_step(step: Step) -> str:
    """What was measured of two neighbours in the order."""
    p = "-" if step.p_value is None else f"{step.p_value:.2g}"
    return (
        f"- Measured, accepted a round: `{step.more}` less `{step.less}` is {step.difference:+.3f}, the mean over the "
        f"prompts (paired t-test, p = {p}): {step.verdict}."
    )


def page(measurements: Sequence[Measurement], command: str) -> str:
    """Tables and sentences."""
    plan = measurements[0].plan
    lines = [
        "# Acceptance rules on the trained pair", "", f"`{command}`: {machine()}.", "",
        f"k = {K}, {len(plan.prompts)} held-out prompts of {PROMPT_TOKENS} tokens, {plan.max_tokens} tokens after "
        "each. Tokens/s are the median of the turns, which alternate. `block` decides blocks jointly: of it, accepted "
        "a round is what compares; `coupled` drafts by its own noise. The measured differences at a temperature are "
        f"judged together (Holm, level {FAMILY_LEVEL:g}).",
    ]  # fmt: skip
    for measurement in measurements:
        lines += ["", f"## Temperature {measurement.plan.sampling.temperature:g}", "", *table(measurement), ""]
        lines += [theory(found, places) for found, places in zip(measurement.theory, THEORY_OF, strict=True)]
        lines += [measured_step(step) for step in measurement.order]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=12)
    parser.add_argument("--tokens", type=int, default=120)
    given = parser.parse_args()
    prompts = held_out_prompts(given.prompts, PROMPT_TOKENS, seed=6)
    command = f"python bench/rules.py --prompts {given.prompts} --tokens {given.tokens}"
    text = page([measured(temperature, prompts, given.tokens) for temperature in TEMPERATURES], command)
    print(text)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "rules.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
