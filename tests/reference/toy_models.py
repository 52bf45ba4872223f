"""Wrapped models that misbehave on purpose, and what decoding is compared with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from reference import DecoderState, KVCache, LanguageModel, SamplingParams, Transformer, distribution
from reference.randomness import gumbel_noise
from reference.transformer import Activations


class Boom(BaseException):
    """Not an Exception: clean-up must not depend on which kind of exception comes."""


@dataclass
class Changed:
    """A model whose logits [T, V] are changed after its cache was really filled."""

    inner: Transformer
    change: Callable[[np.ndarray, np.ndarray], np.ndarray]  # (logits [T, V], positions [T]) -> logits

    @property
    def name(self) -> str:
        return self.inner.name

    @property
    def vocab_size(self) -> int:
        return self.inner.vocab_size

    def new_cache(self) -> KVCache:
        return self.inner.new_cache()

    def forward(self, tokens: Sequence[int], cache: KVCache) -> Activations:
        positions = cache.offset + np.arange(len(tokens))
        activations = self.inner.forward(tokens, cache)
        return replace(activations, logits=self.change(activations.logits, positions))


@dataclass
class Faulty(Changed):
    """Raises `Boom` in one forward: before it, after it, or half-way, when only the first layer has its rows."""

    change: Callable[[np.ndarray, np.ndarray], np.ndarray] = lambda logits, positions: logits
    call: int = 0
    when: str = "after"
    num_calls: int = field(default=0, init=False)

    def forward(self, tokens: Sequence[int], cache: KVCache) -> Activations:
        this_one = self.num_calls == self.call
        self.num_calls += 1
        if this_one and self.when == "before":
            raise Boom
        before = cache.layers[1:]
        activations = super().forward(tokens, cache)
        if this_one and self.when == "half":
            cache.layers[1:] = before
        if this_one:
            raise Boom
        return activations


def disagreeing(model: Transformer) -> Changed:
    """A drafter that likes least what the model likes most."""
    return Changed(model, lambda logits, positions: -logits)


def scripted(model: Transformer, script: Sequence[bool]) -> Changed:
    """A drafter that agrees with the model exactly where the script, repeated, says so."""

    def change(logits: np.ndarray, positions: np.ndarray) -> np.ndarray:
        agrees = np.array([script[position % len(script)] for position in positions])
        return np.where(agrees[:, None], logits, -logits)

    return Changed(model, change)


def plain_greedy(model: LanguageModel, prompt: Sequence[int], n: int, stop: frozenset[int] = frozenset()) -> list[int]:
    """Cache-free greedy decoding."""
    return plain(model, prompt, n, lambda logits, history: int(np.argmax(logits)), stop)


def plain_gumbel(model: LanguageModel, prompt: Sequence[int], n: int, sampling: SamplingParams, seed: int) -> list[int]:
    """Cache-free sampling by the noise that the `coupled` rule uses."""

    def pick(logits: np.ndarray, history: Sequence[int]) -> int:
        p = distribution(logits, sampling, history)
        with np.errstate(divide="ignore"):
            return int(np.argmax(np.log(p) + gumbel_noise(seed, len(history), len(p))))

    return plain(model, prompt, n, pick)


def plain(model: LanguageModel, prompt: Sequence[int], n: int, pick: Callable[[np.ndarray, Sequence[int]], int],
          stop: frozenset[int] = frozenset()) -> list[int]:  # fmt: skip
    history = list(prompt)
    while len(history) < len(prompt) + n:
        logits = model.forward(history, model.new_cache()).logits[-1]
        history.append(pick(logits, history))
        if history[-1] in stop:
            break
    return history[len(prompt) :]


def assert_at_boundary(state: DecoderState, target: Transformer, draft: Transformer, lag: int = 0) -> None:
    """Both caches hold, row by row, what a cache-free pass over the committed tokens gives.

    Args:
        lag: how many rows fewer the drafter may hold.
    """
    committed = state.history[:-1]
    assert_holds(state.target_cache, target, committed)
    if state.drafter.cache is not None:
        rows = state.drafter.cache.offset
        assert len(committed) - lag <= rows <= len(committed), (
            f"draft cache holds {rows} rows, expected {len(committed)} = prompt {state.prompt_length} "
            f"+ emitted {len(state.emitted)} - 1 (round {state.num_rounds})"
        )
        assert_holds(state.drafter.cache, draft, committed[:rows])


def assert_holds(cache: KVCache, model: Transformer, tokens: Sequence[int]) -> None:
    assert cache.offsets == (len(tokens),) * len(cache.layers)
    if tokens:
        for layer, (keys, values) in zip(cache.layers, model.forward_without_cache(tokens).rows, strict=True):
            np.testing.assert_allclose(layer.keys, keys, atol=1e-9)
            np.testing.assert_allclose(layer.values, values, atol=1e-9)
