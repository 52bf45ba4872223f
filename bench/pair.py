"""Speed on the trained pair: plain decoding, mlx-lm's two loops and ours with k = 1 .. 8 and adaptive, in one process.

    SPECPROOF_BLAS=openblas python bench/pair.py [--prompts N] [--tokens N]

Writes tables to bench/results/pair.md and a picture beside it. All ways run in turn after every held-out prompt, at
temperatures 0, 0.7 and 1; prefill is not timed. Takes some six minutes on two idle cores.
"""

# ruff: noqa: I001
from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from timing import RESULTS, machine  # first: it loads the BLAS that the environment names

from memory_roof import bandwidth, weight_bytes
from pair_costs import Costs, Meter
from pair_picture import Curve, draw
from pair_ways import MOST, Decoded, Job, Way, load, ways
from specproof.held_out import held_out_prompts
from specproof.measuring.figures import predicted_speed_up
from specproof.pairs import trained

TEMPERATURES = (0.0, 0.7, 1.0)
PROMPT_TOKENS = 128
SAMPLES = 3
"""Of the bare forwards, at each temperature of each prompt."""
WANTED = 1.5
"""Times plain decoding, at the best k, above temperature 0."""
NEAR = 0.9
"""Of the prediction."""


@dataclass(frozen=True)
class Sweep:
    """One temperature: what every way did after each prompt, in the same order."""

    temperature: float
    turns: Mapping[str, Sequence[Decoded]]

    def ratios(self, way: str) -> list[float]:
        """Times plain decoding, prompt by prompt."""
        return [a.per_second / b.per_second for a, b in zip(self.turns[way], self.turns["plain"], strict=True)]

    def per_second(self, way: str) -> float:
        """Tokens per second over all prompts."""
        return sum(turn.tokens for turn in self.turns[way]) / sum(turn.seconds for turn in self.turns[way])

    def speed_up(self, way: str) -> float:
        """Times plain decoding, over all prompts."""
        return self.per_second(way) / self.per_second("plain")

    @property
    def best(self) -> int:
        """The fastest k."""
        return max(range(1, MOST + 1), key=lambda k: statistics.median(self.ratios(f"k = {k}")))


@dataclass(frozen=True)
class Row:
    """Our decoder with k proposals, against what its acceptance and the costs predict."""

    k: int
    rate: float
    tokens_per_round: float
    predicted: float
    achieved: float
    round_seconds: float


def sweep(every: Mapping[str, Way], prompts: Sequence[Sequence[int]], tokens: int, meter: Meter) -> list[Sweep]:
    """Run everything: after each prompt all temperatures, at each all ways, forwards and backwards by turns."""
    found: dict[float, dict[str, list[Decoded]]] = {t: {name: [] for name in every} for t in TEMPERATURES}
    for name, way in every.items():  # unmeasured: what is done the first time is done
        print(f"warm-up: {name}", flush=True)
        way(Job(prompts[0], 1.0, 8, 0))
    for index, prompt in enumerate(prompts):
        for temperature, turns in found.items():
            print(f"prompt {index + 1} of {len(prompts)}, temperature {temperature:g}", flush=True)
            for _ in range(SAMPLES):
                meter.sample()
            for name in every if index % 2 == 0 else reversed(list(every)):
                turns[name].append(every[name](Job(prompt, temperature, tokens, index)))
    return [Sweep(temperature, turns) for temperature, turns in found.items()]


def rows(swept: Sweep, costs: Costs) -> Iterator[Row]:
    """k = 1 .. MOST."""
    for k in range(1, MOST + 1):
        turns = swept.turns[f"k = {k}"]
        rounds = [done for turn in turns for done in turn.rounds]
        rate = sum(done.num_accepted for done in rounds) / sum(done.num_tested for done in rounds)
        yield Row(
            k, rate, sum(turn.tokens for turn in turns) / len(rounds), predicted_speed_up(rate, k, costs.c, costs.v(k)),
            swept.speed_up(f"k = {k}"), sum(turn.seconds for turn in turns) / len(rounds),
        )  # fmt: skip


def speed_table(swept: Sweep) -> Iterator[str]:
    """Every way against plain decoding."""
    yield from ("| way | tokens/s | times plain decoding: median (lowest to highest) |", "|---|---|---|")
    for way in swept.turns:
        ratios = swept.ratios(way)
        yield (
            f"| {way} | {swept.per_second(way):.1f} | {statistics.median(ratios):.2f} ({min(ratios):.2f} to "
            f"{max(ratios):.2f}) |"
        )


def prediction_table(swept: Sweep, costs: Costs) -> Iterator[str]:
    """Ours against the prediction, and where the time of a round goes."""
    yield "| k | acceptance | tokens a round | predicted | achieved | achieved / predicted | round | its forwards |"
    yield "|---|---|---|---|---|---|---|---|"
    for row in rows(swept, costs):
        yield (
            f"| {row.k} | {row.rate:.3f} | {row.tokens_per_round:.2f} | {row.predicted:.2f} | {row.achieved:.2f} | "
            f"{row.achieved / row.predicted:.2f} | {1000 * row.round_seconds:.2f} ms | "
            f"{1000 * costs.round_seconds(row.k):.2f} ms |"
        )


