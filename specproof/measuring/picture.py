"""What was measured, as a picture: acceptance by position with its closed forms, and the drafter's lag over rounds."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from reference.errors import InvalidSetting
from specproof.errors import MissingExtra
from specproof.measuring.report import Column, Measurement

KINDS = (".png", ".svg")
MARKS = {"sum_min": "_", "sum_prod": "x"}
LABELS = {"sum_min": "sum_x min(p, q)", "sum_prod": "sum_x p q"}


def require_picture(file: Path) -> None:
    """Check that `draw` can work, before anything is measured.

    Raises:
        InvalidSetting: it is no kind of picture.
        MissingExtra: matplotlib is not installed.
    """
    if file.suffix.lower() not in KINDS:
        raise InvalidSetting(f"cannot draw {file}; give a name that ends in {' or '.join(KINDS)}")
    if importlib.util.find_spec("matplotlib") is None:
        raise MissingExtra("a picture needs matplotlib, which is not installed; pip install 'specproof[report]'")


def draw(measurement: Measurement, file: Path) -> None:
    """Write the picture; what is undefined is left out of it."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    for number, column in enumerate(measurement.columns):
        _draw_rates(left, column, f"C{number}", (number - (len(measurement.columns) - 1) / 2) * 0.15)
        if column.figures.lag:
            right.plot(column.figures.lag, color=f"C{number}", label=column.subject.label)
    plan = measurement.plan
    left.set(ylim=(-0.02, 1.02), xlabel="position in the block", xticks=range(plan.num_draft_tokens),
             title=f"acceptance, given the position was reached\nk = {plan.num_draft_tokens}, temperature "
                   f"{plan.sampling.temperature:g}")  # fmt: skip
    for name, mark in MARKS.items():
        left.plot([], [], mark, color="grey", label=LABELS[name])
    left.legend(fontsize="small")
    right.set(xlabel="rounds done", ylabel="rows", title="how far the drafter's cache is behind the history")
    right.set_ylim(bottom=min(-0.5, right.get_ylim()[0]))
    figure.savefig(file, dpi=150)


def _draw_rates(axes: Any, column: Column, colour: str, shift: float) -> None:
    """Rates with their intervals as dots with bars, closed forms as dashes and crosses."""
    defined = [
        (place + shift, position, position.rate, position.ci)
        for place, position in enumerate(column.figures.positions)
        if position.rate is not None and position.ci is not None
    ]
    rates = [rate for _, _, rate, _ in defined]
    bars = [[rate - ends[0] for _, _, rate, ends in defined], [ends[1] - rate for _, _, rate, ends in defined]]
    axes.errorbar([x for x, *_ in defined], rates, yerr=bars, fmt="o", color=colour, capsize=3,
                  label=column.subject.label)  # fmt: skip
    for name, mark in MARKS.items():
        shown = [(x, getattr(position, name)) for x, position, *_ in defined if getattr(position, name) is not None]
        axes.plot([x for x, _ in shown], [y for _, y in shown], mark, color=colour, markersize=10)
