"""Speed-up over k as a picture: measured as dots with their spread, the prediction as a line."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure


@dataclass(frozen=True)
class Curve:
    """One temperature.

    Attributes:
        temperature: of drafter and target.
        ratios: for k = 1, 2, .. times plain decoding, prompt by prompt.
        predicted: for the same k.
        mlx_lm: for some k, the median of mlx-lm's speculative path.
        adaptive: of the adaptive k, prompt by prompt.
    """

    temperature: float
    ratios: Sequence[Sequence[float]]
    predicted: Sequence[float]
    mlx_lm: Mapping[int, float]
    adaptive: Sequence[float]


def draw(curves: Sequence[Curve], file: Path) -> None:
    """Write the picture: a panel for each temperature."""
    figure = Figure(figsize=(3.4 * len(curves), 3.2), layout="constrained")
    panels = figure.subplots(1, len(curves), sharey=True, squeeze=False)[0]
    for axes, curve in zip(panels, curves, strict=True):
        ks = list(range(1, len(curve.ratios) + 1))
        middle = [statistics.median(ratios) for ratios in curve.ratios]
        below = [m - min(ratios) for m, ratios in zip(middle, curve.ratios, strict=True)]
        above = [max(ratios) - m for m, ratios in zip(middle, curve.ratios, strict=True)]
        axes.plot(ks, curve.predicted, color="C0", label="predicted")
        axes.errorbar(ks, middle, yerr=[below, above], fmt="o", color="C0", capsize=3, label="measured")
        axes.axhline(statistics.median(curve.adaptive), color="C2", linestyle="--", label="adaptive k")
        axes.plot(list(curve.mlx_lm), list(curve.mlx_lm.values()), "s", color="C1", label="mlx-lm")
        axes.axhline(1, color="grey", linewidth=0.8)
        axes.set(title=f"temperature {curve.temperature:g}", xlabel="k", xticks=ks)
    panels[0].set(ylabel="times plain decoding", ylim=(0, None))
    panels[0].legend(fontsize="small")
    figure.savefig(file, dpi=100)
