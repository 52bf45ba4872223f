"""What all commands of the command line share: consoles, exit statuses, engines, pairs, files for reports."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from reference.drafters import check_vocabularies
from reference.errors import InvalidSetting
from reference.transformer import load
from specproof.engine import Engine
from specproof.pairs import Pair
from specproof.registry import installed_engines, load_engine

EXIT_FAILS, EXIT_WRONG_CALL, EXIT_INTERRUPTED = 1, 2, 130


class _Console(Console):
    """A console whose reader may close the pipe (`| head`) without changing the exit status."""

    def on_broken_pipe(self) -> None:
        """Send the rest to nowhere, in place of ending the process with status 1."""
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python complains when it flushes at exit


def console(stderr: bool) -> Console:
    """A console on one of the two streams."""
    made = _Console(stderr=stderr, highlight=False)
    if not made.is_terminal and "COLUMNS" not in os.environ:
        made.width = 120  # a pipe has no width of its own; with rich's 80 columns the table would break
    return made


def subjects_of(names: Sequence[str], err: Console) -> dict[str, Engine]:
    """The engines of these names; without names, all that are installed, saying which are left out."""
    if names:
        return {name: load_engine(name) for name in names}
    found, missing = installed_engines()
    for why in missing.values():
        err.print(f"left out: {why}", markup=False, soft_wrap=True)
    return found


def pair_of(target: Path | None, draft: Path | None, default: Pair) -> Pair:
    """The pair that is asked for, whose vocabularies agree; the default if none is.

    Raises:
        InvalidSetting: only one of the two is given.
        CheckpointError, VocabularyMismatch: they cannot be read, or are no pair.
    """
    if target is None and draft is None:
        return default
    if target is None or draft is None:
        raise InvalidSetting("only one of --target and --draft is given; a drafter belongs to its target, give both")
    target_model, draft_model = load(target), load(draft)
    check_vocabularies(target_model.vocab_size, draft_model.vocab_size, target_model.tokens, draft_model.tokens)
    return Pair(target, draft)


def check_outputs(json_file: Path | None, markdown_file: Path | None) -> None:
    """Refuse before the work what would fail after it.

    Raises:
        InvalidSetting: a report cannot be written there.
    """
    if json_file and markdown_file and json_file.resolve() == markdown_file.resolve():
        raise InvalidSetting(f"--json and --markdown both name {json_file}; give two files")
    for file in filter(None, (json_file, markdown_file)):
        if file.is_dir():
            raise InvalidSetting(f"cannot write the report to {file}: it is a folder; give a file")
        if not file.parent.is_dir():
            raise InvalidSetting(f"cannot write the report to {file}: there is no folder {file.parent}; make it first")
        if not os.access(file if file.exists() else file.parent, os.W_OK):
            raise InvalidSetting(f"cannot write the report to {file}: permission denied; give another place")
