"""Text that every machine has: the standard library of the running interpreter, split into train and held-out.

The trained pair of `fixtures/pair` learnt from the train part. Prompts to measure it by come from the held-out part,
which it has not seen. Nothing of the text is stored: each machine reads its own copy, so that prompts differ a little
between versions of Python, while a file is on the same side of the split everywhere.
"""

from __future__ import annotations

import os
import random
import sysconfig
from bisect import bisect
from collections.abc import Callable, Iterator
from hashlib import sha256
from itertools import accumulate
from pathlib import Path

from reference.errors import InvalidSetting
from reference.values import checked_integer
from specproof.errors import MissingExtra
from specproof.pairs import trained

HELD_OUT_OF = 20
"""One file in so many is held out."""
CHARACTERS_PER_TOKEN = 16
"""More than nearly any stretch of text needs (on average it is three)."""
LEFT_OUT = ("site-packages", "encodings", "pydoc_data", "data", "__pycache__")
"""Folders of what is no part of the library, or is tables and test data rather than code."""


def library_files(*, held_out: bool) -> list[tuple[str, Path]]:
    """The Python files of one side of the split: (name within the library, where it lies), sorted by name."""
    root = Path(sysconfig.get_path("stdlib"))
    found = []
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if name not in LEFT_OUT]
        places = [Path(folder, name) for name in files if name.endswith(".py")]
        found += [(place.relative_to(root).as_posix(), place) for place in places]
    return sorted((name, place) for name, place in found if is_held_out(name) == held_out)


def is_held_out(name: str) -> bool:
    """Which side of the split a file is on: a matter of its name alone."""
    return int.from_bytes(sha256(name.encode()).digest()[:4], "big") % HELD_OUT_OF == 0


def read_texts(*, held_out: bool) -> Iterator[str]:
    """The text of each file of one side that is UTF-8, in the order of their names."""
    for _, file in library_files(held_out=held_out):
        try:
            text = file.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # a test of the library about other encodings
        if text.strip():
            yield text


def held_out_prompts(count: int, tokens: int, seed: int = 0) -> list[list[int]]:
    """Prompts for the trained pair: `count` stretches of `tokens` tokens each out of held-out files, by its tokenizer.

    Each begins with a line that is drawn at random, so that long files give more of them. The same on every machine
    with the same version of Python.

    Raises:
        InvalidSetting: count or tokens is no integer >= 1, or held-out text has too few stretches of that length.
        MissingExtra: `tokenizers` is not installed.
    """
    count, tokens = checked_integer("count", count, 1), checked_integer("tokens", tokens, 1)
    encode, texts, generator = _encoder(), list(read_texts(held_out=True)), random.Random(seed)
    ends = list(accumulate(map(len, texts)))
    prompts: list[list[int]] = []
    for _ in range(20 * count):
        place = generator.randrange(ends[-1])
        index = bisect(ends, place)
        text = texts[index]
        begin = text.rfind("\n", 0, place - ends[index] + len(text)) + 1
        ids = encode(text[begin : begin + CHARACTERS_PER_TOKEN * tokens])
        if len(ids) > tokens:  # one more, since the end of the text may cut the last
            prompts.append(ids[:tokens])
        if len(prompts) == count:
            return prompts
    raise InvalidSetting(f"held-out files gave {len(prompts)} prompts of {tokens} tokens, not {count}; ask for shorter")


def _encoder() -> Callable[[str], list[int]]:
    """Text -> ids, by the tokenizer of the trained pair."""
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise MissingExtra("held-out prompts need tokenizers; pip install 'specproof[pair]'") from error
    tokenizer = Tokenizer.from_file(str(trained().target / "tokenizer.json"))
    return lambda text: list(tokenizer.encode(text).ids)
