"""Toy models for the tests of `mlx_impl`: forced to agree or to disagree, to fail, or to hide their cache.

Everything is forced through models, never through the decoder, so that every cache is really filled. Wrappers work on
lazy arrays, so that they do not wait for the device either.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path

import mlx.core as mx
import numpy as np

from mlx_impl.cache import KVCache
from mlx_impl.transformer import Transformer, load
from reference.values import SamplingParams
from specproof.adapters.remembered import RememberedModel

TOYS = Path(__file__).parents[2] / "fixtures" / "toy"
GREEDY = SamplingParams(temperature=0)
SAMPLED = SamplingParams(temperature=0.8)
SAMPLINGS = {"greedy": GREEDY, "sampler_match": SAMPLED, "rejection": SAMPLED, "block": SAMPLED, "coupled": SAMPLED}
BAN = 1e9


@cache
def toy(name: str) -> Transformer:
    """A toy model by its folder's name; the same object on each call, since forwards do not change it."""
    return load(TOYS / name)


class Remembered(RememberedModel):
    """A model that looks repeated forwards up. Waits for the device."""

    def make_cache(self):
        return self.inner.make_cache()


@cache
def remembered(name: str) -> Remembered:
    """As `toy`, for tests that run the same tokens again and again, and are about something else than forwards."""
    return Remembered(toy(name), KVCache)


class Counting:
    """A model that notes how many tokens each forward took."""

    def __init__(self, inner):
        self.inner, self.lengths = inner, []

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def __call__(self, inputs, cache):
        self.lengths.append(inputs.shape[1])
        return self.inner(inputs, cache=cache)


class Wrapped:
    """A model that does something to its forward; caches and sizes are the inner model's."""

    def __init__(self, inner):
        self.inner = inner
        self.args = inner.args

    def make_cache(self):
        return self.inner.make_cache()

    def __call__(self, inputs, cache):
        first = cache[0].offset
        logits = self.inner(inputs, cache=cache)
        positions = mx.arange(first, first + inputs.shape[1])  # [T]
        return self.change(logits, positions)

    def change(self, logits, positions):
        return logits


class Scripted(Wrapped):
    """Bans the argmax at positions where the script (repeated) says False: drafts that agree or not, as it says."""

    def __init__(self, inner, script: Sequence[bool]):
        super().__init__(inner)
        self.script = mx.array(list(script))

    def change(self, logits, positions):
        banned = ~self.script[positions % self.script.shape[0]]  # [T]
        best = mx.argmax(logits, axis=-1, keepdims=True)  # [1, T, 1]
        is_best = mx.arange(logits.shape[-1]) == best  # [1, T, V]
        return mx.where(is_best & banned[None, :, None], logits - BAN, logits)


class Disjoint(Wrapped):
    """Bans the tokens of the other parity: two of these with different parts share no support."""

    def __init__(self, inner, part: int):
        super().__init__(inner)
        self.part = part

    def change(self, logits, positions):
        return mx.where(mx.arange(logits.shape[-1]) % 2 == self.part, logits, logits - BAN)


class Poisoned(Wrapped):
    """Has a NaN logit at one position."""

    def __init__(self, inner, position: int, value: float = float("nan")):
        super().__init__(inner)
        self.position, self.value = position, value

    def change(self, logits, positions):
        return mx.where((positions == self.position)[None, :, None], mx.array(self.value), logits)


class InjectedError(Exception):
    """Raised on purpose."""


class Failing(Wrapped):
    """Raises at one forward, before or after the inner one, or half-way through its layers."""

    def __init__(self, inner, call: int, when: str, error: BaseException):
        super().__init__(inner)
        self.call, self.when, self.error = call, when, error
        self.calls = 0

    def __call__(self, inputs, cache):
        fails = self.calls == self.call
        self.calls += 1
        if fails and self.when == "before":
            raise self.error
        if fails and self.when == "half-way":
            cache = [*cache[:-1], RaisingCache(self.error)]
        logits = super().__call__(inputs, cache)
        if fails:
            raise self.error
        return logits


