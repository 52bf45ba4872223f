"""One way to run a model: tokens in, float32 logits out, and its cache seen to grow.

Works for `mlx_impl.transformer.Transformer` and for any mlx-lm model: both are called `model(tokens [1, T],
cache=cache) -> logits [1, T, V]`. Nothing here waits for the device.
"""

# mypy: allow-untyped-calls
# (mx.async_eval carries no annotations)

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import mlx.core as mx

from mlx_impl.cache import Cache, offsets
from reference.errors import HiddenCache, InvalidSetting, TokenOutOfRange

PREFILL_STEP = 512
"""Most tokens in one forward of a long prompt; bounds the memory that attention takes."""


def vocab_size(model: Any) -> int:
    """How many tokens a model knows, from its `args`, or those of its `language_model` where it has other senses too.

    Raises:
        InvalidSetting: it does not say.
    """
    size = getattr(getattr(model, "args", None), "vocab_size", None)
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


def plain_count(value: int, name: str, hint: str = "") -> int:
    """A setting that counts something, as Python's int.

    Raises:
        InvalidSetting: it is not an integer, or negative.
    """
    refusal = InvalidSetting(f"{name} is {value}; give an integer >= 0{hint}")
    try:
        count = operator.index(value)
    except TypeError as error:
        raise refusal from error
    if count < 0:
        raise refusal
    return count


def device_tokens(tokens: Sequence[int]) -> mx.array:
    """Token ids as the models take them: uint32 [n]."""
    return mx.array(list(tokens), dtype=mx.uint32)


def forward(model: Any, cache: Cache, tokens: mx.array, model_name: str) -> mx.array:
    """Append tokens [T] to the cache; return their logits, float32 [T, V].

    Raises:
        HiddenCache: some layer's offset did not grow by T.
    """
    before = offsets(cache)
    logits: mx.array = model(tokens[None], cache=cache)[0]
    after, count = offsets(cache), tokens.shape[0]
    if not before or any(new - old != count for old, new in zip(before, after, strict=True)):
        raise HiddenCache(
            f"a forward of {count} tokens took the {model_name}'s cache offsets from {before} to {after}; it keeps its "
            "rows where they cannot be rolled back: use a model that fills the cache it is given"
        )
    return logits.astype(mx.float32)


def feed(model: Any, cache: Cache, tokens: Sequence[int], model_name: str) -> mx.array:
    """Append any number of tokens, at least one; return the logits of the last, float32 [1, V].

    Where the caller drops the logits, MLX never computes them.

    Raises:
        HiddenCache: as `forward`.
    """
    chunks = [device_tokens(tokens[start : start + PREFILL_STEP]) for start in range(0, len(tokens), PREFILL_STEP)]
    for chunk in chunks[:-1]:
        forward(model, cache, chunk, model_name)
        mx.async_eval([layer.state for layer in cache])
    return forward(model, cache, chunks[-1], model_name)[-1:]
