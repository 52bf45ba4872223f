"""The acceptance rules: given p, q and the proposals, how many stand, and which token follows them.

Pure functions of arrays and a source of randomness; they know no model and no cache. All but `coupled`
use only operations that exact fractions have too, so that for rational p and q the law of a rule can be
compared with the target's by `==`.

Notation: the papers count drafted tokens d_1..d_k; here they are `drafted[0..k-1]`. `p[i]` and `q[i]` are
the distributions of the token at the place of `drafted[i]`, given `drafted[:i]`; `p[k]` is that of the bonus.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reference.errors import DishonestDraft
from reference.randomness import Randomness

Probabilities = NDArray[Any]
"""[V], float64 or object (Fractions)."""


@dataclass(frozen=True)
class Verdict:
    """What a rule decides: the first `num_accepted` proposals stand, then comes `token`."""

    num_accepted: int
    token: int


Decision = Callable[[Sequence[Probabilities], Sequence[Probabilities], Sequence[int], Randomness, int], Verdict]


@dataclass(frozen=True)
class AcceptanceRule:
    """One rule, and what is claimed of it.

    Attributes:
        name: its key in `RULES`.
        lossless: tokens follow p whatever p is. (`greedy` keeps only point masses, which is why a decoder
            refuses it above temperature 0.)
        acceptance_optimal: no rule that decides position by position accepts more.
        expected_acceptance: (p_i [V], q_i [V]) -> the probability that a proposal drawn from q_i is accepted, given
            that its position is reached. For `block` a lower bound: see `expected_accepted_block`.
        decision: the rule itself: (p, q, drafted, randomness, position) -> Verdict. Call `decide`.
    """

    name: str
    lossless: bool
    acceptance_optimal: bool
    expected_acceptance: Callable[[Probabilities, Probabilities], Any]
    decision: Decision

    def decide(self, p: Sequence[Probabilities], q: Sequence[Probabilities], drafted: Sequence[int],
               randomness: Randomness, position: int) -> Verdict:  # fmt: skip
        """Decide a block.

        Args:
            p: k + 1 distributions [V] of the target.
            q: k distributions [V] of the drafter: what `drafted` was really drawn from.
            drafted: the k proposals; with k = 0 the token is a plain draw from p[0].
            randomness: makes every choice.
            position: index in the history of `drafted[0]`; keys the noise of `coupled`.

        Raises:
            DishonestDraft: a proposal has no mass under its q.
        """
        for i, token in enumerate(drafted):
            if not q[i][token] > 0:  # NaN, too
                raise DishonestDraft(
                    f"draft {i} of the block is token {token}, which has no mass under the q reported for it; "
                    "report the distribution the token was drawn from, after all filters"
                )
        return self.decision(p, q, drafted, randomness, position)


def greedy(p: Sequence[Probabilities], q: Sequence[Probabilities], drafted: Sequence[int],
           randomness: Randomness, position: int) -> Verdict:  # fmt: skip
    """Accept while the proposal is the target's most probable token; emit that token."""
    for i, token in enumerate(drafted):
        best = int(np.argmax(p[i]))
        if token != best:
            return Verdict(i, best)
    return Verdict(len(drafted), int(np.argmax(p[-1])))


def sampler_match(p: Sequence[Probabilities], q: Sequence[Probabilities], drafted: Sequence[int],
                  randomness: Randomness, position: int) -> Verdict:  # fmt: skip
    """Accept while a fresh draw from the target equals the proposal; emit that draw.

    What is emitted is always a draw from p, so the law is p; it only accepts less than `rejection`.
    """
    for i, token in enumerate(drafted):
        y = randomness.categorical(p[i])
        if token != y:
            return Verdict(i, y)
    return Verdict(len(drafted), randomness.categorical(p[-1]))


def rejection(p: Sequence[Probabilities], q: Sequence[Probabilities], drafted: Sequence[int],
              randomness: Randomness, position: int) -> Verdict:  # fmt: skip
    """Speculative sampling (Leviathan et al. 2023, Chen et al. 2023).

    Accept d_i with probability min(1, p_i(d_i) / q_i(d_i)); at the first rejection draw from max(p_i - q_i, 0),
    normalised, with a choice of its own: the coin that rejected says something about itself.
    """
    for i, token in enumerate(drafted):
        if not randomness.bernoulli(min(p[i][token] / q[i][token], 1)):
            return Verdict(i, randomness.categorical(residual(p[i], q[i])))
    return Verdict(len(drafted), randomness.categorical(p[-1]))


def block(p: Sequence[Probabilities], q: Sequence[Probabilities], drafted: Sequence[int],
          randomness: Randomness, position: int) -> Verdict:  # fmt: skip
    """Block verification (Sun et al. 2024): the block is accepted jointly, never less than by `rejection`.

    An independent coin for *every* i = 1..k; the largest i whose coin came up wins, so the walk does not
    stop at a failure. The residual after tau keeps the weight w_tau.
    """
    k = len(drafted)
    w = block_weights(p, q, drafted)  # w_0 .. w_k
    tau = 0
    for i in range(1, k + 1):
        if randomness.bernoulli(w[k] if i == k else _block_coin(w[i], p[i], q[i])):
            tau = i
    if tau == k:
        return Verdict(k, randomness.categorical(p[k]))
    return Verdict(tau, randomness.categorical(residual(p[tau], q[tau], w[tau])))


