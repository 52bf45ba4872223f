"""`specproof measure`: its table, its JSON, its picture, its exit status."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from specproof.cli import app
from specproof.measuring import command
from specproof.pairs import toy

CLI = CliRunner(env={"COLUMNS": "120"})
QUICK = ["measure", "--target", str(toy().target), "--draft", str(toy().draft), "--engine", "reference", "--tokens"]
FIGURES = {"positions", "mean_acceptance", "closed_form_sum_min", "tokens_per_round", "lag", "tokens_per_second"}
POSITION = {"reached", "accepted", "rate", "ci", "sum_min", "sum_prod"}


def run(*arguments: str, status: int = 0) -> str:
    result = CLI.invoke(app, [*QUICK, *arguments])
    assert result.exit_code == status, result.output
    return result.stdout if status == 0 else result.stderr


def row(table: str, name: str) -> list[str]:
    """The cells of the first row of that name."""
    line = next(line for line in table.splitlines() if line.strip().startswith(name))
    return re.split(r"\s{2,}", line.strip())[1:]


def test_the_json_has_every_figure_of_every_position(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    table = run("20", "--json", str(file))
    written = json.loads(file.read_text(encoding="utf-8"))
    assert written.keys() >= FIGURES
    assert len(written["positions"]) == 4
    assert all(position.keys() == POSITION for position in written["positions"])
    assert (written["engine"], written["rule"], written["defect"]) == ("reference", "rejection", None)
    assert written["compared"] == []
    first = written["positions"][0]
    low, high = first["ci"]
    assert 0 <= low < first["rate"] < high <= 1
    assert row(table, "position 0: reached") == [str(first["reached"])]
    assert row(table, "accepted of these") == [f"{first['rate']:.3f} [{low:.3f}, {high:.3f}]"]
    assert len(written["turns"]) == 8, "four prompts, two seeds"


def test_what_is_undefined_is_shown_as_such_and_is_null(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    table = run("2", "--json", str(file))  # a second token is drawn without any proposal: there is no budget for one
    written = json.loads(file.read_text(encoding="utf-8"))
    nothing = {"reached": 0, "accepted": 0, "rate": None, "ci": None, "sum_min": None, "sum_prod": None}
    assert written["positions"] == [nothing] * 4
    assert written["mean_acceptance"] is written["closed_form_sum_min"] is written["tokens_per_round"] is None
    assert row(table, "accepted of these") == row(table, "tokens per round") == row(table, "by the formula") == ["-"]
    assert "0.000 [" not in table


def test_a_defect_is_measured_beside_the_right_engine_on_the_same_prompts_and_seeds(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    table = run("40", "--defect", "D01", "--temperature", "0", "--json", str(file))
    written = json.loads(file.read_text(encoding="utf-8"))
    (right,) = written["compared"]
    assert (written["defect"], right["defect"]) == ("D01", None)
    assert right.keys() >= FIGURES
    assert [(t["prompt"], t["seed"]) for t in written["turns"]] == [(t["prompt"], t["seed"]) for t in right["turns"]]
    assert max(right["lag"]) == 0 < written["lag"][1] < written["lag"][5]
    assert written["mean_acceptance"] < right["mean_acceptance"]
    assert row(table, "text as without a drafter") == ["4 of 4 turns"] * 2
    assert re.search(r"greedy: of \d+ rounds .* the defect proposed other tokens in [1-9]", table)


def test_rules_are_compared_with_their_theoretical_order(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    rules = ["block", "sampler_match", "rejection", "coupled"]
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("3 1 4\n", encoding="utf-8")
    given = [part for rule in rules for part in ("--rule", rule)]
    table = run("30", *given, "--seed", "3", "--prompts", str(prompts), "--json", str(file))
    written = json.loads(file.read_text(encoding="utf-8"))
    assert [written["rule"], *(other["rule"] for other in written["compared"])] == rules
    positions, blocks = written["ordering"]["theory"]
    assert list(positions["means"]) == ["sampler_match", "coupled", "rejection"]
    assert list(blocks["means"]) == ["rejection", "block"]
    assert positions["places"] == 30
    assert positions["violations"] == blocks["violations"] == 0
    steps = [(step["less"], step["more"]) for step in written["ordering"]["measured"]]
    assert steps == [("sampler_match", "coupled"), ("coupled", "rejection"), ("rejection", "block")]
    assert table.count("holds at every one") == 2
    assert table.count("measured, accepted proposals per round") == 3


def test_the_same_call_gives_the_same_figures_but_for_speed(tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("3 1 4\n", encoding="utf-8")
    tables = [run("12", "--seed", "5", "--prompts", str(prompts)) for _ in range(2)]
    kept = [[line for line in table.splitlines() if "per second" not in line] for table in tables]
    assert kept[0] == kept[1]
    assert kept[0] != [
        line for line in run("12", "--seed", "6", "--prompts", str(prompts)).splitlines() if "per second" not in line
    ]


@pytest.mark.parametrize(("kind", "begin"), [("png", b"\x89PNG"), ("svg", b"<?xml")])
def test_a_picture_is_drawn(kind: str, begin: bytes, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed; pip install 'specproof[report]'")
    file = tmp_path / f"figures.{kind}"
    run("8", "--defect", "D01", "--seed", "0", "--picture", str(file))
    assert file.read_bytes().startswith(begin)
    text = file.read_text(encoding="utf-8") if kind == "svg" else ""
    assert [name in text for name in ("D01", "reference", "sum_x min(p, q)")] == [kind == "svg"] * 3


def test_prompts_are_token_ids_or_text(tmp_path: Path) -> None:
    file, json_file = tmp_path / "prompts.txt", tmp_path / "figures.json"
    file.write_text("3 1 4 1\n\n5,9, 2\n", encoding="utf-8")
    run("6", "--prompts", str(file), "--json", str(json_file))
    assert json.loads(json_file.read_text(encoding="utf-8"))["settings"]["prompts"] == [4, 3]
    pytest.importorskip("tokenizers", reason="tokenizers is not installed; pip install 'specproof[text]'")
    file.write_text("t3 t1\n7 7 7\n", encoding="utf-8")
    run("6", "--prompts", str(file), "--json", str(json_file))
    assert json.loads(json_file.read_text(encoding="utf-8"))["settings"]["prompts"] == [2, 3]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--defect", "D999"], "no defect is named 'D999'; give one of D01"),
        (["--defect", "D61"], "D61 is left out of the catalogue: stop strings"),
        (
            ["--defect", "D01", "--engine", "cli_engines:FORGETFUL"],
            "D01 is not known on engine 'cli_engines:FORGETFUL'",
        ),
        (["--rule", "nonsense"], "reference does not know rule 'nonsense'; give one of block, coupled"),
        (["--rule", "greedy"], "rule 'greedy' with temperature 0.7 does not keep p; set temperature 0"),
        (["--temperature", "-1"], "temperature is -1.0; give a finite number >= 0"),
        (["--engine", "cli_engines:MUTE", "--rule", "greedy"], "mute does not show what a draft model proposed"),
        (["--engine", "cli_engines:RAISING"], "raising raised ZeroDivisionError: the block has no length"),
        (["--defect", "D17", "--seed", "0"], "D17 raised CacheLengthError: the layers hold"),
        (["--prompts", "no/such/file"], "cannot read prompts from no/such/file"),
        (["--prompts", "EMPTY"], "there is no prompt in"),
        (["--prompts", "BEYOND"], "prompt '3 32' has token 32; the vocabulary is 0..31"),
        (["--json", "no/such/folder/x.json"], "there is no folder"),
        (["--picture", "x.pdf"], "cannot draw x.pdf; give a name that ends in .png or .svg"),
    ],
)
def test_a_wrong_call_exits_with_two_and_one_clear_line(
    arguments: list[str], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {"EMPTY": "\n \n", "BEYOND": "1 2\n3 32\n"}
    for name, content in files.items():
        (tmp_path / name).write_text(content, encoding="utf-8")
    monkeypatch.syspath_prepend(Path(__file__).parent)
    given = [str(tmp_path / part) if part in files else part for part in arguments]
    lines = [line for line in run("6", *given, status=2).splitlines() if line.startswith("specproof: ")]
    assert len(lines) == 1
    assert told in lines[0]


def test_only_one_of_the_two_models_is_a_wrong_call() -> None:
    result = CLI.invoke(app, ["measure", "--target", str(toy().target)])
    assert result.exit_code == 2
    assert "only one of --target and --draft is given" in result.stderr


def test_an_engine_chosen_by_default_is_the_fast_one_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "find_spec", lambda name: None)
    assert command.default_engine() == "reference"
    monkeypatch.setattr(command, "find_spec", lambda name: object())
    assert command.default_engine() == "mlx_impl"
