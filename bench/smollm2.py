"""Speed of `mlx_impl` on SmolLM2-135M-Instruct in float32, against plain decoding in the same process.

    SPECPROOF_BLAS=openblas python bench/smollm2.py        (about twenty minutes on two cores)

Prints tables, and writes them to bench/results/smollm2.md. What is timed is decoding alone: all ways begin with copies
of one state behind the prompt, whose time has a line of its own, and emit the same number of tokens. Ways take turns;
ratios are medians over these turns, with the lowest and the highest. Above temperature 0 the rule is `coupled`, by
which all ways of ours emit the very same tokens. `plain` already has its matrices by columns (`in_float32`), which
makes it faster; "plain, matrices by rows" is the same without. Without a fast BLAS speculation does not pay on a CPU:
the output says which was in use.
"""

# ruff: noqa: I001
from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from timing import RESULTS, Timed, machine, ratio  # first: it loads the BLAS that the environment names

import mlx.core as mx

import mlx_impl
from memory_roof import bandwidth, weight_bytes
from mlx_impl import Decoder, DecoderState, DeviceBlock, DraftModel, KeyedRandomness, PromptLookup
from mlx_impl.models import in_float32
from mlx_impl.sampling import point_masses
from mlx_impl.smollm2 import find
from mlx_impl.statistics import Statistics
from reference.values import SamplingParams
from smollm2_ways import (
    ADAPTIVE, ALONE, FIXED, ITSELF, MLX_LM, PLAIN, ROWS, SOME, Run, Start, Way, bare, by_rows, decoder_of, rows_of,
)  # fmt: skip

PASSAGE = (
    "The harbour was quiet before sunrise. Four boats lay at the northern pier, their nets folded and dry, and the old "
    "keeper walked past them with a lamp in his hand. He counted the ropes, wrote the number in a small green book, "
    "and went up the stairs to the tower. From there he could see the lights of the ferry, eleven miles out, and the "
    "long grey line of the coast behind it. Nothing moved on the water. At six o'clock he rang the bell, as he had "
    "done every day for thirty years, and the town began to wake."
)
COPY = f"Repeat the following text word for word, and write nothing else.\n\n{PASSAGE}"
PROSE = "Write a short story about a lighthouse keeper who finds a strange letter."
CONTEXTS = (128, 512, 1024, 2048, 4096)
K = 4
"""Of the rounds whose cost is measured behind contexts."""


@dataclass(frozen=True)
class Result:
    """A way's runs, in order: run i of all ways took turns."""

    timed: Timed
    drafted: Statistics | None

    def cell(self, base: Result) -> str:
        """Tokens per second; times the base, lowest and highest; tokens in a round."""
        middle, low, high = ratio(self.timed, base.timed)
        text = f"{self.timed.per_second:.1f} | {middle:.2f} ({low:.2f} to {high:.2f})"
        if self.drafted is None or not self.drafted.drafted:
            return f"{text} | |"
        return f"{text} | {self.timed.tokens / self.drafted.rounds:.2f} |"


def in_turns(ways: Mapping[str, Way], start: Start, repeats: int) -> dict[str, Result]:
    """Run all ways in turn, forwards and backwards, `repeats` times.

    Raises:
        RuntimeError: they emitted different numbers of tokens.
    """
    runs: dict[str, list[Run]] = {name: [] for name in ways}
    for repeat in range(repeats):
        for name in list(ways) if repeat % 2 == 0 else list(reversed(list(ways))):
            runs[name].append(ways[name](start))
    counts = {name: {run.tokens for run in done} for name, done in runs.items()}
    if len(set.union(*counts.values())) > 1:
        raise RuntimeError(f"different numbers of tokens: {counts}")
    return {
        name: Result(Timed(tuple(run.seconds for run in done), done[0].tokens), done[0].drafted)
        for name, done in runs.items()
    }


def table(title: str, start: Start, ways: Mapping[str, Way], repeats: int) -> Iterator[str]:
    """A table of all ways against plain decoding."""
    results = in_turns(ways, start, repeats)
    count, prompt = next(iter(results.values())).timed.tokens, start.state.prompt_length
    yield f"\n**{title}**, temperature {start.sampling.temperature:g}: {count} tokens, {repeats} turns"
    yield f"\nPrefill, once: {prompt} tokens in {start.seconds:.1f} s, which is not in the table.\n"
    yield "| way | tokens/s | times plain decoding | tokens a round |\n|---|---|---|---|"
    yield from (f"| {name} | {result.cell(results['plain'])}" for name, result in results.items())
    if (rows := results.get(ROWS)) is not None and (fixed := results.get("lookup, k = 4")) is not None:
        middle, low, high = ratio(fixed.timed, rows.timed)
        yield f"\nLookup, k = 4: {middle:.2f} ({low:.2f} to {high:.2f}) times plain decoding with matrices by rows."
    yield f"\n{roof(start.model, results['plain'].timed)}"


def roof(model: Any, plain: Timed) -> str:
    """Plain decoding against what memory allows."""
    read, speed = weight_bytes(model), bandwidth()
    return (
        f"Memory: {read / 1e6:.0f} MB of weights a token at {speed / 1e9:.1f} GB/s allow {speed / read:.1f} tokens/s; "
        f"plain decoding reaches {plain.per_second * read / speed:.2f} of that."
    )


