"""The command that a failure ends in shows it again: it is run here as it was printed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FORGETFUL = "cli_engines:FORGETFUL"
LIFE = """
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from life.drivers import OracleDriver
from life.machine import DecoderLife
from specproof.defects.draft_cache import NeverTrims

class Life(DecoderLife):
    driver = OracleDriver(drafter_class=NeverTrims)

def test_life():
    run_state_machine_as_test(Life, settings=settings(phases=[Phase.reuse, Phase.generate]))
"""


def shell(command: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """What a command does in a folder; `pytest` and `specproof` are those of this environment."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "CI"))}
    path = {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests" / "cli"), os.environ.get("PYTHONPATH", "")]),
        "COLUMNS": "160",
    }
    return subprocess.run(["bash", "-c", command], cwd=folder, env={**inherited, **path, **environment},
                          capture_output=True, text=True, check=False)  # fmt: skip


def printed(result: subprocess.CompletedProcess[str]) -> str:
    """The one command that a session with one failure printed."""
    assert result.returncode == 1, result.stdout + result.stderr
    (command,) = re.findall(r"^E +again: (.*)$", result.stdout, re.MULTILINE)
    return str(command)


def broken(result: subprocess.CompletedProcess[str]) -> list[str]:
    """The messages about broken invariants in what a session printed."""
    return re.findall(r"^E +AssertionError: (reference breaks \w+: .*)$", result.stdout, re.MULTILINE)


def suite(folder: Path, choice: str, engine: str = FORGETFUL) -> subprocess.CompletedProcess[str]:
    """The tests of cache offsets that a choice leaves, on an engine."""
    file = ROOT / "tests" / "invariants" / "test_cache_offset.py"
    return shell(f"pytest -p no:cacheprovider {file} --engine {engine} -k '{choice}'", folder)


DRAWN = "test_draft_cache_offset_holds_for_drawn_cases"


def test_a_drawn_case_is_saved_and_replayed_on_the_engine_that_was_asked_for(tmp_path: Path) -> None:
    command = printed(suite(tmp_path, DRAWN))
    (file,) = (tmp_path / "found").iterdir()  # the smallest case only
    assert command == f"specproof fuzz --replay found/{file.name} --engine {FORGETFUL}"
    again = shell(command, tmp_path)
    assert again.returncode == 1
    assert again.stdout.startswith(f"{FORGETFUL} draft_cache_offset still fails: draft cache holds ")
    right = shell(command.replace(FORGETFUL, "reference"), tmp_path)
    assert right.returncode == 0
    assert right.stdout == "reference draft_cache_offset holds now\n"


def test_a_case_of_a_point_is_audited_on_the_engine_that_was_asked_for(tmp_path: Path) -> None:
    command = printed(suite(tmp_path, "test_draft_cache_offset and all_accept/greedy/k4"))
    assert re.fullmatch(rf"specproof audit {FORGETFUL} --case all_accept/greedy/k4/T0/\w+", command)
    again = shell(command, tmp_path)
    assert again.returncode == 1
    assert f"{FORGETFUL} fails draft_cache_offset" in again.stdout
    assert not (tmp_path / "found").exists()


def test_a_case_that_cannot_be_saved_is_told_by_its_test(tmp_path: Path) -> None:
    (tmp_path / "found").write_text("in the way")
    command = printed(suite(tmp_path, DRAWN))
    assert re.fullmatch(
        rf"HYPOTHESIS_PROFILE=\w+ pytest '.*::{DRAWN}\[{FORGETFUL}\]' --engine {FORGETFUL} "
        r"\(the case cannot be saved: .*\)",
        command,
    )


def test_a_right_engine_prints_no_command_and_saves_nothing(tmp_path: Path) -> None:
    result = suite(tmp_path, DRAWN, "reference")
    assert result.returncode == 0, result.stdout
    assert "again: " not in result.stdout
    assert not (tmp_path / "found").exists()


@pytest.mark.parametrize("profile", ["dev", "fuzz"])
def test_a_life_is_told_by_its_test_and_profile(tmp_path: Path, profile: str) -> None:
    (tmp_path / "test_life.py").write_text(LIFE)
    environment = {
        "HYPOTHESIS_PROFILE": profile,
        "PYTEST_ADDOPTS": f"-c {ROOT / 'pyproject.toml'} -p conftest --engine reference",
        "HYPOTHESIS_STORAGE_DIRECTORY": str(tmp_path / "examples"),
    }
    first = shell("pytest test_life.py", tmp_path, **environment)
    command = printed(first)
    assert command == f"HYPOTHESIS_PROFILE={profile} pytest test_life.py::test_life --engine reference"
    again = shell(command, tmp_path, **{**environment, "HYPOTHESIS_PROFILE": "ci"})
    assert again.returncode == 1
    assert broken(again) == broken(first) != []
    if profile == "fuzz":  # on a machine that has no failing examples
        (decorator,) = re.findall(r"@reproduce_failure\(.*\)", first.stdout)
        decorated = LIFE.replace("class Life", f"{decorator}\nclass Life")
        (tmp_path / "test_life.py").write_text(f"from hypothesis import reproduce_failure\n{decorated}")
        environment["HYPOTHESIS_STORAGE_DIRECTORY"] = str(tmp_path / "none")
        assert broken(shell(command, tmp_path, **environment)) == broken(first)
