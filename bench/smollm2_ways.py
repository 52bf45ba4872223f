"""Ways to decode with SmolLM2: our loop with a lookup or the model itself as drafter, mlx-lm's two, a bare one.

All begin with copies of one state behind a prompt. Decoding alone is timed.
"""

# ruff: noqa: I001
# mypy: allow-untyped-calls
# (mlx-lm carries no annotations)
from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import mlx_impl  # noqa: F401  # before MLX: it loads the BLAS that the environment names

import mlx.core as mx
from mlx_lm.generate import generate_step, speculative_generate_step
from mlx_lm.sample_utils import make_sampler

from mlx_impl import AdaptiveLength, Decoder, DecoderState, KeyedRandomness, PromptLookup
from mlx_impl.drafters import Drafter
from mlx_impl.statistics import Statistics
from reference.values import SamplingParams

MOST = 8
"""The largest k."""
ROWS = "plain, matrices by rows"


@dataclass(frozen=True)
class Start:
    """Where all ways of a table begin: behind a prompt.

    Attributes:
        model: target, and drafter where there is a draft model.
        state: it has emitted one token, and has a budget of so many more as each way is to decode.
        sampling: of all ways.
        seconds: that the prompt took, and the first token.
    """

    model: Any
    state: DecoderState
    sampling: SamplingParams
    seconds: float

    @classmethod
    def behind(cls, model: Any, prompt: Sequence[int], tokens: int, temperature: float, drafter: Drafter) -> Start:
        """Forward the prompt."""
        sampling = SamplingParams(temperature=temperature)
        began = time.perf_counter()
        state = decoder_of(model, sampling, 0).prefill(prompt, drafter, tokens + 1)
        return cls(model, state, sampling, time.perf_counter() - began)


@dataclass(frozen=True)
class Run:
    """One run of a way: how long it took to decode so many tokens, and what was drafted where that is known."""

    seconds: float
    tokens: int
    drafted: Statistics | None = None


Way = Callable[[Start], Run]


def decoder_of(model: Any, sampling: SamplingParams, k: Any) -> Decoder:
    """Equal draws in all ways: by `coupled` they depend on seed and position alone."""
    rule = "coupled" if sampling.temperature > 0 else None
    return Decoder(model, sampling=sampling, rule=rule, randomness=KeyedRandomness(0), num_draft_tokens=k)


def ours(k: Callable[[], Any]) -> Way:
    """Our loop, with the drafter of the state."""

    def run(start: Start) -> Run:
        decoder, state = decoder_of(start.model, start.sampling, k()), start.state.copy()
        began = time.perf_counter()
        for _ in decoder.generate(state):
            pass
        return Run(time.perf_counter() - began, len(state.emitted) - 1, state.statistics)

    return run


def bare(start: Start) -> Run:
    """The least that plain greedy decoding can do with this model: a forward and an argmax for each token."""
    state = start.state.copy()
    began = time.perf_counter()
    token = mx.array(state.history[-1:])
    for _ in range(tokens := state.max_tokens - 1):
        token = mx.argmax(start.model(token[None], cache=state.target_cache.layers)[0, -1:], axis=-1)
        mx.eval(token)
    return Run(time.perf_counter() - began, tokens)


def without_drafter(start: Start) -> Run:
    """Plain decoding, and no draft model's cache to be kept in step."""
    lookup = PromptLookup(decoder_of(start.model, start.sampling, 0).vocab_size)
    return ours(lambda: 0)(replace(start, state=replace(start.state, drafter=lookup)))


def rows_of(model: Any) -> Any:
    """The model with its matrices laid out by rows, as files have them. Changes it."""
    for module in model.modules():
        weight = module.get("weight")
        if weight is not None and weight.ndim == 2:
            module.weight = mx.contiguous(weight)
            mx.eval(module.weight)
    return model


def by_rows(model: Any) -> Way:
    """Plain decoding with a twin of the model whose matrices lie by rows."""
    plain = ours(lambda: 0)
    return lambda start: plain(replace(start, model=model))


def mlx_lm_plain(start: Start) -> Run:
    """mlx-lm's plain loop, on a copy of the target's caches."""
    state = start.state.copy()
    mx.random.seed(0)
    began = time.perf_counter()
    emitted = generate_step(
        mx.array(state.history[-1:]),
        start.model,
        max_tokens=state.max_tokens - 1,
        sampler=make_sampler(temp=start.sampling.temperature),
        prompt_cache=state.target_cache.layers,
    )
    tokens = sum(1 for _ in emitted)
    return Run(time.perf_counter() - began, tokens)


def mlx_lms(k: int) -> Way:
    """mlx-lm's speculative decoding, on copies of the caches of target and drafter."""

    def run(start: Start) -> Run:
        state = start.state.copy()
        assert state.drafter.cache is not None
        mx.random.seed(0)
        began = time.perf_counter()
        emitted = speculative_generate_step(
            mx.array(state.history[-1:]),
            start.model,
            start.model,
            num_draft_tokens=k,
            max_tokens=state.max_tokens - 1,
            sampler=make_sampler(temp=start.sampling.temperature),
            prompt_cache=[*state.target_cache.layers, *state.drafter.cache.layers],
        )
        tokens = sum(1 for _ in emitted)
        return Run(time.perf_counter() - began, tokens)

    return run


PLAIN: dict[str, Way] = {"plain": ours(lambda: 0), "mlx-lm, plain": mlx_lm_plain}
FIXED = {f"lookup, k = {k}": ours(partial(int, k)) for k in range(1, MOST + 1)}
ADAPTIVE = {"lookup, adaptive": ours(lambda: AdaptiveLength(MOST))}
SOME = {name: FIXED[name] for name in ("lookup, k = 4", "lookup, k = 8")}
ALONE: dict[str, Way] = PLAIN | {"plain": without_drafter}
ITSELF = {f"itself, k = {k}": ours(partial(int, k)) for k in range(1, MOST + 1)}
ITSELF["itself, adaptive"] = ours(lambda: AdaptiveLength(MOST))
MLX_LM = {f"mlx-lm, itself, k = {k}": mlx_lms(k) for k in range(1, MOST + 1)}
