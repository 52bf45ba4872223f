"""What the host learns of a round, brought from the device in one wait, and what it refuses of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import mlx.core as mx

from mlx_impl.drafters import NAME as DRAFT_NAME
from mlx_impl.drafters import DeviceBlock
from mlx_impl.forward import check_tokens
from mlx_impl.sampling import check_rows
from reference.errors import DishonestDraft
from reference.values import Round, log_probability


@dataclass(frozen=True)
class RoundReadout:
    """One round, as the host knows it. Lists have length k; faults, one entry for each row.

    Attributes:
        drafted: the proposals.
        num_accepted: how many of them the rule accepted.
        token: what it put after them.
        p, q: the probabilities of the proposals.
        p_token: the target's of the token after those that were accepted.
        sum_min, sum_prod: the closed forms of acceptance at each proposal.
        draft_faults, target_faults: what is wrong with the logits of each row (`sampling.row_faults`).
    """

    drafted: list[int]
    num_accepted: int
    token: int
    p: list[float]
    q: list[float]
    p_token: float
    sum_min: list[float]
    sum_prod: list[float]
    draft_faults: list[int]
    target_faults: list[int]

    def check(self, vocab_size: int, target_name: str, position: int) -> None:
        """Refuse a round of bad tokens, bad logits or a q that rules its own proposal out.

        Args:
            vocab_size: V.
            target_name: names the target in messages.
            position: that of the pending token.

        Raises:
            TokenOutOfRange, NonFiniteLogits, DishonestDraft: see there.
        """
        check_tokens(self.drafted, vocab_size, "proposal")  # first: what follows from such a token is garbage
        check_rows(self.draft_faults, DRAFT_NAME, position)
        check_rows(self.target_faults, target_name, position)
        index = next((index for index, q_drafted in enumerate(self.q) if not q_drafted > 0), None)  # NaN, too
        if index is not None:
            raise DishonestDraft(
                f"proposal {index} is token {self.drafted[index]}, which has no mass under the q reported for it; "
                "report the distribution that the drafter really draws from, filters included"
            )

    def with_figures(self, done: Round) -> Round:
        """The round with the probabilities of what it drafted and emitted, and its closed forms."""
        tested = done.num_tested
        of_decided = [*self.p[: self.num_accepted], self.p_token]
        return replace(
            done,
            p=tuple(self.p),
            q=tuple(self.q),
            sum_min=tuple(self.sum_min[:tested]),
            sum_prod=tuple(self.sum_prod[:tested]),
            log_probabilities=tuple(log_probability(p) for p in of_decided[: len(done.emitted)]),
        )


def read_verdict(
    p: mx.array, block: DeviceBlock, num_accepted: mx.array, token: mx.array, target_faults: mx.array
) -> RoundReadout:
    """Wait for a round: p [k + 1, V], what the rule decided (both []), and the target's faults [k + 1]."""
    q, drafted = block.probabilities, block.tokens  # [k, V], [k]
    p_token = p[num_accepted, token]  # []
    p = p[:-1]  # [k + 1, V] -> [k, V]
    return RoundReadout(
        *read(
            drafted,
            num_accepted,
            token,
            mx.take_along_axis(p, drafted[:, None], axis=-1)[:, 0],
            mx.take_along_axis(q, drafted[:, None], axis=-1)[:, 0],
            p_token,
            mx.sum(mx.minimum(p, q), axis=-1),
            mx.sum(p * q, axis=-1),
            block.faults,
            target_faults,
        )
    )


def read(*arrays: mx.array) -> list[Any]:
    """Wait for all of these at once; return them as Python values. The only wait of the decode loop.

    Empty ones are not computed: a plain step has many.
    """
    mx.eval(*(array for array in arrays if array.size))
    return [array.tolist() if array.size else [] for array in arrays]
