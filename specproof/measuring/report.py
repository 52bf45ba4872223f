"""What was measured, as text and as JSON. Undefined figures are "-" and null."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version

from specproof.measuring.figures import CONFIDENCE, Figures, Position, Proposals, Turn, figures, recoveries
from specproof.measuring.ordering import ORDER, Comparison, Step
from specproof.measuring.turns import Plan, Subject

LAG_ROUNDS = (0, 1, 5, 10, 25, 50, 100, 200)
"""Rounds done, at which the table shows the lag; and at the last."""
UNDEFINED = "-"
THEORY_OF = ("positions of the text, acceptance", "blocks, accepted proposals")
"""What the two comparisons of `Measurement.theory` are about."""


@dataclass(frozen=True)
class Column:
    """One subject with its turns and figures."""

    subject: Subject
    turns: Sequence[Turn]
    figures: Figures

    @property
    def closed_forms(self) -> list[float]:
        """Mean sum_x min(p, q) over the tested positions, turn by turn, where there were any."""
        each = (figures([turn], self.figures.num_draft_tokens).tested.sum_min for turn in self.turns)
        return [value for value in each if value is not None]


@dataclass(frozen=True)
class Measurement:
    """All that one call of the command measured.

    Attributes:
        plan: what the subjects ran.
        columns: in the order of the table.
        proposals: with a defect, how often it proposed otherwise than the right engine: rule -> count. Only where both
            have the same text (`Turn.as_plain` says so).
        theory: with several rules, what they expect of the same positions, and of the same blocks.
        order: with several rules, the measured differences.
    """

    plan: Plan
    columns: Sequence[Column]
    proposals: Mapping[str, Proposals] = field(default_factory=dict)
    theory: Sequence[Comparison] = ()
    order: Sequence[Step] = ()


def to_text(measurement: Measurement) -> str:
    """The table: a row for each figure, a column for each subject; then the sentences."""
    columns = measurement.columns
    rows = [("", [column.subject.label for column in columns])]
    rows += _rows(measurement)
    first = max(len(name) for name, _ in rows)
    widths = [max(len(cells[i]) for _, cells in rows) for i in range(len(columns))]
    table = ["  ".join([name.ljust(first), *map(str.ljust, cells, widths)]).rstrip() for name, cells in rows]
    sentences = list(_sentences(measurement))
    return "\n".join([_heading(measurement.plan), "", *table, *([""] if sentences else []), *sentences])


def _heading(plan: Plan) -> str:
    seeds = len(plan.turns) // len(plan.prompts)
    return (
        f"{plan.pair.target.parent.name}/{plan.pair.target.name} with {plan.pair.draft.name}: k = "
        f"{plan.num_draft_tokens}, temperature {plan.sampling.temperature:g}, {len(plan.prompts)} prompts x {seeds} "
        f"{'seed' if seeds == 1 else 'seeds'}, {plan.max_tokens} tokens each; intervals of {CONFIDENCE:.0%}"
    )


_Row = tuple[str, list[str]]


def _rows(measurement: Measurement) -> Iterator[_Row]:
    columns = measurement.columns
    every = [column.figures for column in columns]
    for place in range(measurement.plan.num_draft_tokens):
        yield from _position_rows(f"position {place}: reached", [found.positions[place] for found in every])
    yield from _position_rows("all positions: tested", [found.tested for found in every])
    yield "  sum_min, single turns", [_span(column.closed_forms) for column in columns]
    yield "tokens per round", [_number(found.tokens_per_round) for found in every]
    yield "  by the formula", [_number(found.tokens_per_round_formula) for found in every]
    yield from _lag_rows([found.lag for found in every])
    yield (
        "  rounds that caught up",
        [str(recoveries(column.turns)) if column.figures.lag else UNDEFINED for column in columns],
    )
    yield "tokens per second", [_number(found.tokens_per_second, 1) for found in every]
    if any(found.as_plain[1] for found in every):
        yield "text as without a drafter", [_as_plain(found) for found in every]


def _position_rows(name: str, positions: Sequence[Position]) -> Iterator[_Row]:
    yield name, [str(position.reached) for position in positions]
    yield "  accepted of these", [_rate(position) for position in positions]
    yield "  sum_min, sum_prod", [_sums(position) for position in positions]


def _lag_rows(lags: Sequence[Sequence[float]]) -> Iterator[_Row]:
    for done in (done for done in LAG_ROUNDS if done < max(map(len, lags))):
        yield f"rows behind after round {done}", [_number(lag[done] if done < len(lag) else None, 1) for lag in lags]
    yield "rows behind, at most", [_number(max(lag, default=None), 1) for lag in lags]


def _as_plain(found: Figures) -> str:
    equal, compared = found.as_plain
    return f"{equal} of {compared} turns" if compared else UNDEFINED


def _number(value: float | None, digits: int = 3) -> str:
    return UNDEFINED if value is None else f"{value:.{digits}f}"


def _rate(position: Position) -> str:
    if position.ci is None:
        return UNDEFINED
    return f"{_number(position.rate)} [{position.ci[0]:.3f}, {position.ci[1]:.3f}]"


def _sums(position: Position) -> str:
    return f"{_number(position.sum_min)}, {_number(position.sum_prod)}"


def _span(values: Sequence[float]) -> str:
    return f"{min(values):.3f} to {max(values):.3f}" if values else UNDEFINED


def _sentences(measurement: Measurement) -> Iterator[str]:
    for rule, found in measurement.proposals.items():
        yield (
            f"{rule}: of {found.compared} rounds that began at the same place of the same text, the defect proposed "
            f"other tokens in {found.different}"
        )
    for comparison, places in zip(measurement.theory, THEORY_OF, strict=False):
        if comparison.places:
            holds = "holds at every one" if not comparison.violations else f"is VIOLATED at {comparison.violations}"
            order = " <= ".join(f"{rule} {mean:.3f}" for rule, mean in comparison.means.items())
            yield f"theory, on the same {comparison.places} {places}: {order}; {holds}"
    for step in measurement.order:
        yield f"measured, accepted proposals per round: {_step(step)}"


def _step(step: Step) -> str:
    p = UNDEFINED if step.p_value is None else f"{step.p_value:.2g}"
    return f"{step.more} - {step.less} = {step.difference:+.3f} (p = {p}), {step.verdict}"


def to_json(measurement: Measurement) -> dict[str, object]:
    """The first column's figures, the other columns in the same form under `compared`, and the settings."""
    plan = measurement.plan
    first, *others = [_column_json(column) for column in measurement.columns]
    return {
        **first,
        "compared": others,
        "proposals": {
            rule: {"compared": found.compared, "different": found.different}
            for rule, found in measurement.proposals.items()
        },
        "ordering": {
            "theory": [
                {"means": found.means, "places": found.places, "violations": found.violations}
                for found in measurement.theory
            ],
            "measured": [vars(step) for step in measurement.order],
        },
        "settings": {
            "target": str(plan.pair.target),
            "draft": str(plan.pair.draft),
            "temperature": plan.sampling.temperature,
            "num_draft_tokens": plan.num_draft_tokens,
            "tokens": plan.max_tokens,
            "prompts": [len(prompt) for prompt in plan.prompts],
            "seeds": list(plan.seeds),
            "confidence": CONFIDENCE,
            "specproof": version("specproof"),
        },
    }


