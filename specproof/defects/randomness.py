"""Defects of random numbers: used twice, or not the turn's own. `exact_law` replaces them, and sees none of these."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reference.randomness import SeededRandomness
from specproof.adapters.reference import ReferenceEngine
from specproof.defects.mutations import oracle_defect

Floats = NDArray[np.float64]


class ReusesDraftNoise(SeededRandomness):
    """D89: the number that drew a proposal draws its replacement, too."""

    _drawn = 0.5
    _rejected = False

    def bernoulli(self, probability: Any) -> bool:
        """As the oracle's; notes a rejection."""
        accepted = super().bernoulli(probability)
        self._rejected = not accepted
        return accepted

    def categorical(self, probabilities: Floats) -> int:
        """With the last draw's number after a rejection, else with a fresh one."""
        number = self._drawn if self._rejected else self.uniform()
        self._drawn, self._rejected = number, False
        return SeededRandomness(0, lambda: number).categorical(probabilities)


class OneCoinForBoth(SeededRandomness):
    """D90: the number that decided a coin makes the draw after it."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._last: list[float] = []
        fresh = self.uniform
        self.uniform = lambda: self._last.pop() if self._last else fresh()

    def bernoulli(self, probability: Any) -> bool:
        """As the oracle's; keeps its number."""
        self._last.clear()
        number = self.uniform()
        self._last.append(number)
        return bool(number < probability)


class GlobalCoins(SeededRandomness):
    """D91: coins come from a generator that all turns share."""

    def __init__(self, seed: int, shared: Callable[[], float]) -> None:
        super().__init__(seed)
        self._shared = shared

    def bernoulli(self, probability: Any) -> bool:
        """Whatever number comes next."""
        return bool(self._shared() < probability)


def _global_coins() -> ReferenceEngine:
    shared = np.random.default_rng(0).random
    return ReferenceEngine("D91", randomness_class=lambda seed: GlobalCoins(seed, shared))


def _step_counter() -> ReferenceEngine:
    steps = count()
    return ReferenceEngine("D92", randomness_class=lambda seed: SeededRandomness(next(steps)))


RULE = (
    "target_cache_offset draft_cache_offset cache_content exit_state emitted_block greedy_parity honest_q "
    "processor_history "
    "counters log_probabilities exact_law bad_input"
)
"""What does not depend on which number makes which choice."""

DEFECTS = (
    oracle_defect(
        "D89", "randomness", "vLLM", "vllm-project/vllm#47386",
        "Proposal and recovery draw share their noise, so that what drew a rejected token also draws its replacement.",
        expected="randomness", silent=RULE, randomness_class=ReusesDraftNoise,
    ),
    oracle_defect(
        "D90", "randomness", "SGLang", "sgl-project/sglang#7231",
        "The coin of the acceptance walk makes the final draw as well.",
        expected="randomness", silent=RULE, randomness_class=OneCoinForBoth,
    ),
    oracle_defect(
        "D91", "randomness", "vLLM", "vllm-project/vllm#6038",
        "The acceptance coins ignore the request's seed.",
        expected="randomness", silent=f"{RULE} output_distribution acceptance_rate", make=_global_coins,
    ),
    oracle_defect(
        "D92", "randomness", "TensorRT-LLM", "NVIDIA/TensorRT-LLM#17599",
        "The seed is a counter of the engine, and the request's is ignored.",
        expected="randomness", silent=RULE, make=_step_counter,
    ),
)  # fmt: skip
"""In the order of their ids."""
