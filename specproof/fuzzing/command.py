"""The command `specproof fuzz`: fuzzes engines for some minutes, or replays a file that this found.

Exit status: 0 if nothing was found (or the file holds), 1 if something was (or it still fails), 2 if the call was
wrong, 130 if it was interrupted, after what had been found by then.
"""

from __future__ import annotations

import json
import os
import secrets
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from reference.errors import InvalidInput, InvalidSetting
from specproof.engine import Engine
from specproof.fuzzing.bug_report import bug_report
from specproof.fuzzing.campaign import Campaign, Effort, Finding
from specproof.fuzzing.reproduction import Reproduction, load
from specproof.registry import ENGINES, load_engine
from specproof.terminal import EXIT_FAILS, EXIT_INTERRUPTED, EXIT_WRONG_CALL, check_outputs, console, subjects_of


def fuzz(
    engine: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ENGINE",
            help=f"{', '.join(ENGINES)} or module:attribute. Repeatable. None: all that are installed.",
        ),
    ] = None,
    minutes: Annotated[
        float, typer.Option(help="How long, over all engines; shrinking what was found may take one more.")
    ] = 1.0,
    seed: Annotated[int | None, typer.Option(min=0, help="Everything is drawn from it. None: a new one.")] = None,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where to save what is found.")] = Path("found"),
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write a summary as JSON.")] = None,
    replay: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Run again what was found, on its engine or on --engine.")
    ] = None,
) -> None:
    """Try random cases on decoders until the time is up; what fails is made small, reported and saved.

    Exit status: 0 nothing found, 1 something found, 2 the call was wrong, 130 interrupted.
    """
    out_console, err = console(stderr=False), console(stderr=True)
    try:
        if replay is not None:
            failed = _replay(replay, engine or [], out_console)
        else:
            check_outputs(json_file, None)
            failed = _fuzz(subjects_of(engine or [], err), minutes, seed, out, json_file, out_console, err)
    except InvalidInput as error:
        err.print(f"specproof: {error}", markup=False, soft_wrap=True)
        raise typer.Exit(EXIT_WRONG_CALL) from None
    except KeyboardInterrupt:
        err.print("specproof: interrupted")
        raise typer.Exit(EXIT_INTERRUPTED) from None
    if failed:
        raise typer.Exit(EXIT_FAILS)


def _fuzz(
    engines: dict[str, Engine], minutes: float, seed: int | None, out: Path, json_file: Path | None,
    out_console: Console, err: Console,
) -> bool:  # fmt: skip
    """Run a campaign, reporting as it goes; whether anything was found."""
    if not 0 < minutes < float("inf"):
        raise InvalidSetting(f"--minutes is {minutes:g}; give a finite number above 0")
    _check_folder(out)
    seed = secrets.randbelow(2**32) if seed is None else seed
    err.print(f"specproof: fuzzing {', '.join(engines)} for {minutes:g} min, --seed {seed}", markup=False)
    found: list[tuple[Finding, Path]] = []
    with Progress(*_COLUMNS, console=err, auto_refresh=False) as bars:
        deadline = time.monotonic() + minutes * 60
        show = _Bars(bars, engines, minutes * 60).show
        campaign = Campaign(engines, seed, lambda efforts: time.monotonic() > deadline, show)
        for finding in campaign.findings():
            file = Reproduction.of(finding).save(out)
            found.append((finding, file))
            out_console.print(bug_report(finding, file) + "\n", markup=False, soft_wrap=True)
    for name, effort in campaign.efforts.items():
        count = sum(finding.engine == name for finding, _ in found)
        out_console.print(_summary(name, effort, count), markup=False, soft_wrap=True)
    if json_file:
        summary = _to_json(campaign, found, minutes)
        json_file.write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    if campaign.interrupted:
        err.print("specproof: interrupted")
        raise typer.Exit(EXIT_INTERRUPTED)
    return bool(found)


def _check_folder(out: Path) -> None:
    """Refuse before the work what would fail after it."""
    if out.exists() and not out.is_dir():
        raise InvalidSetting(f"cannot save findings in {out}: it is a file; give a folder")
    nearest = next(folder for folder in (out, *out.absolute().parents) if folder.exists())
    if not os.access(nearest, os.W_OK):
        raise InvalidSetting(f"cannot save findings in {out}: permission denied; give another folder")


_COLUMNS = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TextColumn("{task.fields[doing]}"))


class _Bars:
    """A bar for each engine, which fills with the time of the whole campaign."""

    def __init__(self, bars: Progress, engines: dict[str, Engine], seconds: float) -> None:
        self._bars = bars
        self._began = time.monotonic()
        self._tasks = {name: bars.add_task(name, total=seconds, doing="") for name in engines}

    def show(self, name: str, effort: Effort) -> None:
        """Draw the bar of an engine anew."""
        elapsed = time.monotonic() - self._began
        self._bars.update(self._tasks[name], completed=elapsed, doing=str(effort), refresh=True)


def _summary(name: str, effort: Effort, found: int) -> str:
    return f"{name}: {found or 'nothing'} found in {effort}"


def _to_json(campaign: Campaign, found: list[tuple[Finding, Path]], minutes: float) -> dict[str, object]:
    return {
        "seed": campaign.seed,
        "minutes": minutes,
        "interrupted": campaign.interrupted,
        "engines": {
            name: {
                "version": campaign.engines[name].version,
                "spent": dict(effort.spent),
                "found": [_finding_json(finding, file) for finding, file in found if finding.engine == name],
            }
            for name, effort in campaign.efforts.items()
        },
    }


def _finding_json(finding: Finding, file: Path) -> dict[str, object]:
    return {
        "invariant": finding.violation.invariant,
        "message": finding.violation.message,
        "round": finding.violation.round,
        "matches": [known.id for known in finding.known],
        "also_broken": list(finding.also),
        "kind": finding.kind,
        "examples_needed": finding.examples,
        "seconds_needed": round(finding.seconds, 2),
        "shrunk": finding.shrunk,
        "file": str(file),
        "report": bug_report(finding, file),
    }


def _replay(file: Path, engines: list[str], out_console: Console) -> bool:
    """Run what a file holds again; whether it still fails on any of the engines."""
    reproduction = load(file)
    failed = False
    for name in engines or [reproduction.engine]:
        violation = reproduction.replay(load_engine(name))
        verdict = "holds now" if violation is None else f"still fails: {violation.message}"
        out_console.print(f"{name} {reproduction.invariant} {verdict}", markup=False, soft_wrap=True)
        failed |= violation is not None
    return failed
