"""Ways to decode with a pair: ours with any k, mlx-lm's plain loop and its speculative one. Decoding alone is timed.

All run the same two models, on fresh caches that hold the prompt when the clock starts.
"""

# ruff: noqa: I001
from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import mlx_impl  # before MLX: it loads the BLAS that the environment names

import mlx.core as mx
from mlx_lm.generate import generate_step, speculative_generate_step
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.sample_utils import make_sampler

from mlx_impl import AdaptiveLength, Decoder, DraftModel, KeyedRandomness, PromptLookup
from mlx_impl.models import in_float32
from reference.values import Round, SamplingParams
from specproof.pairs import Pair

MOST = 8
"""The largest k."""


@dataclass(frozen=True)
class Models:
    """A target and its drafter, mlx-lm's own, in float32."""

    target: Any
    draft: Any


@dataclass(frozen=True)
class Decoded:
    """One turn: so many tokens in so many seconds, and the rounds where they are known."""

    tokens: int
    seconds: float
    rounds: tuple[Round, ...] = ()

    @property
    def per_second(self) -> float:
        """Tokens per second."""
        return self.tokens / self.seconds


@dataclass(frozen=True)
class Job:
    """What a way is to do: `tokens` more tokens after a prompt."""

    prompt: Sequence[int]
    temperature: float
    tokens: int
    seed: int


Way = Callable[[Job], Decoded]


def load(pair: Pair) -> Models:
    """Read both models."""
    return Models(*(in_float32(mlx_impl.load(folder).model) for folder in (pair.target, pair.draft)))


def ways(models: Models) -> dict[str, Way]:
    """Everything that is compared, by name; "plain" is what the others are compared with."""

    @cache
    def adaptive(temperature: float) -> AdaptiveLength:
        """Shared by all turns at a temperature, as a server's would be."""
        return AdaptiveLength(MOST)

    found: dict[str, Way] = {"plain": partial(ours, models, lambda _: 0)}
    found["mlx-lm, plain"] = partial(mlx_lm_plain, models)
    found |= {f"mlx-lm, k = {k}": partial(mlx_lm_speculative, models, k) for k in range(1, MOST + 1)}
    found |= {f"k = {k}": partial(ours, models, lambda _, k=k: k) for k in range(1, MOST + 1)}
    found["adaptive"] = partial(ours, models, lambda job: adaptive(job.temperature))
    return found


def ours(models: Models, length: Callable[[Job], Any], job: Job) -> Decoded:
    """Our decoder, with the rule that it chooses itself: `greedy` at temperature 0, `rejection` above. k = 0: plain."""
    sampling, randomness, k = SamplingParams(temperature=job.temperature), KeyedRandomness(job.seed), length(job)
    decoder = Decoder(models.target, sampling=sampling, randomness=randomness, num_draft_tokens=k)
    drafter = PromptLookup(decoder.vocab_size) if k == 0 else DraftModel(models.draft, sampling, randomness)
    state = decoder.prefill(job.prompt, drafter, job.tokens + 1)  # prefill emits the first
    tokens = decoder.generate(state)
    next(tokens)
    return Decoded(*_timed(tokens), state.rounds)


def mlx_lm_plain(models: Models, job: Job) -> Decoded:
    """mlx-lm's plain loop, which builds the next step while the device is at this one."""
    held = _prefilled(models.target, job.prompt)
    mx.random.seed(job.seed)
    sampler = make_sampler(temp=job.temperature)
    last = mx.array(job.prompt[-1:])
    return Decoded(
        *_timed(generate_step(last, models.target, max_tokens=job.tokens, sampler=sampler, prompt_cache=held))
    )


def mlx_lm_speculative(models: Models, k: int, job: Job) -> Decoded:
    """mlx-lm's speculative loop, which accepts where its sampler draws the drafted token."""
    held = [*_prefilled(models.target, job.prompt), *_prefilled(models.draft, job.prompt)]
    mx.random.seed(job.seed)
    return Decoded(
        *_timed(
            speculative_generate_step(
                mx.array(job.prompt[-1:]),
                models.target,
                models.draft,
                num_draft_tokens=k,
                max_tokens=job.tokens,
                sampler=make_sampler(temp=job.temperature),
                prompt_cache=held,
            )
        )
    )


def _prefilled(model: Any, prompt: Sequence[int]) -> list[Any]:
    """mlx-lm's caches with all of a prompt but its last token."""
    held: list[Any] = make_prompt_cache(model)
    model(mx.array([list(prompt[:-1])]), cache=held)
    mx.eval([layer.state for layer in held])
    return held


def _timed(tokens: Iterable[Any]) -> tuple[int, float]:
    """How many tokens came, and how long they took; the device has nothing to do before and after."""
    mx.synchronize()
    start = time.perf_counter()
    count = sum(1 for _ in tokens)
    seconds = time.perf_counter() - start
    mx.synchronize()
    return count, seconds
