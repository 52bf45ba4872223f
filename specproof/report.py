"""An `AuditReport` as JSON, as Markdown and on a terminal. Decides nothing; only shows."""

from __future__ import annotations

import importlib.util
import math
import platform
import textwrap
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from importlib.resources import files

from rich.console import Console
from rich.table import Table
from rich.text import Text

from specproof.audit import CHECKS, AuditReport, CheckReport, EngineReport, Witness
from specproof.errors import MissingExtra
from specproof.laws import LAWS

TEMPLATE = "audit.md.j2"


def to_json(report: AuditReport) -> dict[str, object]:
    """The report as `json.dumps` takes it; non-finite numbers become strings, since JSON has none."""
    settings = report.settings
    return {
        "engines": {
            name: {
                "version": engine.version,
                "checks": {check: _check_json(found) for check, found in engine.checks.items()},
            }
            for name, engine in report.engines.items()
        },
        "seed": settings.seed,
        "settings": {
            "target": str(settings.pair.target),
            "draft": str(settings.pair.draft),
            "regimes": list(settings.regimes) or "all",
            "checks": list(settings.checks) or "all",
            "case": settings.case_id,
            "quick": settings.quick,
            "peers": sorted(settings.peers),
            "specproof": version("specproof"),
            "python": platform.python_version(),
            "platform": f"{platform.system()} {platform.machine()}",
        },
    }


def _check_json(check: CheckReport) -> dict[str, object]:
    return {
        "status": check.result.status,
        "cases": check.result.cases,
        "not_shown": list(check.result.hidden),
        "note": check.result.note,
        "witness": None if check.witness is None else _witness_json(check.witness),
    }


def _witness_json(witness: Witness) -> dict[str, object]:
    violation, case = witness.violation, witness.case
    return {
        "case": violation.case_id,
        "regime": None if case is None else case.regime,
        "rule": None if case is None else case.rule,
        "num_draft_tokens": None if case is None else case.num_draft_tokens,
        "prompt": None if case is None else list(case.prompt),
        "round": violation.round,
        "message": violation.message,
        "numbers": _plain(violation.numbers),
        "reproduce": witness.reproduce,
        "further_violations": witness.further,
    }


def _plain(value: object) -> object:
    """The value with containers JSON knows and without non-finite numbers."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def require_markdown() -> None:
    """Check that `to_markdown` can work, before an audit is spent on it.

    Raises:
        MissingExtra: Jinja is not installed.
    """
    if importlib.util.find_spec("jinja2") is None:
        raise MissingExtra("a Markdown report needs jinja2, which is not installed; pip install 'specproof[report]'")


def to_markdown(report: AuditReport) -> str:
    """The report as a Markdown page, from `templates/audit.md.j2`."""
    require_markdown()
    import jinja2

    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True,
                                     undefined=jinja2.StrictUndefined)  # fmt: skip
    template = environment.from_string(files("specproof").joinpath("templates", TEMPLATE).read_text(encoding="utf-8"))
    helpers = {
        "cell": cell,
        "place": place,
        "summary": summary,
        "sentence": sentence,
        "check_row": check_row,
        "notes": notes,
    }
    return template.render(report=report, checks=CHECKS, names=check_names(report), **helpers)


def sentence(text: str) -> str:
    """A statement as a sentence of its own; one that begins with a formula keeps its case."""
    first = text[:1].upper() if text[:2].isalpha() and text.split()[0].isalpha() else text[:1]
    return f"{first}{text[1:].rstrip('.')}."


def check_row(name: str) -> str:
    """A check, what it means and what it cannot see, as a row of a Markdown table."""
    check = CHECKS[name]
    return f"| `{name}` | {sentence(check.statement)} | {sentence(check.blind_spot)} |"


def check_names(report: AuditReport) -> list[str]:
    """The rows of the table: every check of any engine, in the catalogue's order."""
    found = {name for engine in report.engines.values() for name in engine.checks}
    return [name for name in CHECKS if name in found]


