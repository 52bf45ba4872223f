"""Logit transforms: how a regime is forced through the models, with the decoder and its caches untouched.

Each is a frozen value and a pure function of logits and positions, so that engine, drafter and oracle
apply the very same one. A banned token gets a large finite negative logit, never -inf: a logit that is
not finite is an error of its own in every engine.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from specproof.engine import Floats, LogitTransform

BANNED = -1e9
"""Low enough that a token has no mass at any temperature in use, and finite in float32 after a penalty."""

Positions = NDArray[np.int64]


@dataclass(frozen=True)
class Identity:
    """Changes nothing: the other branch of `Scripted`."""

    def __call__(self, logits: Floats, positions: Positions) -> Floats:
        """Logits [T, V] -> the same."""
        return logits


@dataclass(frozen=True)
class Disjoint:
    """Bans the tokens whose id has the other parity: two models with parts 0 and 1 share no support."""

    part: int

    def __call__(self, logits: Floats, positions: Positions) -> Floats:
        """Logits [T, V] -> [T, V]."""
        banned = np.arange(logits.shape[-1]) % 2 != self.part  # [V]
        return np.where(banned, BANNED, logits)


@dataclass(frozen=True)
class Sharpen:
    """Multiplies the logits: a large scale makes every draw as good as an argmax."""

    scale: float

    def __call__(self, logits: Floats, positions: Positions) -> Floats:
        """Logits [T, V] -> [T, V]."""
        return logits * self.scale


@dataclass(frozen=True)
class BanArgmax:
    """Bans the most probable token, so that a copy of the target proposes its second choice."""

    def __call__(self, logits: Floats, positions: Positions) -> Floats:
        """Logits [T, V] -> [T, V]."""
        changed = logits.copy()
        changed[np.arange(len(logits)), logits.argmax(axis=-1)] = BANNED
        return changed


@dataclass(frozen=True)
class Constant:
    """The same logits everywhere, so that p is known without the model; tokens beyond those given are banned."""

    logits: tuple[float, ...]

    def __call__(self, logits: Floats, positions: Positions) -> Floats:
        """Logits [T, V] -> [T, V]."""
        changed = np.full_like(logits, BANNED)
        changed[:, : len(self.logits)] = self.logits
        return changed


@dataclass(frozen=True)
class Flat:
    """Makes every token equally probable: below any `min_prob` worth the name."""

    def __call__(self, logits: Floats, positions: Positions) -> Floats:
        """Logits [T, V] -> zeros [T, V]."""
        return np.zeros_like(logits)


@dataclass(frozen=True)
class Recite:
    """Makes the model recite a cycle by position: the token after position `i` is `cycle[(i + 1) % len]`.

    A prompt that goes through the cycle twice then gives a prompt-lookup drafter the right continuation.
    """

    cycle: tuple[int, ...]
    strength: float = 60.0

    def __call__(self, logits: Floats, positions: Positions) -> Floats:
        """Logits [T, V] -> [T, V]."""
        changed = logits.copy()
        changed[np.arange(len(logits)), np.array(self.cycle)[(positions + 1) % len(self.cycle)]] += self.strength
        return changed


@dataclass(frozen=True)
class Scripted:
    """Applies `agree` at the positions where the script, repeated for ever, is True, else `differ`."""

    script: tuple[bool, ...]
    agree: LogitTransform = field(default_factory=Identity)
    differ: LogitTransform = field(default_factory=BanArgmax)

    def __call__(self, logits: Floats, positions: Positions) -> Floats:
        """Logits [T, V] -> [T, V]."""
        agrees = np.array(self.script)[positions % len(self.script)]  # [T]
        return np.where(agrees[:, None], self.agree(logits, positions), self.differ(logits, positions))


@dataclass(frozen=True)
class Chain:
    """One transform after the other."""

    parts: tuple[LogitTransform, ...]

    def __call__(self, logits: Floats, positions: Positions) -> Floats:
        """Logits [T, V] -> [T, V]."""
        for part in self.parts:
            logits = part(logits, positions)
        return logits
