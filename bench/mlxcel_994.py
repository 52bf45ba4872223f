"""The experiment of lablup/mlxcel#994 on the trained pair: trim min(rejected + 1, k) against the right trim.

    python bench/mlxcel_994.py [--engine E] [--target DIR --draft DIR] [--prompts N] [--tokens N] [--out FILE]

Writes a page in Markdown: what that issue claims, each with the numbers measured here, and the acceptance rules side by
side. k = 4; `greedy`, `sampler_match` and `rejection` at temperature 0, the latter two at 0.7 (`greedy` does not keep
p there, and is refused). Every prompt is decoded with two seeds at 0.7.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from timing import machine  # first: it loads the BLAS that the environment names

from reference.values import SamplingParams
from specproof.measuring.command import compared, default_engine, prompts_of, subjects_of
from specproof.measuring.figures import CONFIDENCE, Position, figures, recoveries
from specproof.measuring.report import Column, Measurement, to_text
from specproof.measuring.turns import Plan, measure
from specproof.pairs import Pair, trained

K = 4
RULES = {0.0: ["greedy", "sampler_match", "rejection"], 0.7: ["sampler_match", "rejection"]}
ALL_RULES = ["sampler_match", "coupled", "rejection", "block"]
CLAIMS = (
    "1. The drafter falls behind round by round, never recovers, and acceptance by position drops (there to 0.12-0.46; "
    "such a pair gives 0.6-0.8)",
    "2. At temperature 0 the text stays that of greedy decoding without a drafter, while the proposals change",
    "3. Two 200-token runs with different seeds give closed forms far apart before (there 0.221 and 0.396), and close "
    "together after",
)
AFTER_FULL = {"reference": "The oracle's D01 trims a row after a full acceptance, too."}
"""What an engine's mutation does otherwise than the issue's engine."""
ENOUGH = 20
"""Positions that were reached less often, before or after, say nothing."""


def measured(plan: Plan, engine: str, rules: Sequence[str], defect: str | None) -> Measurement:
    """All rules on the engine, with a defect beside the right one."""
    subjects = subjects_of(engine, defect, rules)
    turns = measure(subjects, plan, lambda doing: print(doing, flush=True))
    return compared(plan, [Column(s, turns[s.label], figures(turns[s.label], K)) for s in subjects])


@dataclass(frozen=True)
class Setting:
    """The defect and the right engine, under one rule, or under several that gave the very same rounds."""

    temperature: float
    rules: tuple[str, ...]
    before: Column
    after: Column

    @property
    def name(self) -> str:
        """In a line."""
        alike = " (the same rounds)" if len(self.rules) > 1 else ""
        return f"temperature {self.temperature:g}, {', '.join(f'`{rule}`' for rule in self.rules)}{alike}"


def settings_of(measurement: Measurement) -> list[Setting]:
    """Rule by rule. Rules that gave the same rounds are one setting: no more was measured by having several."""
    found: dict[object, list[tuple[Column, Column]]] = {}
    columns = list(measurement.columns)
    for before, after in zip(columns[::2], columns[1::2], strict=True):
        rounds = tuple(
            (done.drafted, done.emitted) for c in (before, after) for turn in c.turns for done in turn.rounds
        )
        found.setdefault(rounds, []).append((before, after))
    temperature = measurement.plan.sampling.temperature
    return [
        Setting(temperature, tuple(before.subject.rule for before, _ in alike), *alike[0]) for alike in found.values()
    ]


def first_claim(measurements: Sequence[Measurement]) -> list[str]:
    """The drafter falls behind and never recovers; acceptance drops at every position that is reached often enough."""
    lines, behind, drops = [], [], []
    for setting in (setting for measurement in measurements for setting in settings_of(measurement)):
        old, new = setting.before.figures, setting.after.figures
        places = [
            (place, before, after)
            for place, (before, after) in enumerate(zip(old.positions, new.positions, strict=True))
            if min(before.reached, after.reached) >= ENOUGH
        ]
        told = ", ".join(f"{place}: {of_place(before, after)}" for place, before, after in places)
        lines.append(
            f"- {setting.name}: up to {max(old.lag):.0f} rows behind (right trim: {max(new.lag):.0f}), "
            f"{recoveries(setting.before.turns)} rounds caught up; acceptance by position, before / after: "
            f"{told or 'reached too seldom'}; tokens/s {old.tokens_per_second:.1f} / "
            f"{new.tokens_per_second:.1f}"
        )
        behind.append(max(old.lag) > max(new.lag) and recoveries(setting.before.turns) == 0)
        drops += [change(before, after) < 0 for _, before, after in places]
    return [
        f"It falls behind and never recovers: {verdict(behind, 'settings')} Acceptance drops at every position by more "
        f"than the intervals of {CONFIDENCE:.0%} leave open: {verdict(drops, 'positions')}",
        *lines,
    ]


def of_place(before: Position, after: Position) -> str:
    """Both rates, and whether their intervals part."""
    word = {-1: " (drops)", 0: "", 1: " (rises)"}[change(before, after)]
    return f"{before.rate:.2f} / {after.rate:.2f}{word}"


def change(before: Position, after: Position) -> int:
    """From after to before: -1 where the intervals part and it is lower, 1 where it is higher, 0 where they meet."""
    old, new = before.ci, after.ci
    if old is None or new is None:
        return 0
    return -1 if old[1] < new[0] else 1 if old[0] > new[1] else 0


def second_claim(measurement: Measurement) -> list[str]:
    """At temperature 0 the text stays that of decoding without a drafter, and the proposals change."""
    lines, holds = [], []
    for setting in settings_of(measurement):
        changed = measurement.proposals[setting.rules[0]]
        (old, _), (new, turns) = setting.before.figures.as_plain, setting.after.figures.as_plain
        lines.append(
            f"- {setting.name}: the text is that of plain greedy decoding in {old} of {turns} turns before "
            f"and {new} of {turns} after; of {changed.compared} rounds at the same place of the same text, "
            f"{changed.different} proposed other tokens"
        )
        holds.append(old == new == turns and changed.different > 0)
    return [f"It does: {verdict(holds, 'settings')}", *lines]


def third_claim(measurement: Measurement) -> list[str]:
    """Two runs with different seeds give closed forms far apart before, close together after."""
    lines, holds = [], []
    for setting in settings_of(measurement):
        columns = (setting.before, setting.after)
        apart = [distances(column) for column in columns]
        spread = [statistics.stdev(column.closed_forms) for column in columns]
        told = ["; ".join(f"{a:.3f} and {b:.3f}" for a, b in pairs_of(column)) for column in columns]
        lines += [
            f"- {setting.name}: two seeds after the same prompt are {statistics.mean(apart[0]):.3f} apart "
            f"before (at most {max(apart[0]):.3f}), {statistics.mean(apart[1]):.3f} after (at most "
            f"{max(apart[1]):.3f}); standard deviation over all turns {spread[0]:.3f} and {spread[1]:.3f}",
            f"  - before: {told[0]}",
            f"  - after: {told[1]}",
        ]
        holds.append(statistics.mean(apart[0]) > 2 * statistics.mean(apart[1]))
    return [f"By the mean distance being more than halved: {verdict(holds, 'settings')}", *lines]


def pairs_of(column: Column) -> list[tuple[float, float]]:
    """The closed forms (sum of minima) of the two turns after each prompt."""
    return list(zip(column.closed_forms[::2], column.closed_forms[1::2], strict=True))


def distances(column: Column) -> list[float]:
    """Between the two of each prompt."""
    return [abs(a - b) for a, b in pairs_of(column)]


def verdict(holds: Sequence[bool], of_what: str) -> str:
    """Whether a claim is confirmed."""
    word = "confirmed" if all(holds) else "not confirmed" if not any(holds) else "confirmed in part"
    return f"**{word}**, {sum(holds)} of {len(holds)} {of_what}."


def page(greedy: Measurement, sampled: Measurement, rules: Measurement, command: str) -> str:
    """The whole page."""
    bodies = (first_claim([greedy, sampled]), second_claim(greedy), third_claim(sampled))
    version = greedy.columns[-1].subject.engine.version
    lines = [
        "# The experiment of lablup/mlxcel#994, repeated",
        "",
        "[That issue](https://github.com/lablup/mlxcel/issues/994) reports a drafter whose cache is trimmed by "
        "min(rejected + 1, k) rows after a rejection, where rejected - 1 is right. Written by",
        "",
        f"```\n{command}\n```",
        "",
        f"{greedy.columns[-1].subject.engine.name} {version} on {machine()}. Turns before and after alternate. "
        + AFTER_FULL.get(
            greedy.columns[-1].subject.engine.name, "As there, a round without a rejection trims nothing."
        ),
    ]
    for title, body in zip(CLAIMS, bodies, strict=True):
        lines += ["", f"## {title}", "", body[0], "", *body[1:]]
    for title, measurement in (("All figures at temperature 0", greedy), ("All figures at temperature 0.7", sampled),
                               ("Acceptance rules compared", rules)):  # fmt: skip
        lines += ["", f"## {title}", "", "```text", to_text(measurement), "```"]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", default=default_engine())
    parser.add_argument("--target", type=Path)
    parser.add_argument("--draft", type=Path)
    parser.add_argument("--prompts", type=int, default=4, metavar="N", help="of those that are measured by default")
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--out", type=Path, default=Path("docs/mlxcel-994.md"))
    given = parser.parse_args()
    pair = Pair(given.target, given.draft) if given.target and given.draft else trained()
    prompts = prompts_of(None, pair)[: given.prompts]
    greedy, sampled = (
        measured(
            Plan(pair, SamplingParams(temperature=t), K, given.tokens, prompts, (0, 1)), given.engine, rules, "D01"
        )
        for t, rules in RULES.items()
    )
    rules = measured(sampled.plan, given.engine, ALL_RULES, None)
    command = f"python bench/mlxcel_994.py --engine {given.engine} --prompts {given.prompts} --tokens {given.tokens}"
    given.out.write_text(page(greedy, sampled, rules, command), encoding="utf-8")


if __name__ == "__main__":
    main()
