"""The acceptance rules: given p, q and the proposals, how many stand, and which token follows them.

Pure functions of arrays and a source of randomness; they know no model and no cache. All but `coupled` use only
operations that fractions have too, so that for rational p and q the law of a rule can be compared by `==`.

Notation: the papers count drafted tokens d_1..d_k; here they are `drafted[0..k-1]`. `p[i]` and `q[i]` are
the distributions of the token at the place of `drafted[i]`, given `drafted[:i]`; `p[k]` is that of the bonus.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from reference.errors import DishonestDraft
from reference.randomness import Randomness
from reference.values import Probabilities

Dists = Sequence[Probabilities]
"""One distribution [V] for each place of a block."""


@dataclass(frozen=True)
class Verdict:
    """What a rule decides: the first `num_accepted` proposals stand, then comes `token`."""

    num_accepted: int
    token: int


Decision = Callable[[Dists, Dists, Sequence[int], Randomness, int], Verdict]


@dataclass(frozen=True)
class AcceptanceRule:
    """One rule, and what is claimed of it.

    `expected_acceptance` is the probability that a proposal drawn from q_i [V] is accepted against p_i [V], given that
    its position is reached. For `block` it is a lower bound: see `expected_accepted_block`.
    """

    name: str  # its key in `RULES`
    lossless: bool  # tokens follow p whatever p is; `greedy` keeps only the point masses of temperature 0
    acceptance_optimal: bool  # no rule that decides position by position accepts more
    expected_acceptance: Callable[[Probabilities, Probabilities], Any]  # (p_i, q_i) -> probability
    decision: Decision  # the rule itself; call `decide`, which checks the proposals first

    def decide(self, p: Dists, q: Dists, drafted: Sequence[int], randomness: Randomness, position: int) -> Verdict:
        """Decide a block of k proposals, given p (k + 1 distributions) and q (k). With k = 0: a plain draw from p[0].

        `position` is the index in the history of `drafted[0]`; it keys the noise of `coupled`.

        Raises:
            DishonestDraft: a proposal has no mass under its q.
        """
        for i, token in enumerate(drafted):
            if not q[i][token] > 0:  # NaN, too
                no_mass = f"token {token}, which has no mass under the q reported for it"
                raise DishonestDraft(f"draft {i} of the block is {no_mass}; report what it was really drawn from")
        return self.decision(p, q, drafted, randomness, position)


def greedy(p: Dists, q: Dists, drafted: Sequence[int], randomness: Randomness, position: int) -> Verdict:
    """Accept while the proposal is the target's most probable token; emit that token."""
    return _match(drafted, lambda i: int(np.argmax(p[i])))


def sampler_match(p: Dists, q: Dists, drafted: Sequence[int], randomness: Randomness, position: int) -> Verdict:
    """Accept while a fresh draw from the target equals the proposal; emit that draw.

    What is emitted is always a draw from p, so the law is p; it only accepts less than `rejection`.
    """
    return _match(drafted, lambda i: randomness.categorical(p[i]))


def rejection(p: Dists, q: Dists, drafted: Sequence[int], randomness: Randomness, position: int) -> Verdict:
    """Speculative sampling (Leviathan et al. 2023, Chen et al. 2023).

    Accept d_i with probability min(1, p_i(d_i) / q_i(d_i)); at the first rejection draw from max(p_i - q_i, 0),
    normalised, with a choice of its own: the coin that rejected says something about itself.
    """
    for i, token in enumerate(drafted):
        if not randomness.bernoulli(min(p[i][token] / q[i][token], 1)):
            return Verdict(i, randomness.categorical(residual(p[i], q[i])))
    return Verdict(len(drafted), randomness.categorical(p[-1]))


