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
from mlx_impl.sampling import LARGEST, Sampler
from reference.errors import InvalidSetting
from reference.values import SamplingParams

Decision = tuple[mx.array, mx.array]
"""(how many proposals are accepted: int32 [], the token after them: uint32 [])."""

Decide = Callable[[mx.array, mx.array, mx.array, Randomness, int], Decision]


@dataclass(frozen=True)
class AcceptanceRule:
    """A rule.

    Attributes:
        name: its name in `RULES`.
        lossless: whether the output keeps the target's distribution, whatever it is. `greedy` keeps point masses
            only, which is why a decoder refuses it above temperature 0.
        acceptance_optimal: whether no rule that judges proposals one by one accepts more.
        decide: p [k + 1, V], q [k, V], drafted uint32 [k], randomness, position -> `Decision`. p and q are float32;
            p[i] and q[i] are what the token at proposal i is drawn from, given the proposals before it. The position
            is the index in the history of proposal 0. Without proposals it is a plain draw from p[0].
    """

    name: str
    lossless: bool
    acceptance_optimal: bool
    decide: Decide


def decide_greedy(p: mx.array, q: mx.array, drafted: mx.array, randomness: Randomness, position: int) -> Decision:
    """Accept what the target itself would choose; its choice follows. Makes no random choice."""
    return _match(mx.argmax(p, axis=-1), drafted)


def decide_sampler_match(
    p: mx.array, q: mx.array, drafted: mx.array, randomness: Randomness, position: int
) -> Decision:
    """Draw a token from every p; accept the proposals that equal theirs; the first that differs follows."""
    return _match(randomness.categorical(p), drafted)


def decide_coupled(p: mx.array, q: mx.array, drafted: mx.array, randomness: Randomness, position: int) -> Decision:
    """As `decide_sampler_match`, but each draw by the noise of its position.

    What is emitted is then a function of the seed and the target. A drafter that draws by the same noise
    (`DraftModel.draw`) is accepted often, any other about as often as by `sampler_match`.
    """
    return _match(randomness.coupled_categorical(p, position), drafted)


def decide_rejection(p: mx.array, q: mx.array, drafted: mx.array, randomness: Randomness, position: int) -> Decision:
    """Accept with probability min(1, p/q), else draw from the residual max(p - q, 0) (Leviathan et al. 2023)."""
    num_accepted = _leading(randomness.bernoulli(mx.minimum(_ratios(p, q, drafted), 1.0)))
    row = _residual(p[num_accepted], _with_none(q)[num_accepted])
    return num_accepted, randomness.categorical(row[None])[0]


def decide_block(p: mx.array, q: mx.array, drafted: mx.array, randomness: Randomness, position: int) -> Decision:
    """Block verification (Sun et al. 2024): accept the block jointly, never less of it than by `rejection`.

    An independent coin for every i = 1..k; the largest i whose coin came up is tau, the number accepted, whatever
    the coins before it say. The residual after them keeps their weight w_tau.
    """
    w, lost = _block_weights(_ratios(p, q, drafted))  # both [k + 1]: w_0 .. w_k, and 1 - w
    q = _with_none(q)  # [k + 1, V]
    s = mx.sum(mx.maximum(w[:, None] * p - q, 0.0), axis=-1)  # [k + 1]; the last is w_k, there being no q
    # 0 where s is, whatever 1 - w: a residual of no mass is never chosen. In this order, s is not lost beside the 1.
    h = mx.where(s > 0, s / (s + lost), 0.0)[1:]  # [k]: h_1 .. h_k = w_k
    came_up = randomness.bernoulli(h)
    tau = mx.max(mx.arange(w.shape[0]) * mx.concatenate([mx.array([True]), came_up]))
    return tau, randomness.categorical(_residual(p[tau], q[tau], w[tau])[None])[0]


