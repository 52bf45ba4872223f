"""Where random choices come from: one small protocol, and the source that draws from explicit keys.

No function here, or anywhere in the package, touches MLX's global generator. A harness may bring a source of its
own that enumerates all outcomes: nothing else makes random choices.
"""

from __future__ import annotations

from typing import Protocol

import mlx.core as mx

from reference.errors import InvalidSetting

_KEY_SPACE = 2**32
_POSITIONS = 2**31
"""Of a seed's keys the lower half is for calls, the upper one for noise by position: no key serves both."""


class Randomness(Protocol):
    """Makes random choices on the device, without waiting for it."""

    def bernoulli(self, probabilities: mx.array) -> mx.array:
        """Independent coins: probabilities [n] -> bool [n]. Never True where the probability is 0."""
        ...

    def categorical(self, probabilities: mx.array) -> mx.array:
        """Independent draws: distributions [n, V] -> tokens uint32 [n]. Never a token of no mass."""
        ...

    def coupled_categorical(self, probabilities: mx.array, position: int) -> mx.array:
        """Draws: distributions [n, V] -> tokens uint32 [n], row i by the noise of `position + i` and of nothing else.

        `position` is the index in the history of the token that row 0 draws. Whoever draws at one position shares its
        noise, so similar distributions mostly give the same token. Never a token of no mass.
        """
        ...


class KeyedRandomness:
    """Draws from explicit keys: call number i of the source with seed s uses the key (s, i), once.

    Equal seeds give equal draws for equal sequences of calls. Coupled draws are no calls: their noise at position i has
    a key of its own, which is the same each time.

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
        """Draws [n, V] -> uint32 [n]: see `_race`."""
        return _race(probabilities, mx.random.uniform(shape=probabilities.shape, key=self._next_key()))

    def coupled_categorical(self, probabilities: mx.array, position: int) -> mx.array:
        """Draws [n, V] -> uint32 [n], row by row: a row's noise must not depend on how many rows there are."""
        num_rows, vocab_size = probabilities.shape
        keys = [mx.random.key(self._seed * _KEY_SPACE + _POSITIONS + position + row) for row in range(num_rows)]
        return _race(probabilities, mx.stack([mx.random.uniform(shape=(vocab_size,), key=key) for key in keys]))

    def _next_key(self) -> mx.array:
        """A key that was not used before."""
        key = mx.random.key(self._seed * _KEY_SPACE + self._calls)
        self._calls += 1
        return key


def _race(probabilities: mx.array, uniform: mx.array) -> mx.array:
    """Draws [n, V] -> uint32 [n], as the winner of a race: token x arrives at time E(x) / p(x). (Gumbel-max.)

    E, made of uniforms in [0, 1), is exponential, at least 2**-33: it cannot be 0, so no p / E is infinite, and the 0
    of a token without mass never ties with the largest. `log1p` of u near 0 keeps the fine end of float32 for the early
    arrivals, so rare tokens are drawn at their rate down to 2**-32. `mx.random.categorical` promises neither.
    """
    times = mx.maximum(-mx.log1p(-uniform), 2.0**-33)  # [n, V], at most 17
    return mx.argmax(probabilities / times, axis=-1)  # [n]