def coupled(p: Sequence[Probabilities], q: Sequence[Probabilities], drafted: Sequence[int],
            randomness: Randomness, position: int) -> Verdict:  # fmt: skip
    """Accept while the proposal equals the target's own Gumbel-max draw at that position; emit that draw.

    The noise is keyed by seed and absolute position, so what is emitted does not depend on the drafter at all. A
    drafter that draws by the same noise is accepted often, any other about as often as by `sampler_match`.
    """
    for i, token in enumerate(drafted):
        y = randomness.coupled_categorical(p[i], position + i)
        if token != y:
            return Verdict(i, y)
    return Verdict(len(drafted), randomness.coupled_categorical(p[-1], position + len(drafted)))


def residual(p: Probabilities, q: Probabilities, weight: Any = 1) -> Probabilities:
    """max(weight * p - q, 0), normalised: what the target still has to give after a rejection. [V] -> [V].

    All zero means that the rejection could not happen but for rounding (p and q coincide): then it is p.
    """
    excess = np.maximum(weight * p - q, 0)
    total = excess.sum()
    return excess / total if total > 0 else p


def block_weights(p: Sequence[Probabilities], q: Sequence[Probabilities], drafted: Sequence[int]) -> list[Any]:
    """w_0 = 1, w_i = min(w_{i-1} * p_i(d_i) / q_i(d_i), 1): the cap is inside the recursion. k + 1 numbers.

    w_i is the probability that at least i proposals are accepted, given the first i.
    """
    weights: list[Any] = [1]
    for i, token in enumerate(drafted):
        weights.append(min(weights[-1] * p[i][token] / q[i][token], 1))
    return weights


def _block_coin(w: Any, p_next: Probabilities, q_next: Probabilities) -> Any:
    """h_i for i < k: s / (s + 1 - w), and 0 when both vanish, so that an all-zero residual is never chosen."""
    s = np.maximum(w * p_next - q_next, 0).sum()
    return s / (s + (1 - w)) if s > 0 else 0  # in this order: a tiny s must not vanish beside the 1


def _mass_on_argmax(p: Probabilities, q: Probabilities) -> Any:
    return q[int(np.argmax(p))]


def _sum_of_products(p: Probabilities, q: Probabilities) -> Any:
    return (p * q).sum()


def _sum_of_minima(p: Probabilities, q: Probabilities) -> Any:
    return np.minimum(p, q).sum()


def _gumbel_agreement(p: Probabilities, q: Probabilities) -> Any:
    """sum_x 1 / sum_y max(p(y) / p(x), q(y) / q(x)): both argmaxes of Gumbel-perturbed log-probabilities are x."""
    both = np.flatnonzero((p > 0) & (q > 0))
    return sum(1 / np.maximum(p / p[x], q / q[x]).sum() for x in both)


def expected_accepted(acceptances: Sequence[Any]) -> Any:
    """Expected accepted proposals, from each position's acceptance given that it is reached: a_1 + a_1 a_2 + ..."""
    total, reached = 0, 1
    for acceptance in acceptances:
        reached = reached * acceptance
        total = total + reached
    return total


Conditional = Callable[[tuple[int, ...]], Probabilities]
"""The distribution [V] of the next token, given the tokens drafted before it in the block."""


def expected_accepted_block(p: Conditional, q: Conditional, k: int) -> Any:
    """Expected accepted proposals of `block`: sum_i sum over d_1..d_i of q(d_1..d_i) * w_i.

    Walks all prefixes with mass under q, V ** k at the most.
    """

    def below(prefix: tuple[int, ...], mass: Any, weight: Any) -> Any:
        if len(prefix) == k:
            return 0
        p_here, q_here = p(prefix), q(prefix)
        total: Any = 0
        for token in np.flatnonzero(q_here):
            w = min(weight * p_here[token] / q_here[token], 1)
            total = total + mass * q_here[token] * w
            total = total + below((*prefix, int(token)), mass * q_here[token], w)
        return total

    return below((), 1, 1)


RULES: Mapping[str, AcceptanceRule] = MappingProxyType(
    {
        rule.name: rule
        for rule in (
            AcceptanceRule("greedy", False, True, _mass_on_argmax, greedy),
            AcceptanceRule("sampler_match", True, False, _sum_of_products, sampler_match),
            AcceptanceRule("rejection", True, True, _sum_of_minima, rejection),
            AcceptanceRule("block", True, True, _sum_of_minima, block),
            AcceptanceRule("coupled", True, False, _gumbel_agreement, coupled),
        )
    }
)
"""Every acceptance rule by its name."""
