"""Where random choices come from: one small protocol, and the source that draws from explicit keys.

No function here, or anywhere in the package, touches MLX's global generator. A harness may bring a source of its
own that enumerates all outcomes: nothing else makes random choices.
"""

from __future__ import annotations

from typing import Protocol

import mlx.core as mx

from reference.errors import InvalidSetting

_KEY_SPACE = 2**32


class Randomness(Protocol):
    """Makes random choices on the device, without waiting for it."""

    def bernoulli(self, probabilities: mx.array) -> mx.array:
        """Independent coins: probabilities [n] -> bool [n]. Never True where the probability is 0."""
        ...

    def categorical(self, probabilities: mx.array) -> mx.array:
        """Independent draws: distributions [n, V] -> tokens uint32 [n]. Never a token of no mass."""
        ...


class KeyedRandomness:
    """Draws from explicit keys: call number i of the source with seed s uses the key (s, i), once.

    Equal seeds give equal draws for equal sequences of calls.

    Raises:
        InvalidSetting: a seed outside 0 .. 2**32 - 1.
    """

    def __init__(self, seed: int) -> None:
        if not 0 <= seed < _KEY_SPACE:
            raise InvalidSetting(f"seed is {seed}; give an integer in 0..2**32 - 1")
        self._seed = seed
        self._calls = 0

    def bernoulli(self, probabilities: mx.array) -> mx.array:
        """Coins [n] -> bool [n]: u < probability with u in [0, 1), so 0 never comes up and 1 always does."""
        return mx.random.uniform(shape=probabilities.shape, key=self._next_key()) < probabilities

    def categorical(self, probabilities: mx.array) -> mx.array:
        """Draws [n, V] -> uint32 [n], as the winner of a race: token x arrives at time E(x) / p(x).

        E is exponential, at least 2**-33: it cannot be 0, so no score is infinite and a token without mass never
        ties with one that has some. `log1p` of u near 0 keeps the fine end of float32 for the early arrivals, so
        rare tokens are drawn at their rate down to 2**-32. `mx.random.categorical` promises neither.
        """
        uniform = mx.random.uniform(shape=probabilities.shape, key=self._next_key())  # [n, V]
        times = mx.maximum(-mx.log1p(-uniform), 2.0**-33)  # [n, V]
        return mx.argmax(mx.log(probabilities) - mx.log(times), axis=-1)  # [n]

    def _next_key(self) -> mx.array:
        """A key that was not used before."""
        key = mx.random.key(self._seed * _KEY_SPACE + self._calls)
        self._calls += 1
        return key
