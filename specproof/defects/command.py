"""The command `specproof defects`: the kill table on the terminal, as JSON and as Markdown.

Exit status: 0 if every defect is caught by the checks that must see it and by none that must not, and no right engine
is accused; 1 otherwise; 2 if the call was wrong; 130 if it was interrupted.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from reference.errors import InvalidInput, InvalidSetting
from specproof.defects import CATALOGUE, KINDS, LEFT_OUT
from specproof.defects.kill_table import COLUMNS, KillTable, Row, kill_table
from specproof.terminal import EXIT_FAILS, EXIT_INTERRUPTED, EXIT_WRONG_CALL, check_outputs, console

MARKS = {"caught": "x", "silent": ".", "not_applicable": " "}


def defects(
    only: Annotated[list[str] | None, typer.Option(metavar="ID", help="This defect only. Repeatable.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the table as JSON.")] = None,
    markdown_file: Annotated[
        Path | None, typer.Option("--markdown", metavar="FILE", help="Write the table as Markdown.")
    ] = None,
) -> None:
    """Try the checks on known defects: which check sees which, and that none accuses a right engine.

    Exit status: 0 every defect is caught as it must be, 1 one is not, or a right engine is accused, 2 a wrong call.
    """
    out, err = console(stderr=False), console(stderr=True)
    try:
        check_outputs(json_file, markdown_file)
        _check_ids(only or [])
        table = _run(only or [], err)
    except InvalidInput as error:
        err.print(f"specproof: {error}", markup=False, soft_wrap=True)
        raise typer.Exit(EXIT_WRONG_CALL) from None
    except KeyboardInterrupt:
        err.print("specproof: interrupted; no table was written")
        raise typer.Exit(EXIT_INTERRUPTED) from None
    if json_file:
        json_file.write_text(json.dumps(to_json(table), indent=2) + "\n", encoding="utf-8")
    if markdown_file:
        markdown_file.write_text(to_markdown(table), encoding="utf-8")
    print_table(table, out)
    if not table.complete:
        raise typer.Exit(EXIT_FAILS)


def _check_ids(ids: list[str]) -> None:
    for name in ids:
        if name in LEFT_OUT:
            raise InvalidSetting(f"{name} is left out of the catalogue: {LEFT_OUT[name]}")
        if name not in CATALOGUE:
            raise InvalidSetting(f"no defect is named {name!r}; give one of {', '.join(CATALOGUE)}")


def _run(ids: list[str], err: Console) -> KillTable:
    columns = (
        SpinnerColumn(),
        TextColumn("defects"),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[doing]}"),
    )
    with Progress(*columns, console=err) as bar:
        task = bar.add_task("defects", total=None, doing="")

        def advance(done: int, total: int, name: str) -> None:
            bar.update(task, completed=done, total=total, doing=name)

        return kill_table(ids, advance)


def to_json(table: KillTable) -> dict[str, object]:
    """The table as `json.dumps` takes it."""
    return {
        "defects": [
            {
                "id": row.defect.id,
                "kind": row.defect.kind,
                "caught": row.caught,
                "caught_by": list(row.caught_by),
                "expected": sorted(row.defect.expected),
                "examples_needed": row.examples_needed,
            }
            for row in table.rows
        ],
        "false_alarms": table.false_alarms,
        "left_out": [{"id": name, "why": why} for name, why in table.left_out.items()],
    }


def to_markdown(table: KillTable) -> str:
    """The table as a page: a summary, the table, what was not as expected, and what is left out."""
    lines = [
        "# Which check sees which defect",
        "",
        _score(table),
        "",
        "x: caught; (x): caught, and need not have been; .: silent; empty: the engine cannot show what the check "
        "looks at.",
        "",
        f"| defect | kind | {' | '.join(f'`{name}`' for name in COLUMNS)} | examples |",
        f"|---|---|{'---|' * len(COLUMNS)}---|",
        *(_markdown_row(row) for row in table.rows),
    ]
    if problems := _problems(table):
        lines += ["", "## Not as expected", "", *(f"- {problem}" for problem in problems)]
    if table.left_out:
        lines += ["", "## Left out", "", *(f"- {name}: {why}" for name, why in table.left_out.items())]
    return "\n".join(lines) + "\n"


def _markdown_row(row: Row) -> str:
    cells = " | ".join(_mark(row, name) for name in COLUMNS)
    return f"| {row.defect.id} | {row.defect.kind} | {cells} | {row.examples_needed or 'none caught it'} |"


def _mark(row: Row, name: str) -> str:
    mark = MARKS[row.cells[name].status]
    return "(x)" if mark == "x" and name not in row.defect.expected else mark


def print_table(table: KillTable, out: Console) -> None:
    """Rows of marks under numbered columns, the names of the checks above them."""
    for number, name in enumerate(COLUMNS):
        out.print(Text(f"{'':<21}{'| ' * number}{name}"))
    for row in table.rows:
        marks = " ".join(_terminal_mark(row, name) for name in COLUMNS)
        verdict = "" if row.as_expected else "  NOT AS EXPECTED"
        out.print(Text(f"{row.defect.id:<6}{row.defect.kind:<15}{marks}  {row.examples_needed:>4}{verdict}"))
    out.print(Text("X: caught as it must be, x: caught, .: silent; the number: examples until the first catch"))
    for problem in _problems(table):
        out.print(Text(problem), soft_wrap=True)
    for name, why in table.left_out.items():
        out.print(Text(f"left out: {name}: {why}"), soft_wrap=True)
    out.print(Text(_score(table)), soft_wrap=True)


def _terminal_mark(row: Row, name: str) -> str:
    mark = MARKS[row.cells[name].status]
    return mark.upper() if name in row.defect.expected else mark


def _score(table: KillTable) -> str:
    caught, kinds = sum(row.caught for row in table.rows), {row.defect.kind for row in table.rows}
    accused = sum(bool(row.accused_by) for row in table.rows)
    return (
        f"{caught} of {len(table.rows)} defects are caught by every check that must see them, {accused} are caught by "
        f"one "
        f"that must not; {len(kinds)} of {len(KINDS)} kinds; {table.false_alarms} false alarms on {len(table.alarms)} "
        f"right "
        f"engines; {len(table.left_out)} defects are left out."
    )


def _problems(table: KillTable) -> list[str]:
    """What keeps the table from being complete, a sentence each."""
    problems = [f"{row.defect.id} is not caught by {', '.join(row.missed_by)}." for row in table.rows if row.missed_by]
    problems += [f"{row.defect.id} is caught by {', '.join(row.accused_by)}, which must not see it."
                 for row in table.rows if row.accused_by]  # fmt: skip
    return problems + [
        f"{name} is right, and accused by {', '.join(checks)}." for name, checks in table.alarms.items() if checks
    ]
