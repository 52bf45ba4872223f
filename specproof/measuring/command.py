"""The command `specproof measure`: what a pair's proposals are worth, by position; with a defect, before and after.

Exit status: 0 if it was measured, 2 if the call was wrong or the engine raised, 130 if it was interrupted.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from reference.errors import InvalidInput, InvalidSetting
from reference.values import SamplingParams
from specproof.defects import CATALOGUE, LEFT_OUT
from specproof.engine import Engine, Floats
from specproof.held_out import held_out_prompts
from specproof.measuring.figures import Proposals, compare_proposals, figures
from specproof.measuring.ordering import Comparison, Step, compare_blocks, compare_positions, measured_order
from specproof.measuring.picture import draw, require_picture
from specproof.measuring.prompts import random_prompts, read_prompts
from specproof.measuring.report import Column, Measurement, compared_rules, to_json, to_text
from specproof.measuring.turns import EngineRaised, Plan, Subject, Tokens, distributions, measure
from specproof.oracle import oracle_of
from specproof.pairs import Pair, trained
from specproof.registry import ENGINES, load_engine
from specproof.terminal import EXIT_INTERRUPTED, EXIT_WRONG_CALL, check_outputs, console, pair_of

HELD_OUT_PROMPTS, HELD_OUT_TOKENS = 4, 64
"""How many prompts the trained pair is measured with, and their length."""
PLACES = 64
"""Tokens of each text at which the closed forms of several rules are compared."""


def measure_command(
    target: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Hugging Face Llama folder. None: the pair of the package.")
    ] = None,
    draft: Annotated[Path | None, typer.Option(metavar="DIR", help="The drafter that goes with --target.")] = None,
    engine: Annotated[
        str | None,
        typer.Option(help=f"{', '.join(ENGINES)} or module:attribute. None: mlx_impl if it is installed."),
    ] = None,
    rule: Annotated[
        list[str] | None,
        typer.Option(
            help="Acceptance rule. Repeatable: rules are compared. None: greedy at temperature 0, else rejection."
        ),
    ] = None,
    temperature: Annotated[float, typer.Option(help="0 decodes greedily.")] = 0.7,
    k: Annotated[int, typer.Option("--k", min=1, help="Proposals in a round.")] = 4,
    tokens: Annotated[int, typer.Option(min=2, help="Tokens to decode after every prompt.")] = 200,
    prompts: Annotated[
        Path | None, typer.Option(metavar="FILE", help="One prompt a line, as token ids or as text.")
    ] = None,
    seed: Annotated[
        list[int] | None, typer.Option(min=0, help="Run every prompt with this seed. Repeatable. None: 0 and 1.")
    ] = None,
    defect: Annotated[
        str | None, typer.Option(metavar="ID", help="A defect of the catalogue: measured beside the right engine.")
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the figures as JSON.")] = None,
    picture: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw acceptance and lag: a .png or .svg file.")
    ] = None,
) -> None:
    """Measure a pair: acceptance by position against its closed forms, tokens per round, the drafter's lag, speed.

    Exit status: 0 measured, 2 the call was wrong or the engine raised, 130 interrupted.
    """
    out, err = console(stderr=False), console(stderr=True)
    try:
        check_outputs(json_file, picture)
        if picture:
            require_picture(picture)
        sampling = SamplingParams(temperature=temperature)
        rules = list(dict.fromkeys(rule or ["greedy" if temperature == 0 else "rejection"]))
        subjects = subjects_of(engine, defect, rules)
        pair = pair_of(target, draft, trained())
        plan = Plan(pair, sampling, k, tokens, prompts_of(prompts, pair), tuple(dict.fromkeys(seed or (0, 1))))
        with _progress(err, len(plan.turns) * len(subjects)) as on_turn:
            turns = measure(subjects, plan, on_turn)
        columns = [Column(subject, turns[subject.label], figures(turns[subject.label], k)) for subject in subjects]
        measurement = compared(plan, columns)
        if json_file:
            text = json.dumps(to_json(measurement), indent=2, allow_nan=False)
            json_file.write_text(text + "\n", encoding="utf-8")
        if picture:
            draw(measurement, picture)
    except (InvalidInput, EngineRaised, OSError) as error:
        err.print(f"specproof: {error}", markup=False, soft_wrap=True)
        raise typer.Exit(EXIT_WRONG_CALL) from None
    except KeyboardInterrupt:
        err.print("specproof: interrupted; nothing was written")
        raise typer.Exit(EXIT_INTERRUPTED) from None
    out.print(to_text(measurement), markup=False, soft_wrap=True)


def prompts_of(file: Path | None, pair: Pair) -> tuple[Tokens, ...]:
    """Those of the file; without one, text that the trained pair has not seen, and random tokens for any other."""
    vocab_size = oracle_of(pair.target_spec()).vocab_size
    if file is not None:
        return read_prompts(file, pair.target, vocab_size)
    if pair == trained():
        return tuple(map(tuple, held_out_prompts(HELD_OUT_PROMPTS, HELD_OUT_TOKENS, seed=0)))
    return random_prompts(vocab_size)


def subjects_of(engine: str | None, defect: str | None, rules: Sequence[str]) -> list[Subject]:
    """Every rule on the engine; with a defect, on the wrong engine and then on the right one."""
    if defect is None:
        right = load_engine(engine or default_engine())
        subjects = [Subject(_label(right.name, rule, rules), right, rule) for rule in rules]
    else:
        wrong, right = _defect_engines(defect, engine)
        subjects = [
            Subject(_label(name, rule, rules), made, rule, known)
            for rule in rules
            for name, made, known in ((defect, wrong, defect), (right.name, right, None))
        ]
    for subject in subjects:
        _check_subject(subject)
    return subjects


def _label(name: str, rule: str, rules: Sequence[str]) -> str:
    return name if len(rules) == 1 else f"{name} {rule}"


def default_engine() -> str:
    """The one whose speed means something, if it can run here."""
    return "mlx_impl" if find_spec("mlx") is not None else "reference"


def _defect_engines(id_: str, engine: str | None) -> tuple[Engine, Engine]:
    """The engine with a defect, and the one without it: on MLX where it is known there, else on the oracle."""
    if id_ in LEFT_OUT:
        raise InvalidSetting(f"{id_} is left out of the catalogue: {LEFT_OUT[id_]}")
    if id_ not in CATALOGUE:
        raise InvalidSetting(f"no defect is named {id_!r}; give one of {', '.join(CATALOGUE)}")
    if (engine or default_engine()) == "mlx_impl":
        right = load_engine("mlx_impl")
        from specproof.defects.mlx_drafters import DRAFTERS, defective  # mlx is there

        if id_ in DRAFTERS:
            return defective(id_), right
    if engine not in (None, "reference"):
        raise InvalidSetting(f"{id_} is not known on engine {engine!r}; give --engine reference, or none")
    return CATALOGUE[id_].make(), CATALOGUE[id_].right()


def _check_subject(subject: Subject) -> None:
    """Refuse what cannot be measured."""
    known = subject.engine.capabilities
    if subject.rule not in known.rules:
        raise InvalidSetting(
            f"{subject.engine.name} does not know rule {subject.rule!r}; give one of {', '.join(sorted(known.rules))}"
        )
    if not known.rounds or "draft_model" not in known.drafters:
        raise InvalidSetting(f"{subject.engine.name} does not show what a draft model proposed; it cannot be measured")


def compared(plan: Plan, columns: Sequence[Column]) -> Measurement:
    """The columns, and what follows from having several."""
    rules = compared_rules(columns)
    return Measurement(plan, columns, _proposals(columns), list(_theory(plan, rules)), _order(plan, rules))


def _proposals(columns: Sequence[Column]) -> dict[str, Proposals]:
    """For each rule, the defect's proposals against the right engine's, where both have the same text."""
    by_kind = {(column.subject.rule, column.subject.defect is None): column for column in columns}
    return {
        rule: compare_proposals(column.turns, by_kind[rule, True].turns)
        for (rule, right), column in by_kind.items()
        if not right and column.figures.as_plain[1]
    }


def _theory(plan: Plan, rules: dict[str, Column]) -> Iterator[Comparison]:
    """What the rules expect at the same positions, by the oracle's p and q, and of the same blocks."""
    if not rules:
        return
    some = next(iter(rules.values()))
    yield compare_positions(
        pair
        for turn in some.turns
        if turn.seed == plan.seeds[0]
        for pair in zip(*_along(plan, some.subject, turn.prompt, turn.emitted[:PLACES]), strict=True)
    )
    yield compare_blocks(chain.from_iterable(turn.rounds for column in rules.values() for turn in column.turns))


