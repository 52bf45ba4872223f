"""`specproof defects`: the table on the terminal and in files, and its exit status."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from specproof.cli import app
from specproof.defects import CATALOGUE, command
from specproof.defects.command import print_table, to_json, to_markdown
from specproof.defects.kill_table import COLUMNS, Cell, KillTable, Row

CLI = CliRunner(env={"COLUMNS": "120"})


def row(name: str, caught: Mapping[str, int]) -> Row:
    """A row in which these checks caught the defect, each after so many examples."""
    return Row(CATALOGUE[name], {check: Cell("silent") for check in COLUMNS}
               | {check: Cell("caught", examples) for check, examples in caught.items()})  # fmt: skip


SEEN = row("D129", {"log_probabilities": 3, "counters": 5})
UNSEEN = row("D136", {"acceptance_rate": 30})
ACCUSED = row("D132", {"counters": 2, "greedy_parity": 4})
COMPLETE = KillTable((row("D129", {"log_probabilities": 3}),), {"reference": ()}, {"D61": "stop strings"})


def shown(table: KillTable) -> str:
    text = io.StringIO()
    print_table(table, Console(file=text, width=120))
    return text.getvalue()


def test_one_defect_is_tried_and_reported_everywhere(tmp_path: Path) -> None:
    json_file, markdown_file = tmp_path / "table.json", tmp_path / "table.md"
    result = CLI.invoke(app, ["defects", "--only", "D126", "--json", str(json_file), "--markdown", str(markdown_file)])
    assert result.exit_code == 0, result.stdout
    written = json.loads(json_file.read_text(encoding="utf-8"))
    assert written.keys() == {"defects", "false_alarms", "left_out"}
    (defect,) = written["defects"]
    assert defect.keys() == {"id", "kind", "caught", "caught_by", "expected", "examples_needed"}
    assert (defect["id"], defect["caught"], defect["caught_by"]) == ("D126", True, ["bad_input"])
    assert defect["examples_needed"] > 0
    assert written["false_alarms"] == 0
    assert "1 of 1 defects are caught by every check that must see them" in result.stdout
    assert "| D126 | vocabulary |" in markdown_file.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--only", "D999"], "no defect is named 'D999'; give one of D01"),
        (["--only", "D61"], "D61 is left out of the catalogue: stop strings"),
        (["--json", "no/such/folder/x.json"], "there is no folder"),
    ],
)
def test_a_wrong_call_exits_with_two_and_says_what_to_give(arguments: list[str], told: str) -> None:
    result = CLI.invoke(app, ["defects", *arguments])
    assert result.exit_code == 2
    assert told in result.stderr


@pytest.mark.parametrize(
    ("table", "told"),
    [
        (replace(COMPLETE, rows=(UNSEEN,)), "D136 is not caught by counters."),
        (replace(COMPLETE, rows=(ACCUSED,)), "D132 is caught by greedy_parity, which must not see it."),
        (replace(COMPLETE, alarms={"reference": ("counters",)}), "reference is right, and accused by counters."),
    ],
    ids=["caught only by a check that need not see it", "caught by one that must not", "false alarm"],
)
def test_a_hole_in_the_table_exits_with_one(table: KillTable, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "kill_table", lambda ids, on_row: table)
    result = CLI.invoke(app, ["defects"])
    assert result.exit_code == 1
    assert told in result.stdout
    assert told in to_markdown(table)
    assert not table.complete


def test_a_table_without_a_hole_is_complete_and_exits_with_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "kill_table", lambda ids, on_row: COMPLETE)
    assert COMPLETE.complete
    assert CLI.invoke(app, ["defects"]).exit_code == 0


def test_a_row_shows_who_must_see_it_who_does_and_after_how_many_examples() -> None:
    text = shown(replace(COMPLETE, rows=(SEEN,)))
    line = next(line for line in text.splitlines() if line.startswith("D129"))
    marks = dict(zip(COLUMNS, line.split()[2:], strict=False))
    assert marks["log_probabilities"] == "X"
    assert marks["counters"] == "x"
    assert marks["exact_law"] == "."
    assert line.rstrip().endswith("3  NOT AS EXPECTED"), "counters must be silent on it"


def test_the_json_counts_what_the_table_shows() -> None:
    table = replace(COMPLETE, rows=(SEEN, UNSEEN), alarms={"reference": ("counters", "exact_law")})
    written = to_json(table)
    assert written["false_alarms"] == 2
    assert written["left_out"] == [{"id": "D61", "why": "stop strings"}]
    assert [defect["caught"] for defect in written["defects"]] == [True, False]
    assert [defect["examples_needed"] for defect in written["defects"]] == [3, 30]
