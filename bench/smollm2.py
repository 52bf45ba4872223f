"""Speed of `mlx_impl` on SmolLM2-135M-Instruct in float32, against plain decoding in the same process.

    make smollm2 && SPECPROOF_BLAS=openblas python bench/smollm2.py [--repeats N] [--tokens N] [--contexts]

Prints a table, and writes it to bench/results/smollm2.md. Ratios are medians over interleaved repetitions, with the
lowest and the highest. Without a fast BLAS speculation does not pay on a CPU: the output says which was in use.
"""

# ruff: noqa: I001
from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from timing import RESULTS, Timed, interleaved, machine, ratio  # first: it loads the BLAS that the environment names

import mlx.core as mx

import mlx_impl
from mlx_impl import AdaptiveLength, Decoder, KeyedRandomness, PromptLookup
from mlx_impl.cache import make_cache
from mlx_impl.models import in_float32
from mlx_impl.smollm2 import find
from reference.values import SamplingParams

GREEDY = SamplingParams(temperature=0.0)
PASSAGE = (
    "The harbour was quiet before sunrise. Four boats lay at the northern pier, their nets folded and dry, and the old "
    "keeper walked past them with a lamp in his hand. He counted the ropes, wrote the number in a small green book, "
    "and went up the stairs to the tower. From there he could see the lights of the ferry, eleven miles out, and the "
    "long grey line of the coast behind it. Nothing moved on the water. At six o'clock he rang the bell, as he had "
    "done every day for thirty years, and the town began to wake."
)
COPY = f"Repeat the following text word for word, and write nothing else.\n\n{PASSAGE}"
PROSE = "Write a short story about a lighthouse keeper who finds a strange letter."


def prompts(tokenizer: Any) -> dict[str, list[int]]:
    """A prompt whose answer is in it, and one whose answer is not."""
    chat = {"copying": COPY, "prose": PROSE}
    return {
        name: tokenizer.encode(
            tokenizer.apply_chat_template([{"role": "user", "content": text}]), add_special_tokens=False
        )
        for name, text in chat.items()
    }


def decode(model: Any, prompt: Sequence[int], tokens: int, length: Callable[[], Any]) -> int:
    """One turn with prompt lookup; returns the tokens emitted. Prefill counts: it is the same for all."""
    decoder = Decoder(model, sampling=GREEDY, randomness=KeyedRandomness(0), num_draft_tokens=length())
    state = decoder.prefill(prompt, PromptLookup(decoder.vocab_size), tokens)
    return sum(1 for _ in decoder.generate(state))


def bare(model: Any, prompt: Sequence[int], tokens: int) -> int:
    """The least that plain greedy decoding can do with this model: a forward and an argmax for each token."""
    cache = make_cache(model)
    token = mx.argmax(model(mx.array([list(prompt)]), cache=cache)[0, -1:], axis=-1)
    for _ in range(tokens - 1):
        mx.eval(token)
        token = mx.argmax(model(token[None], cache=cache)[0, -1:], axis=-1)
    mx.eval(token)
    return tokens


def ways(model: Any, prompt: Sequence[int], tokens: int) -> dict[str, Callable[[], int]]:
    """Everything that is compared."""
    return {
        "bare loop": partial(bare, model, prompt, tokens),
        "plain": partial(decode, model, prompt, tokens, lambda: 0),
        "lookup, k = 4": partial(decode, model, prompt, tokens, lambda: 4),
        "lookup, k = 8": partial(decode, model, prompt, tokens, lambda: 8),
        "lookup, adaptive": partial(decode, model, prompt, tokens, lambda: AdaptiveLength(8)),
    }


def row(name: str, timed: Timed, base: Timed) -> str:
    """A line of the table."""
    middle, low, high = ratio(timed, base)
    return f"| {name} | {timed.per_second:.1f} | {middle:.2f} ({low:.2f} to {high:.2f}) |"


def round_cost(model: Any, context: int, rounds: int = 12) -> tuple[float, float]:
    """Median seconds of a round with k = 4 behind a context, and of a bare forward of five tokens there."""
    prompt = [(7 * i * i + 3 * i) % 4000 + 100 for i in range(context)]
    decoder = Decoder(model, sampling=GREEDY, randomness=KeyedRandomness(0), num_draft_tokens=4)
    state = decoder.prefill(prompt, PromptLookup(decoder.vocab_size), 1000)
    ours, theirs = [], []
    cache = state.target_cache.copy()
    block = mx.array([[5, 6, 7, 8, 9]])
    for _ in range(rounds):
        start = time.perf_counter()
        decoder.step(state)
        ours.append(time.perf_counter() - start)
        start = time.perf_counter()
        mx.eval(model(block, cache=cache.layers))
        theirs.append(time.perf_counter() - start)
        for layer in cache:
            layer.trim(5)
    return statistics.median(ours), statistics.median(theirs)


def main() -> None:
    """Print and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=120)
    parser.add_argument("--contexts", action="store_true", help="also a round's cost behind contexts up to 4,096")
    arguments = parser.parse_args()
    loaded = mlx_impl.load(find())
    model = in_float32(loaded.model)
    lines = [f"`python bench/smollm2.py --repeats {arguments.repeats} --tokens {arguments.tokens}`: {machine()}."]
    for name, prompt in prompts(loaded.tokenizer).items():
        timed = interleaved(ways(model, prompt, arguments.tokens), arguments.repeats)
        lines += ["", f"**{name}** ({len(prompt)} tokens of prompt; temperature 0)", ""]
        lines += ["| way | tokens/s | times plain decoding |", "|---|---|---|"]
        lines += [row(way, result, timed["plain"]) for way, result in timed.items()]
    if arguments.contexts:
        lines += ["", "| context | round, k = 4, ms | bare forward of five tokens, ms |", "|---|---|---|"]
        for context in (128, 512, 1024, 2048, 4096):
            ours, theirs = round_cost(model, context)
            lines.append(f"| {context} | {1000 * ours:.0f} | {1000 * theirs:.0f} |")
    text = "\n".join(lines) + "\n"
    print(text)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "smollm2.md").write_text(f"# SmolLM2-135M-Instruct, float32\n\n{text}", encoding="utf-8")


if __name__ == "__main__":
    main()
