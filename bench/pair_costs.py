"""What the steps of a round cost by themselves: what a prediction of speed starts from."""

# ruff: noqa: I001
from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pair_ways import MOST, Models  # first: it loads the BLAS that the environment names

import mlx.core as mx

from mlx_impl.cache import make_cache

CHAIN = 4
"""Draft steps that are timed together: in a round, too, one follows the other and the host waits once."""


@dataclass(frozen=True)
class Costs:
    """Median seconds of bare forwards at one context.

    Attributes:
        draft: the drafter's, of one token in a chain of `CHAIN`.
        passes: the target's, of 1, 2, .. MOST + 1 tokens: [0] is a plain step, [k] verifies k proposals.
    """

    draft: float
    passes: tuple[float, ...]

    @property
    def c(self) -> float:
        """A draft step in units of a plain step."""
        return self.draft / self.passes[0]

    def v(self, k: int) -> float:
        """A verify pass of k proposals in units of a plain step."""
        return self.passes[k] / self.passes[0]

    def round_seconds(self, k: int) -> float:
        """The forwards of a round."""
        return k * self.draft + self.passes[k]


@dataclass
class Meter:
    """Times the bare forwards now and then, between the turns, so that what else the machine does falls on both."""

    models: Models
    context: Sequence[int]
    _draft: list[float] = field(default_factory=list)
    _passes: list[list[float]] = field(default_factory=lambda: [[] for _ in range(MOST + 1)])

    def __post_init__(self) -> None:
        self._caches = [_filled(model, self.context) for model in (self.models.target, self.models.draft)]
        self.sample()  # what is done the first time is done
        self._draft.clear()
        for times in self._passes:
            times.clear()

    def sample(self) -> None:
        """Time each forward once."""
        target, draft = self._caches
        self._draft.append(_chained_seconds(self.models.draft, draft))
        for extra, times in enumerate(self._passes):
            times.append(_seconds(self.models.target, target, extra + 1))

    @property
    def costs(self) -> Costs:
        """The medians of all samples."""
        return Costs(statistics.median(self._draft), tuple(map(statistics.median, self._passes)))


def _filled(model: Any, context: Sequence[int]) -> list[Any]:
    cache = make_cache(model)
    mx.eval(model(mx.array([list(context)]), cache=cache))
    return cache


def _seconds(model: Any, cache: Sequence[Any], count: int) -> float:
    """Of a forward of so many tokens; the cache is as before."""
    tokens = mx.array([list(range(5, 5 + count))])
    start = time.perf_counter()
    mx.eval(model(tokens, cache=cache))
    seconds = time.perf_counter() - start
    for layer in cache:
        layer.trim(count)
    return seconds


def _chained_seconds(model: Any, cache: Sequence[Any]) -> float:
    """Of a step in a chain of `CHAIN`, each on the last one's best token, awaited once; the cache is as before."""
    token = mx.array([[5]])
    start = time.perf_counter()
    for _ in range(CHAIN):
        token = mx.argmax(model(token, cache=cache)[:, -1], axis=-1, keepdims=True)
        mx.async_eval(token)
    mx.eval(token)
    seconds = time.perf_counter() - start
    for layer in cache:
        layer.trim(CHAIN)
    return seconds / CHAIN