def _column_json(column: Column) -> dict[str, object]:
    found = column.figures
    return {
        "engine": column.subject.engine.name,
        "version": column.subject.engine.version,
        "rule": column.subject.rule,
        "defect": column.subject.defect,
        "positions": [_position_json(position) for position in found.positions],
        "mean_acceptance": found.tested.rate,
        "mean_acceptance_ci": found.tested.ci,
        "closed_form_sum_min": found.tested.sum_min,
        "closed_form_sum_prod": found.tested.sum_prod,
        "tokens_per_round": found.tokens_per_round,
        "tokens_per_round_formula": found.tokens_per_round_formula,
        "rounds": found.rounds,
        "full_rounds": found.full_rounds,
        "lag": list(found.lag),
        "tokens_per_second": found.tokens_per_second,
        "as_plain": {"equal": found.as_plain[0], "compared": found.as_plain[1]},
        "turns": [_turn_json(turn, found.num_draft_tokens) for turn in column.turns],
    }


def _position_json(position: Position) -> dict[str, object]:
    return {
        "reached": position.reached,
        "accepted": position.accepted,
        "rate": position.rate,
        "ci": position.ci,
        "sum_min": position.sum_min,
        "sum_prod": position.sum_prod,
    }


def _turn_json(turn: Turn, num_draft_tokens: int) -> dict[str, object]:
    tested = figures([turn], num_draft_tokens).tested
    return {
        "prompt": turn.prompt,
        "seed": turn.seed,
        "emitted": len(turn.emitted),
        "rounds": len(turn.rounds),
        "mean_acceptance": tested.rate,
        "closed_form_sum_min": tested.sum_min,
        "lag": list(turn.lags),
        "tokens_per_second": turn.tokens_per_second,
        "as_plain": turn.as_plain,
    }


def compared_rules(columns: Sequence[Column]) -> dict[str, Column]:
    """The right engine's columns of rules that have a place in the theoretical order; none if there are not two."""
    found = {column.subject.rule: column for column in columns if column.subject.defect is None}
    ordered = {rule: found[rule] for rule in ORDER if rule in found}
    return ordered if len(ordered) > 1 else {}
