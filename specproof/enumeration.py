"""Every outcome of a decoder's random choices, with its weight: how the law of the decoder that ships is written down.

It stands where `reference.randomness` draws, and knows choices and their probabilities; what is done with the
outcomes is left to `exact` and `exact_law`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from reference.errors import DecodingFault, InvalidSetting
from reference.values import Probabilities


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