def block(p: Dists, q: Dists, drafted: Sequence[int], randomness: Randomness, position: int) -> Verdict:
    """Block verification (Sun et al. 2024): the block is accepted jointly, never less than by `rejection`.

    An independent coin for *every* i = 1..k; the largest i whose coin came up wins, so the walk does not
    stop at a failure. The residual after tau keeps the weight w_tau.
    """
    k = len(drafted)
    w = block_weights(p, q, drafted)  # w_0 .. w_k
    coins = (randomness.bernoulli(w[k] if i == k else _block_coin(w[i], p[i], q[i])) for i in range(1, k + 1))
    tau = max((i for i, came_up in enumerate(coins, 1) if came_up), default=0)
    return Verdict(tau, randomness.categorical(p[k] if tau == k else residual(p[tau], q[tau], w[tau])))


def coupled(p: Dists, q: Dists, drafted: Sequence[int], randomness: Randomness, position: int) -> Verdict:
    """Accept while the proposal equals the target's own Gumbel-max draw at that position; emit that draw.

    The noise is keyed by seed and absolute position, so what is emitted does not depend on the drafter at all. A
    drafter that draws by the same noise is accepted often, any other about as often as by `sampler_match`.
    """
    return _match(drafted, lambda i: randomness.coupled_categorical(p[i], position + i))


def _match(drafted: Sequence[int], own: Callable[[int], int]) -> Verdict:
    """Accept while the proposal is the target's own token for that place of the block; emit the target's."""
    for i, token in enumerate(drafted):
        if (y := own(i)) != token:
            return Verdict(i, y)
    return Verdict(len(drafted), own(len(drafted)))


def residual(p: Probabilities, q: Probabilities, weight: Any = 1) -> Probabilities:
    """max(weight * p - q, 0), normalised: what the target still has to give after a rejection. [V] -> [V].

    All zero means that the rejection could not happen but for rounding (p and q coincide): then it is p.
    """
    excess = np.maximum(weight * p - q, 0)
    total = excess.sum()
    return excess / total if total > 0 else p


def block_weights(p: Dists, q: Dists, drafted: Sequence[int]) -> list[Any]:
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


def _gumbel_agreement(p: Probabilities, q: Probabilities) -> Any:
    """sum_x 1 / sum_y max(p(y) / p(x), q(y) / q(x)): both argmaxes of Gumbel-perturbed log-probabilities are x."""
    both = np.flatnonzero((p > 0) & (q > 0))
    return sum(1 / np.maximum(p / p[x], q / q[x]).sum() for x in both)


def expected_accepted(acceptances: Sequence[Any]) -> Any:
    """Expected accepted proposals, from each position's acceptance given that it is reached: a_1 + a_1 a_2 + ..."""
    return np.cumprod(acceptances).sum()


Conditional = Callable[[tuple[int, ...]], Probabilities]
"""The distribution [V] of the next token, given the tokens drafted before it in the block."""


def expected_accepted_block(p: Conditional, q: Conditional, k: int, prefix: tuple[int, ...] = (), w: Any = 1) -> Any:
    """Expected accepted proposals of `block`: sum_i sum over d_1..d_i of q(d_1..d_i) * w_i.

    Walks all prefixes with mass under q, V ** k at the most: k more proposals behind `prefix`, which has the weight w.
    """
    if k == 0:
        return 0
    p_here, q_here, expected = p(prefix), q(prefix), 0
    for token in np.flatnonzero(q_here):
        w_next = min(w * p_here[token] / q_here[token], 1)
        behind = expected_accepted_block(p, q, k - 1, (*prefix, int(token)), w_next)
        expected = expected + q_here[token] * (w_next + behind)
    return expected


RULES: Mapping[str, AcceptanceRule] = {rule.name: rule for rule in (
    AcceptanceRule("greedy", False, True, lambda p, q: q[int(np.argmax(p))], greedy),
    AcceptanceRule("sampler_match", True, False, lambda p, q: (p * q).sum(), sampler_match),
    AcceptanceRule("rejection", True, True, lambda p, q: np.minimum(p, q).sum(), rejection),
    AcceptanceRule("block", True, True, lambda p, q: np.minimum(p, q).sum(), block),
    AcceptanceRule("coupled", True, False, _gumbel_agreement, coupled),
)}  # fmt: skip
"""Every acceptance rule by its name."""