class RaisingCache:
    """A layer's cache that raises when rows come: the layers before it have theirs already."""

    offset = 0

    def __init__(self, error: BaseException):
        self.error = error

    def update_and_fetch(self, keys, values):
        raise self.error


class Hiding(Wrapped):
    """Keeps its rows in a cache of its own."""

    def __init__(self, inner):
        super().__init__(inner)
        self.own = inner.make_cache()

    def __call__(self, inputs, cache):
        return self.inner(inputs, cache=self.own)


def pair(regime: str, of=toy):
    """Target and drafter of a regime, made `of` toys or remembered ones: (target, draft)."""
    target = of("target")
    return {
        "plain": lambda: (target, of("draft")),
        "all_accept": lambda: (target, target),
        "all_reject": lambda: (target, Scripted(target, [False])),
        "disjoint": lambda: (Disjoint(target, 0), Disjoint(of("draft"), 1)),
        "mixed": lambda: (target, Scripted(target, [True, True, False, True, False, True, True, True, False])),
    }[regime]()


REGIMES = ("plain", "all_accept", "all_reject", "disjoint", "mixed")


class GivenRandomness:
    """Device choices made by uniforms that the test gives: `coins` [k] and, for each row of a draw, `draws` [n].

    Notes the probabilities that it was asked about.
    """

    def __init__(self, coins: Iterable[float] = (), draws: Iterable[float] = ()):
        self.coins, self.draws = list(coins), list(draws)
        self.asked: list[np.ndarray] = []

    def bernoulli(self, probabilities):
        self.asked.append(np.array(probabilities))
        return mx.array([u < p for u, p in zip(self.coins, probabilities.tolist(), strict=True)], dtype=mx.bool_)

    def categorical(self, probabilities):
        rows = np.array(probabilities, dtype=np.float64)
        self.asked.append(rows)
        return mx.array([inverse(row, u) for row, u in zip(rows, self.draws, strict=False)], dtype=mx.uint32)

    def coupled_categorical(self, probabilities, position):
        """Row i by the uniform of position `position + i`."""
        self.draws = self.draws[position:]
        return self.categorical(probabilities)


def inverse(row: np.ndarray, uniform: float) -> int:
    """The token at which the cumulated mass passes `uniform`."""
    mass = np.cumsum(row)
    token = int(np.searchsorted(mass, uniform * mass[-1], side="right"))
    return min(token, int(np.flatnonzero(row)[-1]))


class Choices:
    """Device choices made one by one by host ones, such as `specproof.enumeration.EnumeratedRandomness`."""

    def __init__(self, host):
        self.host = host

    def bernoulli(self, probabilities):
        return mx.array([self.host.bernoulli(p) for p in probabilities.tolist()], dtype=mx.bool_)

    def categorical(self, probabilities):
        rows = np.array(probabilities, dtype=np.float64)
        return mx.array([self.host.categorical(row) for row in rows], dtype=mx.uint32)


def blas_is_stock(maps: str | None = None) -> bool:
    """Whether matrix products are done by the BLAS inside the `mlx-cpu` wheel, judged by the libraries in the process.

    NumPy and SciPy bring a BLAS each, under symbol names of their own, which MLX never calls. Where there is no
    `/proc` (macOS: Accelerate, Metal) the answer is no.
    """
    if maps is None:
        file = Path("/proc/self/maps")
        maps = file.read_text() if file.exists() else ""
    libraries = {line.split()[-1] for line in maps.splitlines() if "/" in line}
    blas = {path for path in libraries if re.search(r"(blas|mkl|atlas|blis)[^/]*\.so", path)}
    others = {path for path in blas if not re.search(r"/(numpy|scipy)(\.libs)?/", path)}
    return bool(others) and all("/mlx_cpu.libs/" in path for path in others)


def count_calls(monkeypatch, owner, name: str, counter: list[str], when: Callable[..., bool] = lambda *_: True) -> None:
    """Note in `counter` each call of `owner.name` for which `when(*args)` holds."""
    original = getattr(owner, name)

    def counted(*args, **settings):
        if when(*args):
            counter.append(name)
        return original(*args, **settings)

    monkeypatch.setattr(owner, name, counted)
