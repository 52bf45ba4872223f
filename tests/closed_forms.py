"""How many proposals of a block are accepted in expectation, by closed form. For fractions as for floats.

`reference.acceptance` has the acceptance at one position; what follows from it for blocks, only tests ask for.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from reference.values import Probabilities

Conditional = Callable[[tuple[int, ...]], Probabilities]
"""The distribution [V] of the next token, given the tokens drafted before it in the block."""


def expected_accepted(acceptances: Sequence[Any]) -> Any:
    """Expected accepted proposals, from each position's acceptance given that it is reached: a_1 + a_1 a_2 + ..."""
    return np.cumprod(acceptances).sum()


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
