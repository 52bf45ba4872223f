"""Prompts to measure with: lines of a file, as token ids or as text, or random tokens."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from reference.errors import InvalidSetting, TokenOutOfRange
from specproof.errors import MissingExtra
from specproof.law_cases import random_prompt

Tokens = tuple[int, ...]

IDS = re.compile(r"\d+([ ,]+\d+)*")
"""A line of nothing but numbers is token ids; any other is text."""
RANDOM_PROMPTS = 4


def read_prompts(file: Path, model: Path, vocab_size: int) -> tuple[Tokens, ...]:
    """One prompt from each line of a file that is not empty.

    Args:
        file: lines of token ids, with spaces or commas in between, or of text.
        model: the folder whose `tokenizer.json` reads text. No special tokens are added.
        vocab_size: ids must be below it.

    Raises:
        InvalidSetting: the file cannot be read, has no prompt, or has text that no tokenizer reads.
        TokenOutOfRange: an id is not in the vocabulary.
        MissingExtra: there is text, and `tokenizers` is not installed.
    """
    try:
        lines = [line.strip() for line in file.read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidSetting(
            f"cannot read prompts from {file} ({error}); give a text file, one prompt a line"
        ) from None
    lines = [line for line in lines if line]
    if not lines:
        raise InvalidSetting(f"there is no prompt in {file}; give one a line, as token ids or as text")
    tokenizer = None if all(IDS.fullmatch(line) for line in lines) else _tokenizer(model)
    prompts = tuple(_prompt(line, tokenizer) for line in lines)
    for line, prompt in zip(lines, prompts, strict=True):
        if not prompt or max(prompt) >= vocab_size:
            raise TokenOutOfRange(
                f"prompt {line[:60]!r} has {'no token' if not prompt else f'token {max(prompt)}'}; the vocabulary is "
                f"0..{vocab_size - 1}"
            )
    return prompts


def random_prompts(vocab_size: int) -> tuple[Tokens, ...]:
    """A few short ones, always the same: for pairs that know no language."""
    return tuple(random_prompt(vocab_size, seed) for seed in range(RANDOM_PROMPTS))


def _prompt(line: str, tokenizer: Any) -> Tokens:
    if IDS.fullmatch(line):
        return tuple(int(token) for token in re.split(r"[ ,]+", line))
    return tuple(tokenizer.encode(line, add_special_tokens=False).ids)


def _tokenizer(model: Path) -> Any:
    file = model / "tokenizer.json"
    if not file.is_file():
        raise InvalidSetting(f"prompts are text, and {model} has no tokenizer.json; give token ids")
    try:
        import tokenizers
    except ImportError as error:
        raise MissingExtra(
            f"prompts of text need tokenizers, which is not installed ({error}); pip install 'specproof[text]'"
        ) from error
    return tokenizers.Tokenizer.from_file(str(file))
