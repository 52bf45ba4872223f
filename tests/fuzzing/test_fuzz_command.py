"""`specproof fuzz`: exit status, messages, and what it writes."""

import json
import os
import re
from functools import partial
from pathlib import Path
from typing import Any

import command_line
import pytest

NEVER_TRIMS, INTERRUPTED = "fuzz_engines:NEVER_TRIMS", "fuzz_engines:INTERRUPTED"
A_MOMENT = ("--minutes", "0.02", "--seed", "0")


run = partial(command_line.run, "fuzz")
refused = partial(command_line.refused, "fuzz")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path, dict[str, Any]]:
    """One moment on a wrong engine: the result, the folder of findings, and the JSON."""
    folder = tmp_path_factory.mktemp("fuzz")
    result = run("--engine", NEVER_TRIMS, *A_MOMENT, "--out", folder / "found", "--json", folder / "a.json")
    return result, folder / "found", json.loads((folder / "a.json").read_text())


def test_a_right_engine_exits_0_and_nothing_is_written(tmp_path: Path) -> None:
    result = run("--engine", "reference", *A_MOMENT, "--out", tmp_path / "found")
    assert result.exit_code == 0
    assert re.search(r"reference: nothing found in [1-9]\d* cases", result.stdout)
    assert "--seed 0" in result.stderr
    assert not (tmp_path / "found").exists()


def test_a_family_of_caches_is_fuzzed_like_any_engine(tmp_path: Path) -> None:
    """Its architecture is one of mlx-lm's, and none of the oracle's."""
    pytest.importorskip("mlx_lm", reason="mlx-lm is not installed; pip install 'specproof[mlx-lm]'")
    result = run("--engine", "mlx_impl-mamba2", *A_MOMENT, "--out", tmp_path / "found")
    assert result.exit_code == 0, result.stderr
    assert "mlx_impl-mamba2: nothing found in " in result.stdout


def test_a_wrong_engine_exits_1_with_a_report_and_the_command_that_shows_it_again(found: Any) -> None:
    result, _, _ = found
    assert result.exit_code == 1
    assert f"{NEVER_TRIMS} breaks draft_cache_offset" in result.stdout
    assert "known defect    D04" in result.stdout
    command = re.search(r"again +specproof (fuzz --replay .*)", result.stdout).group(1)
    assert "still fails: draft cache holds" in run(*command.split()[1:]).stdout


def test_the_file_of_a_finding_still_fails_on_its_engine_and_holds_on_a_right_one(found: Any) -> None:
    (file, *_) = sorted(found[1].glob("*-draft_cache_offset-*.json"))
    assert run("--replay", file).exit_code == 1
    result = run("--replay", file, "--engine", "reference")
    assert result.exit_code == 0
    assert "reference draft_cache_offset holds now" in result.stdout


def test_the_json_has_the_documented_form(found: Any) -> None:
    _, folder, summary = found
    assert set(summary) == {"seed", "minutes", "interrupted", "engines"}
    (engine,) = summary["engines"].values()
    assert set(engine) == {"version", "spent", "found"}
    assert engine["spent"]["case"] >= 1
    first = engine["found"][0]
    assert first["invariant"] == "draft_cache_offset"
    assert first["matches"] == ["D04"]
    assert first["examples_needed"] >= 1
    assert Path(first["file"]).parent == folder
    assert first["report"].startswith(f"{NEVER_TRIMS} breaks draft_cache_offset")


def test_an_interrupt_ends_it_with_what_was_found_so_far(tmp_path: Path) -> None:
    result = run("--engine", INTERRUPTED, *A_MOMENT, "--out", tmp_path / "found", "--json", tmp_path / "a.json")
    assert result.exit_code == 130
    assert "specproof: interrupted" in result.stderr
    assert "InterruptedDecoder: nothing found" in result.stdout.replace(INTERRUPTED, "InterruptedDecoder")
    assert json.loads((tmp_path / "a.json").read_text())["interrupted"] is True


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--engine", "nothing"), "no engine is named 'nothing'"),
        (("--minutes", "0"), "--minutes is 0; give a finite number above 0"),
        (("--minutes", "inf"), "--minutes is inf; give a finite number above 0"),
        (("--minutes", "nan"), "--minutes is nan; give a finite number above 0"),
        (("--out", __file__), "it is a file; give a folder"),
        (("--json", "/nowhere/a.json"), "there is no folder /nowhere; make it first"),
        (("--replay", "/nowhere/a.json"), "cannot read /nowhere/a.json"),
    ],
)
def test_a_wrong_call_exits_2_and_says_what_to_do(arguments: tuple[str, ...], message: str) -> None:
    engine = () if {"--engine", "--replay"} & set(arguments) else ("--engine", "reference")
    assert message in refused(*engine, *arguments)


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written_is_refused_before_the_work(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    assert "permission denied" in refused("--engine", "reference", "--out", tmp_path / "found")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": "specproof.found/0"}, "is not of the form specproof.found/1"),
        ({"wings": 2}, "has other fields than case, engine, invariant, level, message, schema, source: wings"),
        ({"engine": 5}, "engine is 5; expected a text"),
        ({"invariant": "beauty"}, "invariant is 'beauty'; expected one of target_cache_offset, "),
        ({"invariant": "output_distribution"}, "a case of the regime 'all_reject' does not show output_distribution"),
        ({"level": 0.5}, "level is 0.5; expected a number between 0 and 1 for a bet, else null"),
        ({"case": []}, "case is []; expected an object"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_a_malformed_file_is_refused(found: Any, tmp_path: Path, change: dict[str, Any], message: str) -> None:
    (file, *_) = sorted(found[1].glob("*.json"))
    broken = tmp_path / "broken.json"
    broken.write_text(json.dumps(json.loads(file.read_text()) | change))
    assert message in refused("--replay", broken)


def test_what_is_no_json_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("{")
    assert "give a file that `specproof fuzz` wrote" in refused("--replay", tmp_path / "a.json")