RULES: Mapping[str, AcceptanceRule] = MappingProxyType(
    {
        rule.name: rule
        for rule in (
            AcceptanceRule("greedy", False, True, decide_greedy),
            AcceptanceRule("sampler_match", True, False, decide_sampler_match),
            AcceptanceRule("rejection", True, True, decide_rejection),
            AcceptanceRule("block", True, True, decide_block),
            AcceptanceRule("coupled", True, False, decide_coupled),
        )
    }
)


def rule_for(sampling: SamplingParams | Sampler, name: str | None = None) -> AcceptanceRule:
    """The rule of that name. None: `sampler_match` for an opaque sampler, `greedy` at temperature 0, else `rejection`.

    `sampler_match` never looks at probabilities, so it keeps a law that nobody knows.

    Raises:
        InvalidSetting: an unknown rule, or one that does not go with the sampling.
    """
    if name is not None and name not in RULES:
        raise InvalidSetting(f"rule is {name!r}; give one of {', '.join(RULES)}")
    if not isinstance(sampling, SamplingParams):
        if name not in (None, "sampler_match"):
            raise InvalidSetting(
                f"rule {name!r} goes by probabilities, which an opaque sampler does not show; give rule "
                "'sampler_match', or SamplingParams in the sampler's place"
            )
        return RULES["sampler_match"]
    if name == "greedy" and sampling.temperature > 0:
        raise InvalidSetting(
            f"rule 'greedy' at temperature {sampling.temperature} would change the output's distribution; "
            "give temperature 0, or another rule"
        )
    return RULES[name or ("greedy" if sampling.temperature == 0 else "rejection")]


def _match(own: mx.array, drafted: mx.array) -> Decision:
    """Accept while the proposal [k] is the target's own token [k + 1] for its place; the target's follows."""
    num_accepted = _leading(own[:-1] == drafted)
    return num_accepted, own[num_accepted]


def _leading(accepted: mx.array) -> mx.array:
    """How many come before the first False: bool [k] -> int32 []."""
    if not accepted.size:
        return mx.array(0)  # so that what leads to the coins of a plain step is never computed
    return mx.sum(mx.cumprod(accepted.astype(mx.int32)))


def _ratios(p: mx.array, q: mx.array, drafted: mx.array) -> mx.array:
    """p/q of each proposal: [k + 1, V], [k, V], [k] -> [k].

    No logarithms: as q is at most 1, the quotient is 0 in float32 only where p is.
    """
    tokens = drafted[:, None]
    return (mx.take_along_axis(p[:-1], tokens, axis=-1) / mx.take_along_axis(q, tokens, axis=-1))[:, 0]


def _block_weights(ratios: mx.array) -> tuple[mx.array, mx.array]:
    """w_0 = 1, w_i = min(w_{i-1} * ratio_i, 1), the cap inside the recursion; and 1 - w: [k] -> two [k + 1].

    In logarithms: products of small ratios leave float32 while a large one may yet bring them back. An infinite ratio
    (q below float32's normal numbers) would make nothing of a weight of 0.
    """
    logs = mx.log(mx.minimum(ratios, LARGEST))  # [k]
    log_w = [mx.array(0.0)]
    for i in range(ratios.shape[0]):
        log_w.append(mx.minimum(log_w[-1] + logs[i], 0.0))
    stacked = mx.stack(log_w)
    return mx.exp(stacked), -mx.expm1(stacked)


def _with_none(q: mx.array) -> mx.array:
    """Behind the last proposal there is no q to subtract: a row of zeros makes the bonus the same draw. [k + 1, V]."""
    return mx.concatenate([q, mx.zeros((1, q.shape[1]))], axis=0)


def _residual(p: mx.array, q: mx.array, weight: mx.array | float = 1.0) -> mx.array:
    """max(weight * p - q, 0), normalised: [V]. Where rounding left nothing of it, p and q coincide: p itself."""
    excess = mx.maximum(weight * p - q, 0.0)
    total = mx.sum(excess)
    return mx.where(total > 0, excess / total, p)
