"""The toy target in every architecture, and scripts of blocks that are partly taken back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from reference.cache import KVCache
from reference.transformer import Transformer
from specproof.architectures import architecture, load_model
from specproof.pairs import toy

SIZE = 32
TOLERANCE = 1e-9


def model(name: str) -> Transformer:
    return load_model(toy().target, architecture(name))


@dataclass(frozen=True)
class Block:
    """Tokens that are forwarded at once, and how many of them are taken back."""

    tokens: tuple[int, ...]
    rejected: int


@st.composite
def blocks(draw: st.DrawFn) -> Block:
    tokens = draw(st.lists(st.integers(0, SIZE - 1), min_size=1, max_size=7))
    return Block(tuple(tokens), draw(st.integers(0, len(tokens) - 1)))


scripts = st.lists(blocks(), min_size=1, max_size=7)


def check_against_pass_without_cache(subject: Transformer, script: Sequence[Block]) -> KVCache:
    """Run a script; logits and what the cache shows must be those of a pass without a cache."""
    cache, history = subject.new_cache(), ()
    for block in script:
        logits = subject.forward(block.tokens, cache).logits
        whole = subject.forward_without_cache((*history, *block.tokens)).logits
        np.testing.assert_allclose(logits, whole[len(history) :], atol=TOLERANCE)
        assert cache.trim(block.rejected) == block.rejected
        history = (*history, *block.tokens[: len(block.tokens) - block.rejected])
        check_rows(subject, cache, history)
    return cache


def check_rows(subject: Transformer, cache: KVCache, history: Sequence[int]) -> None:
    assert cache.offset == len(history)
    for layer, (keys, values) in zip(cache.layers, subject.forward_without_cache(history).rows, strict=True):
        first = getattr(layer, "first", 0)
        np.testing.assert_allclose(layer.keys, keys[:, first:], atol=TOLERANCE)
        np.testing.assert_allclose(layer.values, values[:, first:], atol=TOLERANCE)
