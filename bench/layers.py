"""Where a step of a small model goes on the CPU, and what compiling and asynchronous evaluation make of it.

    SPECPROOF_BLAS=openblas python bench/layers.py

Writes bench/results/layers.md: the target of the trained pair, in float32, behind 128 tokens. All ways take turns in
one process; times are medians. Takes half a minute. `mx.compile` calls a C++ compiler: without one its lines are left
out, which is one reason why the decoder does not use it.
"""

# ruff: noqa: I001
# mypy: allow-untyped-calls
# (mlx.nn is annotated in parts only)
from __future__ import annotations

import argparse
import shutil
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from timing import RESULTS, machine  # first: it loads the BLAS that the environment names

import mlx.core as mx

from mlx_impl.acceptance import RULES
from mlx_impl.cache import make_cache
from mlx_impl.drafters import DeviceBlock
from mlx_impl.randomness import KeyedRandomness
from mlx_impl.readout import read_verdict
from mlx_impl.sampling import distributions, row_faults
from pair_ways import load
from reference.values import SamplingParams
from specproof.held_out import held_out_prompts
from specproof.pairs import trained

REPEATS = 40
CHAIN = 8
"""Operations, or steps, behind each other in one measurement."""
K = 4

Times = Mapping[str, float]
"""What was done -> milliseconds."""


def medians(ways: Mapping[str, Callable[[], object]], repeats: int) -> Times:
    """Everything in turn, `repeats` times and once before; milliseconds."""
    found: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(repeats + 1):
        for name, act in ways.items():
            began = time.perf_counter()
            act()
            if turn:
                found[name].append(1e3 * (time.perf_counter() - began))
    return {name: statistics.median(times) for name, times in found.items()}


def chained(act: Callable[[mx.array], mx.array], start: mx.array) -> Callable[[], None]:
    """`CHAIN` times, each on what came of the one before, awaited once."""

    def run() -> None:
        value = start
        for _ in range(CHAIN):
            value = act(value)
        mx.eval(value)

    return run


def pieces(model: Any) -> Mapping[str, Callable[[], object]]:
    """Parts of one layer, for one token."""
    layer = model.model.layers[0]
    x = mx.random.normal((1, 1, model.args.hidden_size), key=mx.random.key(0))
    heads = mx.random.normal((1, model.args.num_attention_heads, 1, model.args.head_dim), key=mx.random.key(1))
    mx.eval(x, heads)
    return {
        "one addition": chained(lambda v: v + 1.0, x),
        "RMSNorm": chained(layer.input_layernorm, x),
        "rotary positions": chained(lambda v: layer.self_attn.rope(v, offset=100), heads),
        "MLP": chained(layer.mlp, x),
    }


class Steps:
    """A model behind a prompt, and the ways to run it; the cache is as before after each."""

    def __init__(self, model: Any, prompt: Sequence[int]) -> None:
        self.model, self.cache = model, make_cache(model)
        mx.eval(model(mx.array([list(prompt)]), cache=self.cache))

    def awaited(self, count: int) -> Callable[[], None]:
        """A forward of so many tokens."""
        tokens = mx.array([list(range(5, 5 + count))])

        def run() -> None:
            mx.eval(self.model(tokens, cache=self.cache))
            self._trim(count)

        return run

    def chain(self, wait: Callable[[mx.array], object]) -> Callable[[], None]:
        """`CHAIN` steps, each on the best token of the one before; `wait` is called on each of these."""

        def run() -> None:
            token = mx.array([[5]])
            for _ in range(CHAIN):
                token = mx.argmax(self.model(token, cache=self.cache)[:, -1], axis=-1, keepdims=True)
                wait(token)
            mx.eval(token)
            self._trim(CHAIN)

        return run

    def graph(self) -> None:
        """Builds a step and drops it. Its rows stay behind, to be computed by whoever comes next: give it a cache."""
        self.model(mx.array([[5]]), cache=self.cache)
        self._trim(1)

    def _trim(self, count: int) -> None:
        for layer in self.cache:
            layer.trim(count)


def compile_parts(model: Any) -> None:
    """Compile both norms and the MLP of every layer, in place: what needs neither cache nor position."""
    for layer in model.model.layers:
        for name in ("input_layernorm", "post_attention_layernorm", "mlp"):
            object.__setattr__(layer, name, mx.compile(layer.pop(name)))  # no parameter of the model any more


def own_work(vocab_size: int, temperature: float) -> Callable[[], object]:
    """What the decoder does beside the forwards in a round of `K`: both models' distributions, draws, the decision."""
    sampling, randomness = SamplingParams(temperature=temperature), KeyedRandomness(0)
    logits = 3 * mx.random.normal((K + 1, vocab_size), key=mx.random.key(2))
    mx.eval(logits)
    rule = RULES["rejection" if temperature else "greedy"]

    def run() -> object:
        rows = [distributions(logits[i : i + 1], sampling) for i in range(K)]
        drawn = [randomness.categorical(q) if temperature else mx.argmax(q, axis=-1) for q in rows]
        q, drafted = mx.concatenate(rows), mx.concatenate(drawn)
        p = distributions(logits, sampling)
        block = DeviceBlock(drafted, q, row_faults(logits[:K], q))
        accepted, token = rule.decide(p, q, drafted, randomness, 0)
        return read_verdict(p, block, accepted, token, row_faults(logits, p))

    return run


def lines(repeats: int) -> Iterator[str]:
    """The page."""
    prompt = held_out_prompts(1, 128, seed=5)[0]
    plain = load(trained()).target
    steps, count = Steps(plain, prompt), len(plain.model.layers)
    yield f"{count} layers of {plain.args.hidden_size}; medians of {repeats} turns.\n"
    parts = medians(pieces(plain), repeats)
    yield f"| part of a layer, one token | ms, the mean of {CHAIN} in a chain |\n|---|---|"
    yield from (f"| {name} | {ms / CHAIN:.3f} |" for name, ms in parts.items())
    ways = {
        "a step": steps.awaited(1),
        "its graph alone, by Python": Steps(plain, prompt).graph,
        f"a pass of {K + 1} tokens": steps.awaited(K + 1),
        f"{CHAIN} steps, each awaited": steps.chain(mx.eval),
        f"{CHAIN} steps, each begun asynchronously": steps.chain(mx.async_eval),
        f"{CHAIN} steps, begun when all are asked for": steps.chain(lambda token: None),
    }
    if shutil.which("g++"):
        twin = load(trained()).target
        compile_parts(twin)
        compiled = Steps(twin, prompt)
        ways |= {"a step, norms and MLPs compiled": compiled.awaited(1)}
        ways |= {f"a pass of {K + 1} tokens, norms and MLPs compiled": compiled.awaited(K + 1)}
    for temperature in (0.0, 0.7):
        name = f"a round's own work at k = {K}, temperature {temperature:g}"
        ways[name] = own_work(plain.args.vocab_size, temperature)
    whole = medians(ways, repeats)
    yield "\n| the whole model | ms | steps |\n|---|---|---|"
    yield from (f"| {name} | {ms:.2f} | {ms / whole['a step']:.2f} |" for name, ms in whole.items())


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=REPEATS, metavar="N", help="turns")
    given = parser.parse_args()
    text = f"# A step on the CPU\n\n`python bench/layers.py --repeats {given.repeats}`: {machine()}.\n\n"
    text += "\n".join(lines(given.repeats)) + "\n"
    print(text)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "layers.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
