"""`.ci/run` checks what is committed, not what happens to lie beside it."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / ".ci" / "run"
MAKE = """#!/bin/sh
pwd; ls
case "$*" in *smollm2*) exit ${SMOLLM2_STATUS:-0} ;; esac
"""
"""A `make` that shows where it runs, and does nothing."""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A tree with the script in it."""
    folder = tmp_path / "tree"
    (folder / ".ci").mkdir(parents=True)
    shutil.copy(SCRIPT, folder / ".ci")
    (folder / "committed").touch()
    return folder


def git(tree: Path, *arguments: str) -> None:
    identity = ("-c", "user.name=n", "-c", "user.email=n@example.org")
    subprocess.run(["git", *identity, *arguments], cwd=tree, check=True, capture_output=True)


def ci_run(tree: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """What the script did; it is called from elsewhere."""
    bin_ = tree.parent / "bin"
    bin_.mkdir(exist_ok=True)
    (bin_ / "make").write_text(MAKE)
    (bin_ / "make").chmod(0o755)
    # Above the tree there may be a repository that it is no part of.
    own = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    path = {"PATH": f"{bin_}{os.pathsep}{os.environ['PATH']}", "GIT_CEILING_DIRECTORIES": str(tree.parent)}
    return subprocess.run([tree / ".ci" / "run"], cwd=tree.parent, env={**own, **path, **environment},
                          capture_output=True, text=True, check=False)  # fmt: skip


def test_a_file_that_is_not_committed_is_not_there(tree: Path) -> None:
    if shutil.which("git") is None:
        pytest.skip("needs git")
    git(tree, "init", "--quiet")
    git(tree, "add", ".")
    git(tree, "commit", "--quiet", "--message", "all")
    (tree / "forgotten").touch()
    (tree / "committed").unlink()
    result = ci_run(tree)
    assert result.returncode == 0, result.stderr
    where, *files = result.stdout.split()
    assert "committed" in files
    assert "forgotten" not in files
    assert not Path(where).exists(), "it is removed at the end"
    assert where != str(tree)


def test_a_tree_that_is_no_repository_is_checked_as_it_is(tree: Path) -> None:
    (tree / "forgotten").touch()
    result = ci_run(tree)
    assert result.returncode == 0, result.stderr
    assert {str(tree), "committed", "forgotten"} <= set(result.stdout.split())


def test_a_step_that_fails_fails_the_run(tree: Path) -> None:
    assert ci_run(tree, SMOLLM2_STATUS="3").returncode == 3