def _along(plan: Plan, subject: Subject, prompt: int, emitted: Tokens) -> tuple[list[Floats], list[Floats]]:
    """p and q [V] of the first tokens of a text."""
    case = plan.case(subject, prompt, plan.seeds[0])
    return distributions(case, [*case.prompt, *emitted], len(case.prompt), len(emitted))


def _order(plan: Plan, rules: dict[str, Column]) -> list[Step]:
    """The measured differences between neighbours in the order, over the rounds that proposed k tokens."""
    prompts = range(len(plan.prompts))
    return measured_order(
        {
            rule: [_accepted(column, prompt, plan.num_draft_tokens) for prompt in prompts]
            for rule, column in rules.items()
        }
    )


def _accepted(column: Column, prompt: int, k: int) -> list[int]:
    """Accepted proposals of each full round behind a prompt."""
    rounds = chain.from_iterable(turn.rounds for turn in column.turns if turn.prompt == prompt)
    return [done.num_accepted for done in rounds if len(done.drafted) == k]


@contextmanager
def _progress(err: Console, total: int) -> Iterator[Callable[[str], None]]:
    """A bar on the error stream."""
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=err, auto_refresh=False) as bars:
        task = bars.add_task("", total=total)
        begun = iter(range(total))

        def on_turn(doing: str) -> None:
            bars.update(task, completed=next(begun), description=doing, refresh=True)

        yield on_turn
        bars.update(task, completed=total, description="", refresh=True)
