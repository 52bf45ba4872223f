"""Every random decision of a decoder, behind one small protocol.

`SeededRandomness` draws. `EnumeratedRandomness` walks all outcomes with their weights, so that the law of
the decoder that ships can be written down exactly. `UniformRandomness` takes its uniforms from outside:
tests inject the end points 0 and just under 1, which no amount of sampling hits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from reference.errors import DecodingFault, InvalidSetting
from reference.values import Floats, checked_integer

Probabilities = NDArray[Any]
"""[V], float64 or object (Fractions)."""


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


class UniformRandomness:
    """Choices made from uniforms in [0, 1) that a callable hands out; Gumbel noise keyed by seed and position."""

    def __init__(self, uniform: Callable[[], float], seed: int = 0) -> None:
        self.uniform = uniform
        self.seed = checked_integer("seed", seed, 0)

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


class SeededRandomness(UniformRandomness):
    """Reproducible pseudo-random choices."""

    def __init__(self, seed: int) -> None:
        super().__init__(lambda: self._generator.random(), seed)
        self._generator = np.random.default_rng(seed)


def gumbel_noise(seed: int, position: int, vocab_size: int) -> Floats:
    """Standard Gumbel noise [V], a function of its arguments.

    The position goes into the spawn key, not beside the seed: NumPy pads entropy with zeros, so that
    `default_rng([seed, 0])` is the stream of `default_rng(seed)`, which coins and draws already use.
    """
    sequence = np.random.SeedSequence(seed, spawn_key=(position,))
    return np.random.Generator(np.random.PCG64(sequence)).gumbel(size=vocab_size)


@dataclass
class _Wheel:
    """One choice met on the way, and the outcome it stands at."""

    outcomes: tuple[int, ...]
    weights: tuple[Any, ...]
    index: int = 0


class EnumeratedRandomness:
    """Walks every outcome of a piece of code that makes random choices.

    ``for _ in randomness.walk(): outcome = body(); law[outcome] += randomness.weight`` runs the body once for
    every way its choices can fall, like an odometer whose wheels are the choices met on the way. Choices
    without mass are skipped; a certain one is no branch. Weights keep the type of the probabilities.
    One object is shared by all that choose, and stays the same for the whole walk.
    """

    def __init__(self) -> None:
        self._wheels: list[_Wheel] = []
        self._depth = 0
        self._walking = False

    def walk(self) -> Iterator[None]:
        """Once per outcome. The body must do the same whenever its choices fall alike."""
        self._wheels, self._walking = [], True
        try:
            while True:
                self._depth = 0
                yield
                while self._wheels and self._wheels[-1].index == len(self._wheels[-1].outcomes) - 1:
                    self._wheels.pop()
                if not self._wheels:
                    return
                self._wheels[-1].index += 1
        finally:
            self._walking = False

    @property
    def weight(self) -> Any:
        """The probability of the choices made since the body began; 1 before the first."""
        return math.prod(wheel.weights[wheel.index] for wheel in self._wheels[: self._depth])

    def bernoulli(self, probability: Any) -> bool:
        """One coin: True first, then False."""
        if probability <= 0 or probability >= 1:
            return bool(probability >= 1)
        return bool(self._choose((1, 0), (probability, 1 - probability)))

    def categorical(self, probabilities: Probabilities) -> int:
        """One draw: the tokens with mass, by id."""
        support = tuple(int(token) for token in np.flatnonzero(probabilities))
        return support[0] if len(support) == 1 else self._choose(support, tuple(probabilities[list(support)]))

    def coupled_categorical(self, probabilities: Probabilities, position: int) -> int:
        """Always refused.

        Raises:
            InvalidSetting: Gumbel noise is continuous, there are no outcomes to enumerate.
        """
        raise InvalidSetting(
            "the coupled rule draws by continuous noise, which cannot be enumerated; "
            "compare its output with plain sampling under the same seed instead"
        )

    def _choose(self, outcomes: tuple[int, ...], weights: tuple[Any, ...]) -> int:
        if not self._walking:
            raise InvalidSetting("enumerated choices need a walk; run the code inside `for _ in randomness.walk():`")
        if self._depth == len(self._wheels):
            self._wheels.append(_Wheel(outcomes, weights))
        wheel = self._wheels[self._depth]
        if wheel.outcomes != outcomes:
            raise DecodingFault(
                f"choice {self._depth} had the outcomes {wheel.outcomes}, on this repetition {outcomes}; "
                "start the body from an equal state each time"
            )
        self._depth += 1
        return wheel.outcomes[wheel.index]
