"""`specproof` as it is called in a terminal 160 columns wide: results of right calls, messages of wrong ones."""

from __future__ import annotations

from typing import Any

from typer.testing import CliRunner

from specproof.cli import app


def run(command: str, *arguments: object) -> Any:
    """The result of a command with these arguments; a traceback is a failed test."""
    result = CliRunner(env={"COLUMNS": "160"}).invoke(app, [command, *map(str, arguments)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def refused(command: str, *arguments: object) -> str:
    """The message with which a wrong call is refused: all that it prints."""
    result = run(command, *arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    return str(result.stderr)
