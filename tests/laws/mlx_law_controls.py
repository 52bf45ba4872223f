"""MLX decoders and drafters that are wrong on purpose, in their rule or in their random numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import mlx.core as mx

from mlx_impl.acceptance import RULES, Decide, Decision
from mlx_impl.decoder import Decoder
from mlx_impl.drafters import DraftModel
from mlx_impl.randomness import KeyedRandomness, Randomness

VOCAB_SIZE = 3
"""That of the tiny pair."""

# ---------------------------------------------------------------------------------------------------------- rules


def with_decision(decide: Decide) -> type[Decoder]:
    """The decoder with another rule, under the name of its own."""

    class Wrong(Decoder):
        def __init__(self, *arguments: Any, **settings: Any) -> None:
            super().__init__(*arguments, **settings)
            self.rule = replace(self.rule, decide=decide)

    return Wrong


def redraw_from_p(p: mx.array, q: mx.array, drafted: mx.array, randomness: Randomness, position: int) -> Decision:
    """Rejection without a residual."""
    num_accepted, _ = RULES["rejection"].decide(p, q, drafted, randomness, position)
    return num_accepted, randomness.categorical(p[num_accepted][None])[0]


def bonus_from_q(p: mx.array, q: mx.array, drafted: mx.array, randomness: Randomness, position: int) -> Decision:
    """Rejection, but the token after a full acceptance comes from the drafter's last distribution."""
    last = q[-1:] if len(drafted) else p[-1:]
    return RULES["rejection"].decide(mx.concatenate([p[:-1], last]), q, drafted, randomness, position)


# ------------------------------------------------------------------------------------------------------- drafters


class DrawsArgmax(DraftModel):
    """Proposes the most probable token, and reports the softmax as its q."""

    def _draw(self, q: mx.array, position: int) -> mx.array:
        return mx.argmax(q, axis=-1)


# -------------------------------------------------------------------------------------------------- random numbers


class OneKeyForBoth:
    """A coin and the draw after it come from one key, and so from the same noise."""

    def __init__(self, right: KeyedRandomness) -> None:
        self._right = right
        self._coins: mx.array | None = None

    def bernoulli(self, probabilities: mx.array) -> mx.array:
        """As the right one, by the first column of noise that is as wide as that of a draw.

        Of one key MLX makes other numbers for another number of them: coins [n] by themselves would share none.
        """
        self._coins = self._right._next_key()
        shape = (*probabilities.shape, VOCAB_SIZE)
        return mx.random.uniform(shape=shape, key=self._coins)[:, 0] < probabilities

    def categorical(self, probabilities: mx.array) -> mx.array:
        """As the right one, but for the key where coins were thrown before."""
        key, self._coins = self._coins, None
        if key is None:
            return self._right.categorical(probabilities)
        noise = mx.random.uniform(shape=probabilities.shape, key=key)
        return mx.argmax(probabilities / -mx.log1p(-noise), axis=-1)


class OneKeyForProposalAndReplacement:
    """The key that drew the last proposal draws its replacement, too: what vllm-project/vllm#47386 was about."""

    def __init__(self, right: KeyedRandomness) -> None:
        self._right = right
        self._rejecting = False

    def bernoulli(self, probabilities: mx.array) -> mx.array:
        """As the right one."""
        self._rejecting = True
        return self._right.bernoulli(probabilities)

    def categorical(self, probabilities: mx.array) -> mx.array:
        """As the right one; behind coins with the key of the draw before them, two calls ago."""
        if not self._rejecting:
            return self._right.categorical(probabilities)
        self._rejecting = False
        calls, self._right._calls = self._right._calls, self._right._calls - 2
        drawn = self._right.categorical(probabilities)
        self._right._calls = calls
        return drawn


def with_randomness(source: type) -> type[Decoder]:
    """The decoder (its drafter is not meant) with such a source around its own."""

    class Wrong(Decoder):
        def __init__(self, *arguments: Any, randomness: Any, **settings: Any) -> None:
            super().__init__(*arguments, randomness=source(randomness), **settings)

    return Wrong
