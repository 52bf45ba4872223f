"""Acceptance rules, decided on the device: which proposals are kept, and which token follows them.

A rule is a function of the target's distributions p, the drafter's q, the drafted tokens and a source of random
choices. It returns lazy arrays; nothing here waits for the device, so all k decisions are made side by side, and
those behind the first rejection are simply not used. Every coin and every draw is independent of the others:
a coin that decided acceptance is never reused for the token after it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import mlx.core as mx

from mlx_impl.randomness import Randomness

Decision = tuple[mx.array, mx.array]
"""(how many proposals are accepted: int32 [], the token after them: uint32 [])."""

Decide = Callable[[mx.array, mx.array, mx.array, Randomness], Decision]


@dataclass(frozen=True)
class AcceptanceRule:
    """A rule.

    Attributes:
        name: its name in `RULES`.
        lossless: whether the output keeps the target's distribution, whatever it is. `greedy` keeps point masses
            only, which is why a decoder refuses it above temperature 0.
        acceptance_optimal: whether no rule that judges proposals one by one accepts more.
        decide: p [k + 1, V], q [k, V], drafted uint32 [k], randomness -> `Decision`. p and q are float32; p[i] and q[i]
            are what the token at proposal i is drawn from, given the proposals before it.
    """

    name: str
    lossless: bool
    acceptance_optimal: bool
    decide: Decide


def decide_greedy(p: mx.array, q: mx.array, drafted: mx.array, randomness: Randomness) -> Decision:
    """Accept what the target itself would choose; its choice follows. Makes no random choice."""
    chosen = mx.argmax(p, axis=-1)  # [k + 1]
    num_accepted = _leading(chosen[:-1] == drafted)
    return num_accepted, chosen[num_accepted]


def decide_sampler_match(p: mx.array, q: mx.array, drafted: mx.array, randomness: Randomness) -> Decision:
    """Draw a token from every p; accept the proposals that equal theirs; the first that differs follows."""
    drawn = randomness.categorical(p)  # [k + 1]
    num_accepted = _leading(drawn[:-1] == drafted)
    return num_accepted, drawn[num_accepted]


def decide_rejection(p: mx.array, q: mx.array, drafted: mx.array, randomness: Randomness) -> Decision:
    """Accept with probability min(1, p/q), else draw from the residual max(p - q, 0) (Leviathan et al. 2023)."""
    ratio = _of_tokens(p[:-1], drafted) / _of_tokens(q, drafted)  # [k]
    num_accepted = _leading(randomness.bernoulli(mx.minimum(ratio, 1.0)))
    # Behind the last proposal there is no q to subtract: a row of zeros makes the bonus the same draw.
    q_or_none = mx.concatenate([q, mx.zeros_like(p[-1:])], axis=0)  # [k + 1, V]
    token = randomness.categorical(_residual(p[num_accepted], q_or_none[num_accepted])[None])[0]
    return num_accepted, token


RULES: Mapping[str, AcceptanceRule] = MappingProxyType(
    {
        rule.name: rule
        for rule in (
            AcceptanceRule("greedy", False, True, decide_greedy),
            AcceptanceRule("sampler_match", True, False, decide_sampler_match),
            AcceptanceRule("rejection", True, True, decide_rejection),
        )
    }
)


def _leading(accepted: mx.array) -> mx.array:
    """How many come before the first False: bool [k] -> int32 []."""
    return mx.sum(mx.cumprod(accepted.astype(mx.int32)))


def _of_tokens(probabilities: mx.array, tokens: mx.array) -> mx.array:
    """The probability of each row's token: [k, V], [k] -> [k]."""
    return mx.take_along_axis(probabilities, tokens[:, None], axis=-1)[:, 0]


def _residual(p: mx.array, q: mx.array) -> mx.array:
    """max(p - q, 0), normalised: [V]. Where rounding left nothing of it, p and q coincide: p itself."""
    excess = mx.maximum(p - q, 0.0)
    total = mx.sum(excess)
    return mx.where(total > 0, excess / mx.where(total > 0, total, 1.0), p)
