"""What a round of the MLX decoder may draft, and which drafter of a chain drafted: read off the decoder's own parts."""

from __future__ import annotations

from mlx_impl.chain import Chain
from mlx_impl.draft_length import DraftLength, FixedLength
from mlx_impl.drafters import Drafter
from specproof.engine import DrafterKind


class NotedLength:
    """A `DraftLength` that chooses as its inner one does.

    Attributes:
        allowed: what it last chose, whatever the limit that it was given; None for one that never chooses.
    """

    def __init__(self, inner: DraftLength) -> None:
        self._inner = inner
        self.allowed: int | None = None

    @property
    def max_k(self) -> int:
        """As the inner one's."""
        return self._inner.max_k

    def choose(self, limit: int) -> int:
        """As the inner one's, noted."""
        chosen = self._inner.choose(limit)
        if not isinstance(self._inner, FixedLength):
            self.allowed = chosen
        return chosen

    def proposed(self, count: int) -> None:
        """As the inner one's."""
        self._inner.proposed(count)

    def record(self, num_accepted: int) -> None:
        """As the inner one's."""
        self._inner.record(num_accepted)


def proposer_of(drafter: Drafter) -> DrafterKind | None:
    """Who made the last block of a chain; None for a drafter that stands alone."""
    if not isinstance(drafter, Chain):
        return None
    return "prompt_lookup" if drafter.drafters[drafter.proposer].cache is None else "draft_model"
