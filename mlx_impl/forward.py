"""What goes into a model: token ids that it knows, counts that are counts. Nothing here waits for the device."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import mlx.core as mx

from reference.errors import InvalidSetting, TokenOutOfRange

CHUNK = 1024
"""Tokens compared at a time by `num_shared`."""


def vocab_size(model: Any) -> int:
    """How many tokens a model knows: as its `args` say, their `text_config`, or its `language_model`, as in mlx-lm.

    Raises:
        InvalidSetting: it does not say.
    """
    args = getattr(model, "args", None)
    text = getattr(args, "text_config", None)
    of_text = text.get("vocab_size") if isinstance(text, dict) else getattr(text, "vocab_size", None)
    size = getattr(args, "vocab_size", None) or of_text
    if size is None and getattr(model, "language_model", None) is not None:
        return vocab_size(model.language_model)
    if not isinstance(size, int):
        raise InvalidSetting(
            f"{type(model).__name__} has no args.vocab_size; give a language model that follows mlx-lm's conventions"
        )
    return size


def check_tokens(tokens: Sequence[int], size: int, what: str) -> None:
    """Refuse ids outside the vocabulary: MLX would read past the embedding and say nothing.

    Raises:
        TokenOutOfRange: naming the first one.
    """
    for index, token in enumerate(tokens):
        if not 0 <= token < size:
            raise TokenOutOfRange(
                f"{what}[{index}] is {token}, outside the vocabulary 0..{size - 1}; "
                "check that tokenizer and model belong together"
            )


def plain_tokens(tokens: Sequence[int] | mx.array) -> list[int]:
    """Token ids of any integer type as Python's ints.

    Raises:
        TokenOutOfRange: one is not an integer.
    """
    listed: list[Any] = list(tokens.tolist()) if isinstance(tokens, mx.array) else list(tokens)  # type: ignore[arg-type]
    plain: list[int] = []
    for token in listed:
        try:
            plain.append(operator.index(token))
        except TypeError as error:
            raise TokenOutOfRange(f"the prompt holds {token!r}, which is no token id; give integers") from error
    return plain


def plain_count(value: int, name: str, hint: str = "", least: int = 0) -> int:
    """A setting that counts something, as Python's int.

    Args:
        value: what was given.
        name: of the setting, for the message.
        hint: ends the message.
        least: below 0 where negative numbers have a meaning, which `hint` tells.

    Raises:
        InvalidSetting: it is not an integer, or below `least`.
    """
    refusal = InvalidSetting(f"{name} is {value}; give an integer >= 0{hint}")
    try:
        count = operator.index(value)
    except TypeError as error:
        raise refusal from error
    if count < least:
        raise refusal
    return count


def device_tokens(tokens: Sequence[int]) -> mx.array:
    """Token ids as the models take them: uint32 [n]."""
    return mx.array(list(tokens), dtype=mx.uint32)


def num_shared(some: Sequence[int], others: Sequence[int]) -> int:
    """How many tokens both begin with."""
    length = min(len(some), len(others))
    for start in range(0, length, CHUNK):
        end = min(start + CHUNK, length)
        ours, theirs = list(some[start:end]), list(others[start:end])
        if ours != theirs:
            return next(start + i for i, pair in enumerate(zip(ours, theirs, strict=True)) if pair[0] != pair[1])
    return length
