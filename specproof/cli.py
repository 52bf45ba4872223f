"""The command line: `specproof audit`, and the commands of other modules. Parses, reports, sets the exit status.

Exit status: 0 if every check that could be made holds (failures of a peer do not count), 1 if one fails,
2 if the call was wrong, 130 if interrupted.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from reference.errors import InvalidInput, InvalidSetting
from specproof import audit as auditing
from specproof.defects.command import defects
from specproof.fuzzing.command import fuzz
from specproof.generation.command import generate
from specproof.measuring.command import measure_command
from specproof.pairs import toy
from specproof.registry import ENGINES
from specproof.report import print_report, require_markdown, to_json, to_markdown
from specproof.terminal import (
    EXIT_FAILS,
    EXIT_INTERRUPTED,
    EXIT_WRONG_CALL,
    check_outputs,
    console,
    pair_of,
    subjects_of,
)

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
app.command()(defects)
app.command()(fuzz)
app.command()(generate)
app.command("measure")(measure_command)


@app.callback()
def _specproof() -> None:
    """An executable specification of speculative decoding."""


@app.command()
def audit(
    engines: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[ENGINE]...", help=f"{', '.join(ENGINES)} or module:attribute. None: all that are installed."
        ),
    ] = None,
    peer: Annotated[
        list[str] | None,
        typer.Option(metavar="ENGINE", help="Audit this engine too, but let no failure of it change the exit status."),
    ] = None,
    target: Annotated[
        Path | None, typer.Option(help="Hugging Face Llama folder to use in place of the toy target.")
    ] = None,
    draft: Annotated[Path | None, typer.Option(help="The drafter that goes with --target.")] = None,
    regime: Annotated[list[str] | None, typer.Option(help="Run the cases of this regime only. Repeatable.")] = None,
    check: Annotated[list[str] | None, typer.Option(help="Make this check only. Repeatable.")] = None,
    case: Annotated[str | None, typer.Option(metavar="ID", help="Run this case only.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer cases of every kind.")] = False,
    seed: Annotated[int, typer.Option(min=0, help="Every case derives its random numbers from it.")] = 0,
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the report as JSON.")] = None,
    markdown_file: Annotated[
        Path | None, typer.Option("--markdown", metavar="FILE", help="Write the report as Markdown.")
    ] = None,
) -> None:
    """Check speculative decoders: cache bookkeeping, output distribution, acceptance, exits.

    Exit status: 0 all checks hold (a peer's failures do not count), 1 a check fails, 2 the call was wrong.
    """
    peers = tuple(peer or ())
    out, err = console(stderr=False), console(stderr=True)
    try:
        check_outputs(json_file, markdown_file)
        if markdown_file:
            require_markdown()
        for name in set(engines or ()) & set(peers):
            raise InvalidSetting(f"{name!r} is given both as an engine and as a --peer; give it once")
        subjects = subjects_of([*(engines or ()), *peers], err)
        settings = auditing.Settings(
            pair=pair_of(target, draft, toy()),
            quick=quick,
            seed=seed,
            regimes=tuple(regime or ()),
            checks=tuple(check or ()),
            case_id=case,
            peers=frozenset(peers),
        )
        with _progress(err) as on_progress:
            report = auditing.audit(subjects, settings, on_progress)
    except InvalidInput as error:
        err.print(f"specproof: {error}", markup=False, soft_wrap=True)
        raise typer.Exit(EXIT_WRONG_CALL) from None
    except KeyboardInterrupt:
        err.print("specproof: interrupted; no report was written")
        raise typer.Exit(EXIT_INTERRUPTED) from None
    try:
        if json_file:
            json_file.write_text(json.dumps(to_json(report), indent=2, allow_nan=False) + "\n", encoding="utf-8")
        if markdown_file:
            markdown_file.write_text(to_markdown(report), encoding="utf-8")
    except OSError as error:
        err.print(f"specproof: cannot write the report ({error}); give another place", markup=False, soft_wrap=True)
        raise typer.Exit(EXIT_WRONG_CALL) from None
    print_report(report, out)
    if not report.passed:
        raise typer.Exit(EXIT_FAILS)


@contextmanager
def _progress(err: Console) -> Iterator[Callable[[auditing.Progress], None]]:
    """A bar for each engine, on the error stream."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[doing]}"),
    )
    # No refresh thread: whatever the collector frees on it, an engine may have bound to its own thread.
    with Progress(*columns, console=err, auto_refresh=False) as bars:
        tasks = {}

        def show(progress: auditing.Progress) -> None:
            if progress.engine not in tasks:
                tasks[progress.engine] = bars.add_task(progress.engine, total=progress.total, doing="")
            bars.update(tasks[progress.engine], completed=progress.done, doing=progress.doing, refresh=True)

        yield show


def main() -> None:
    """Entry point of the `specproof` command. An engine may be in a module of the folder that it is called in."""
    if "" not in sys.path:
        sys.path.insert(0, "")  # as `python -m specproof` has it
    app()