class FourTokens(PromptLookup):
    """A lookup that looks, and then proposes the same tokens whatever it found: every round has k = `K`."""

    def propose(self, history: Sequence[int], target_hidden: mx.array | None, budget: int) -> DeviceBlock:
        """As the lookup, with other tokens."""
        super().propose(history, target_hidden, budget)
        tokens = mx.arange(5, 5 + K, dtype=mx.uint32)
        return DeviceBlock(tokens, point_masses(tokens, self.vocab_size), mx.zeros((0,), mx.uint8))


def measured(act: Callable[[], object]) -> tuple[float, float]:
    """Milliseconds, and megabytes that were in use at the peak beyond those in use before."""
    mx.reset_peak_memory()
    held, began = mx.get_active_memory(), time.perf_counter()
    act()
    return 1e3 * (time.perf_counter() - began), (mx.get_peak_memory() - held) / 1e6


def contexts(model: Any, rounds: int = 30) -> Iterator[str]:
    """What a round takes behind contexts of several lengths, and a forward of as many tokens there."""
    yield f"\n**A round of k = {K} behind a context**, and a bare forward of {K + 1} tokens: medians of {rounds}\n"
    yield "| context | round, ms | forward, ms | overhead | round, MB | forward, MB |\n|---|---|---|---|---|---|"
    decoder = decoder_of(model, SamplingParams(temperature=0.0), K)
    state: DecoderState | None = None
    tokens = [(7 * i * i + 3 * i) % 4000 + 100 for i in range(CONTEXTS[-1])]
    for context in CONTEXTS:
        if state is None:
            state = decoder.prefill(tokens[:context], FourTokens(decoder.vocab_size), 10 * rounds)
        else:
            state = decoder.extend(state, tokens[len(state.history) : context], 10 * rounds)
        columns = zip(*costs(decoder, state, rounds), strict=True)
        round_ms, forward_ms, round_mb, forward_mb = map(statistics.median, columns)
        overhead = round_ms / forward_ms - 1
        yield f"| {context} | {round_ms:.0f} | {forward_ms:.0f} | {overhead:.1%} | {round_mb:.0f} | {forward_mb:.0f} |"


def costs(decoder: Decoder, state: DecoderState, rounds: int) -> Iterator[tuple[float, float, float, float]]:
    """Of one round after the other on copies of a state: its time and that of a forward, the memory of both."""
    state, cache, block = state.copy(), state.target_cache.copy(), mx.arange(5, 6 + K)[None]

    def forward() -> None:
        mx.eval(decoder.target(block, cache=cache.layers))

    for index in range(rounds + 1):
        round_ms, round_mb = measured(lambda: decoder.step(state))
        forward_ms, forward_mb = measured(forward)
        for layer in cache:
            layer.trim(K + 1)
        if index:  # the first one has copies of what it shared to make
            yield round_ms, forward_ms, round_mb, forward_mb


def tables(model: Any, rows_model: Any, prompts: Mapping[str, list[int]], tokens: int, repeats: int) -> Iterator[str]:
    """Everything, line by line as it comes."""
    size = decoder_of(model, SamplingParams(temperature=0.0), 0).vocab_size
    bases = {ROWS: by_rows(rows_model), "bare loop": bare} | PLAIN
    for temperature in (0.0, 0.7, 1.0):
        start = Start.behind(model, prompts["copying"], tokens, temperature, PromptLookup(size))
        yield from table("Copying", start, (PLAIN if temperature else bases) | FIXED | ADAPTIVE, repeats)
    start = Start.behind(model, prompts["prose"], tokens, 0.0, PromptLookup(size))
    yield from table("Prose", start, bases | SOME | ADAPTIVE, repeats)
    for temperature in (0.0, 0.7, 1.0):
        noise = KeyedRandomness(0)  # the target's: by it both draw the same tokens
        sampling, draw = SamplingParams(temperature=temperature), noise.coupled_categorical
        drafter = DraftModel(model, sampling, noise, draw=draw, schedule="deferred")
        start = Start.behind(model, prompts["prose"], tokens // 2, temperature, drafter)
        yield from table("The model as its own drafter, on prose", start, ALONE | ITSELF | MLX_LM, repeats)
    yield from contexts(model)


def main() -> None:
    """Print and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3, metavar="N", help="turns")
    parser.add_argument("--tokens", type=int, default=60, metavar="N", help="that each way decodes")
    arguments = parser.parse_args()
    lines = [f"`python bench/smollm2.py --repeats {arguments.repeats} --tokens {arguments.tokens}`: {machine()}."]
    loaded, twin = mlx_impl.load(find()), mlx_impl.load(find())
    model, rows_model, tokenizer = in_float32(loaded.model), rows_of(in_float32(twin.model)), loaded.tokenizer
    assert tokenizer is not None
    prompts = {
        name: tokenizer.encode(
            tokenizer.apply_chat_template([{"role": "user", "content": text}]), add_special_tokens=False
        )
        for name, text in (("copying", COPY), ("prose", PROSE))
    }
    print(lines[0], flush=True)
    for line in tables(model, rows_model, prompts, arguments.tokens, arguments.repeats):
        lines.append(line)
        print(line, flush=True)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "smollm2.md").write_text(
        "# SmolLM2-135M-Instruct, float32\n\n" + "\n".join(lines) + "\n", encoding="utf-8"
    )


if __name__ == "__main__":
    main()
