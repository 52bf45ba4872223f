"""What all benchmarks share: repeated runs, ratios of medians, and a description of the machine."""

from __future__ import annotations

import os
import platform
import statistics
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from mlx_impl import blas

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Timed:
    """Repeated runs of one way to do a thing.

    Attributes:
        seconds: of each repetition, in order: repetition i of all ways ran side by side.
        tokens: emitted in each.
    """

    seconds: tuple[float, ...]
    tokens: int

    @property
    def per_second(self) -> float:
        """Tokens per second, at the median."""
        return self.tokens / statistics.median(self.seconds)


def ratio(way: Timed, base: Timed) -> tuple[float, float, float]:
    """How many times faster `way` is than `base`, by tokens per second: median of the pairs, lowest and highest."""
    ratios = [
        (way.tokens / mine) / (base.tokens / other) for mine, other in zip(way.seconds, base.seconds, strict=True)
    ]
    return statistics.median(ratios), min(ratios), max(ratios)


def machine() -> str:
    """One line: processor, cores, system, versions, BLAS, and how busy the machine was."""
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if "model name" in line]
        model = names[0] if names else model
    load = ", ".join(f"{figure:.1f}" for figure in os.getloadavg())
    return (
        f"{model}, {os.cpu_count()} cores, {platform.system()} {platform.machine()}, Python "
        f"{platform.python_version()}, mlx {version('mlx')}, mlx-lm {version('mlx-lm')}, BLAS: {blas.in_use()}, load "
        f"averages {load}"
    )