def verdicts(swept: Sweep, costs: Costs) -> Iterator[str]:
    """What was to be reached, and whether it was."""
    best = swept.best
    speed_up = statistics.median(swept.ratios(f"k = {best}"))
    row = next(row for row in rows(swept, costs) if row.k == best)
    part = row.achieved / row.predicted
    goal = f" (goal {WANTED}: {_reached(speed_up >= WANTED)})" if swept.temperature > 0 else ""
    name = f"k = {best}"
    faster = max(("plain", "mlx-lm, plain"), key=swept.per_second)
    yield (
        f"Best k (of the highest median here): {best}, {speed_up:.2f} times our plain decoding{goal}; {part:.2f} "
        f"of the prediction (goal {NEAR}: {_reached(part >= NEAR)}). By all tokens in all seconds it is "
        f"{swept.per_second(name) / swept.per_second(faster):.2f} times the faster of the two plain loops ({faster})."
    )


def _reached(is_reached: bool) -> str:
    return "reached" if is_reached else "not reached"


def cost_table(costs: Costs) -> Iterator[str]:
    """Bare forwards."""
    yield from ("| forward | ms | plain steps |", "|---|---|---|")
    yield f"| drafter, one token (c) | {1000 * costs.draft:.2f} | {costs.c:.3f} |"
    for k, seconds in enumerate(costs.passes):
        name = "target, one token" if k == 0 else f"target, {k + 1} tokens (v at k = {k})"
        yield f"| {name} | {1000 * seconds:.2f} | {costs.v(k):.3f} |"


def roof(sweeps: Sequence[Sweep], costs: Costs, read: int, speed: float) -> Iterator[str]:
    """Plain decoding against what memory allows."""
    most = speed / read
    yield (
        f"A plain step reads the target's {read / 1e6:.1f} MB of weights; this machine reads {speed / 1e9:.1f} GB/s, "
        f"so at most {most:.0f} tokens/s where they come from memory. The bare forward of one token gives "
        f"{1 / costs.passes[0] / most:.2f} of that."
    )
    yield from ("", "| temperature | plain | best k |", "|---|---|---|")
    for swept in sweeps:
        plain, best = swept.per_second("plain"), swept.per_second(f"k = {swept.best}")
        yield (
            f"| {swept.temperature:g} | {plain:.1f} tokens/s, {plain / most:.2f} of the roof | {best:.1f} tokens/s, "
            f"{best / most:.2f} |"
        )


def page(sweeps: Sequence[Sweep], costs: Costs, roof_lines: Sequence[str], command: str) -> str:
    """All tables."""
    turns = sweeps[0].turns["plain"]
    lines = [
        "# The trained pair, float32", "", f"`{command}`: {machine()}.", "",
        f"{len(turns)} held-out prompts of {PROMPT_TOKENS} tokens, {turns[0].tokens} tokens after each; decoding alone "
        "is timed, all ways by turns in one process. `k = ..`, `plain` and `adaptive` are this package's decoder "
        "(`greedy` at temperature 0, `rejection` above).",
        "", "![Speed-up over k](pair.png)",
    ]  # fmt: skip
    for swept in sweeps:
        lines += ["", f"## Temperature {swept.temperature:g}", "", *verdicts(swept, costs), "", *speed_table(swept)]
        lines += ["", *prediction_table(swept, costs)]
    lines += [
        "", "Predicted: (1 - a^(k+1)) / ((1 - a) (k c + v)) with the acceptance a of the tested proposals, and c and v "
        "of the bare forwards below. Achieved: of all tokens in all seconds. A round's time includes drawing, deciding "
        "and, after a full acceptance, one more step of the drafter.",
        "", "## Costs", "", *cost_table(costs), "", "## Memory", "", *roof_lines,
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def curves(sweeps: Sequence[Sweep], costs: Costs) -> Iterator[Curve]:
    """What the picture shows."""
    for swept in sweeps:
        ks = range(1, MOST + 1)
        others = {
            int(way.rpartition("= ")[2]): statistics.median(swept.ratios(way))
            for way in swept.turns if way.startswith("mlx-lm, k")
        }  # fmt: skip
        yield Curve(
            swept.temperature, [swept.ratios(f"k = {k}") for k in ks],
            [row.predicted for row in rows(swept, costs)], others, swept.ratios("adaptive"),
        )  # fmt: skip


def main() -> None:
    """Run the sweep; print and write the tables, and draw the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=80)
    given = parser.parse_args()
    models = load(trained())
    prompts = held_out_prompts(given.prompts, PROMPT_TOKENS, seed=4)
    context = held_out_prompts(1, PROMPT_TOKENS + given.tokens // 2, seed=5)[0]
    meter = Meter(models, context)
    sweeps = sweep(ways(models), prompts, given.tokens, meter)
    command = f"python bench/pair.py --prompts {given.prompts} --tokens {given.tokens}"
    roof_lines = list(roof(sweeps, meter.costs, weight_bytes(models.target), bandwidth()))
    text = page(sweeps, meter.costs, roof_lines, command)
    print(text)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "pair.md").write_text(text, encoding="utf-8")
    draw(list(curves(sweeps, meter.costs)), RESULTS / "pair.png")


if __name__ == "__main__":
    main()
