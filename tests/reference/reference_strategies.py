"""Rational distributions, and trees of them: for each prefix of a block, the next token's p and q."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import product

import numpy as np
from hypothesis import strategies as st

Prefix = tuple[int, ...]


@dataclass(frozen=True)
class Tree:
    """p for every prefix of 0..k tokens, q for every prefix of 0..k-1; object arrays of Fractions."""

    k: int
    p: dict[Prefix, np.ndarray]
    q: dict[Prefix, np.ndarray]

    @property
    def vocab_size(self) -> int:
        return len(self.p[()])


def rational(weights: Sequence[int | Fraction]) -> np.ndarray:
    """Weights -> the distribution proportional to them, exactly."""
    total = sum(map(Fraction, weights))
    return np.array([Fraction(weight) / total for weight in weights], dtype=object)


def rationals(vocab_size: int) -> st.SearchStrategy[np.ndarray]:
    """Distributions with small denominators, zeros and ties included."""
    return st.lists(st.integers(0, 4), min_size=vocab_size, max_size=vocab_size).filter(any).map(rational)


def point_masses(vocab_size: int) -> st.SearchStrategy[np.ndarray]:
    return st.integers(0, vocab_size - 1).map(lambda token: rational([int(x == token) for x in range(vocab_size)]))


def prefixes(vocab_size: int, length: int) -> list[Prefix]:
    """All of at most that length, the empty one first."""
    return [prefix for n in range(length + 1) for prefix in product(range(vocab_size), repeat=n)]


@st.composite
def trees(draw: st.DrawFn, k: int, *, point_p: bool = False, point_q: bool = False) -> Tree:
    """Trees for blocks of k proposals; of vocabulary 2 or 3, as long as a tree stays small."""
    vocab_size = draw(st.integers(2, 3 if k <= 2 else 2), label="vocabulary")
    of_p = point_masses(vocab_size) if point_p else rationals(vocab_size)
    of_q = point_masses(vocab_size) if point_q else rationals(vocab_size)
    p = {prefix: draw(of_p, label=f"p after {prefix}") for prefix in prefixes(vocab_size, k)}
    q = {prefix: draw(of_q, label=f"q after {prefix}") for prefix in prefixes(vocab_size, k - 1)}
    return Tree(k, p, q)
