"""Every random decision of a decoder, behind one small protocol.

`SeededRandomness` draws, by uniforms of its own or by those it is given: tests inject the end points 0 and just under
1, which no amount of sampling hits. `specproof.enumeration` walks all outcomes, behind the same protocol.
"""

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from reference.values import Floats, Probabilities, checked_integer


class Randomness(Protocol):
    """A source of random choices. Every call is a fresh choice: no coin is ever used twice."""

    def bernoulli(self, probability: Any) -> bool:
        """One coin: True with this probability."""

    def categorical(self, probabilities: Probabilities) -> int:
        """One draw from a distribution [V]."""

    def coupled_categorical(self, probabilities: Probabilities, position: int) -> int:
        """One draw from a distribution [V], by noise that depends on the seed and on `position` alone.

        `position` is the index in the history of the token that is drawn. Two distributions drawn from at one
        position share their noise, so similar distributions mostly give the same token.
        """


class SeededRandomness:
    """Reproducible choices: coins and draws from a stream of uniforms in [0, 1), Gumbel noise by seed and position.

    `uniform` hands out the uniforms; by default they are pseudo-random numbers of the seed.
    """

    def __init__(self, seed: int, uniform: Callable[[], float] | None = None) -> None:
        self.seed = checked_integer("seed", seed, 0)
        self.uniform = uniform or np.random.default_rng(self.seed).random

    def bernoulli(self, probability: Any) -> bool:
        """True iff u < probability: strictly, or u = 0 would accept a token that the target never draws."""
        return bool(self.uniform() < probability)

    def categorical(self, probabilities: Probabilities) -> int:
        """Inverse of the distribution function; for u = 0 and u just under 1, too, a token that has mass."""
        cumulative = np.cumsum(np.asarray(probabilities, dtype=np.float64))  # [V]
        token = int(np.searchsorted(cumulative, self.uniform() * cumulative[-1], side="right"))
        return min(token, int(np.flatnonzero(probabilities)[-1]))

    def coupled_categorical(self, probabilities: Probabilities, position: int) -> int:
        """Gumbel-max: argmax of log-probability plus noise."""
        masses = np.asarray(probabilities, dtype=np.float64)
        log_masses = np.log(masses, out=np.full(len(masses), -np.inf), where=masses > 0)
        return int(np.argmax(log_masses + gumbel_noise(self.seed, position, len(masses))))


def gumbel_noise(seed: int, position: int, vocab_size: int) -> Floats:
    """Standard Gumbel noise [V], a function of its arguments.

    The position goes into the spawn key, not beside the seed: NumPy pads entropy with zeros, so that
    `default_rng([seed, 0])` is the stream of `default_rng(seed)`, which coins and draws already use.
    """
    sequence = np.random.SeedSequence(seed, spawn_key=(position,))
    return np.random.Generator(np.random.PCG64(sequence)).gumbel(size=vocab_size)