def cell(check: CheckReport) -> str:
    """One cell of the table."""
    result = check.result
    match result.status:
        case "holds":
            part = " in part" if result.hidden else ""
            return f"holds{part} ({_count(result.cases, 'case')})"
        case "fails":
            return f"FAILS ({check.failed_cases} of {result.cases})"
        case "not_observable":
            return "not observable"


def place(witness: Witness) -> str:
    """Where a violation was seen: regime, round, settings and prompt, in one line."""
    case, where = witness.case, []
    if case is not None:
        where += [f"regime {case.regime}", f"rule {case.rule}", f"k = {case.num_draft_tokens}"]
        where += [f"temperature {case.sampling.temperature:g}", f"prompt {' '.join(map(str, case.prompt))}"]
    if witness.violation.round is not None:
        where.append(f"round {witness.violation.round}")
    return ", ".join(where) or witness.violation.case_id


def summary(engine: EngineReport, report: AuditReport) -> str:
    """What became of one engine, in one sentence."""
    title = f"{engine.name} {engine.version}" + (" (peer)" if engine.name in report.settings.peers else "")
    hidden = [name for name, check in engine.checks.items() if check.result.status == "not_observable"]
    observed = len(engine.checks) - len(hidden)
    failed = engine.failed
    verdict = f"fails {len(failed)} of {_count(observed, 'check')}: {', '.join(failed)}" if failed else (
        f"holds {_count(observed, 'check')}" if observed else "shows nothing to check")  # fmt: skip
    return f"{title} {verdict}" + (f"; not observable: {', '.join(hidden)}" if hidden else "")


def notes(report: AuditReport) -> list[str]:
    """What must be known to weigh the results: how much a law could have seen, and what an engine did not show."""
    lines = []
    for engine in report.engines.values():
        for name, check in engine.checks.items():
            if check.result.hidden:
                lines.append(f"{engine.name} {name}: not shown: {', '.join(check.result.hidden)}")
            elif check.result.note and name in LAWS:
                lines.append(f"{engine.name} {name}: {check.result.note}")
    return lines


def print_report(report: AuditReport, console: Console) -> None:
    """The table, a witness for every failure, and one sentence for each engine."""
    table = Table(
        "", *(f"{engine.name}\n{engine.version}" for engine in report.engines.values()), box=None, pad_edge=False
    )
    for name in check_names(report):
        cells = (engine.checks.get(name) for engine in report.engines.values())
        table.add_row(
            name, *("" if check is None else Text(cell(check), style=_STYLES[check.result.status]) for check in cells)
        )
    console.print(table)
    for engine in report.engines.values():
        for name in engine.failed:
            _print_failure(engine, name, console)
    console.print()
    for line in notes(report):
        console.print(line, markup=False, highlight=False, style="dim")
    console.print()
    for engine in report.engines.values():
        console.print(summary(engine, report), markup=False, highlight=False, soft_wrap=True)


_STYLES = {"holds": "green", "fails": "bold red", "not_observable": "dim"}


def _print_failure(engine: EngineReport, name: str, console: Console) -> None:
    witness = engine.checks[name].witness
    if witness is None:
        return
    lines = [(f"{engine.name} fails {name}: {CHECKS[name].statement}", "bold red", ""),
             (witness.violation.message, "bold", "  "), (place(witness), "", "  ")]  # fmt: skip
    if witness.further:
        lines.append((f"and {_count(witness.further, 'further violation')}", "", "  "))
    console.print()
    for text, style, indent in lines:
        wrapped = textwrap.fill(text, console.width, initial_indent=indent, subsequent_indent=indent or "  ")
        console.print(wrapped, style=style, markup=False, highlight=False)
    # Never broken: it is there to be copied.
    console.print(f"  {witness.reproduce}", style="cyan", markup=False, highlight=False, soft_wrap=True)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
