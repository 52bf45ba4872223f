"""What the README shows is what happens: its engine is audited, its output compared."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from specproof.audit import CHECKS
from specproof.cli import app
from specproof.report import check_row

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
ENGINE, AFTER = re.search(r"```python\n(# my_engine\.py\n.*?)```\n(.*)", README, flags=re.DOTALL).groups()
COMMAND = re.search(r"```\nspecproof (audit .*?)\n```", AFTER).group(1).split()
SHOWN_RIGHT, SHOWN_WRONG = re.findall(r"```text\n(.*?)```", AFTER, flags=re.DOTALL)[:2]
CATCH_UP = re.search(r"    if cache\.offset < .*?\n        model\.forward.*?\n", ENGINE).group()


def audit_output(code: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[int, list[str]]:
    """Exit status and lines of the README's command with this code as `my_engine.py`."""
    (folder / "my_engine.py").write_text(code, encoding="utf-8")
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, "my_engine", raising=False)
    result = CliRunner(env={"COLUMNS": "120"}).invoke(app, COMMAND)
    monkeypatch.delitem(sys.modules, "my_engine", raising=False)
    return result.exit_code, [line.rstrip() for line in result.stdout.rstrip().splitlines()]


def test_the_engine_of_the_readme_holds_what_it_declares(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    status, lines = audit_output(ENGINE, tmp_path, monkeypatch)
    assert status == 0
    assert lines == SHOWN_RIGHT.rstrip().splitlines()


def test_without_its_catch_up_it_fails_as_the_readme_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    status, lines = audit_output(ENGINE.replace(CATCH_UP, ""), tmp_path, monkeypatch)
    assert status == 1
    assert lines == SHOWN_WRONG.rstrip().splitlines()


def in_a_folder_of_its_own(folder: Path, code: str, *command: str) -> subprocess.CompletedProcess[str]:
    """The installed command, where the engine's module lies, as a newcomer calls it."""
    (folder / "my_engine.py").write_text(code, encoding="utf-8")
    installed = Path(sys.executable).with_name("specproof")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        [installed, *command], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def test_the_command_finds_an_engine_in_the_folder_that_it_is_called_in(tmp_path: Path) -> None:
    result = in_a_folder_of_its_own(tmp_path, ENGINE, *COMMAND)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize(("code", "status"), [(ENGINE, 0), (ENGINE.replace(CATCH_UP, ""), 1)], ids=["right", "wrong"])
def test_the_engine_of_the_readme_can_be_fuzzed(tmp_path: Path, code: str, status: int) -> None:
    """It declares no sampling but the default."""
    command = ("fuzz", "--engine", "my_engine:MyEngine", "--minutes", "0.05", "--seed", "0")
    result = in_a_folder_of_its_own(tmp_path, code, *command)
    assert result.returncode == status, result.stderr
    assert "Traceback" not in result.stderr
    assert ("breaks draft_cache_offset" in result.stdout) == bool(status)


def test_the_readme_lists_every_check_in_its_own_words() -> None:
    for name in CHECKS:
        assert check_row(name) in README
