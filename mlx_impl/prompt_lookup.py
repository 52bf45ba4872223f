"""A drafter without a model: it proposes what followed an earlier occurrence of the last tokens.

Deterministic, so its q is a point mass on each proposal, and no cache: there is nothing to keep in step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Self, get_args

import mlx.core as mx

from mlx_impl.drafters import DeviceBlock
from mlx_impl.forward import check_tokens, device_tokens, vocab_size
from mlx_impl.sampling import point_masses
from mlx_impl.vocabulary import Vocabulary, check_vocabularies
from reference.errors import InvalidSetting

Occurrence = Literal["recent", "first"]
"""Which earlier occurrence counts; engines differ."""


class PromptLookup:
    """Looks the history's last n tokens up in what came before, the longest n first.

    Args:
        vocab_size: of the target.
        max_ngram, min_ngram: the longest and the shortest n tried; equal for a fixed n.
        occurrence: the most "recent" earlier occurrence, or the "first".
        max_draft: most proposals in a block, whatever the budget; None: the budget alone decides.

    Raises:
        InvalidSetting: an n or a limit out of range, or an unknown occurrence.
    """

    cache = None

    def __init__(
        self,
        vocab_size: int,
        *,
        max_ngram: int = 3,
        min_ngram: int = 1,
        occurrence: Occurrence = "recent",
        max_draft: int | None = None,
    ) -> None:
        if not 1 <= min_ngram <= max_ngram:
            raise InvalidSetting(
                f"min_ngram is {min_ngram} and max_ngram {max_ngram}; give 1 <= min_ngram <= max_ngram"
            )
        if occurrence not in get_args(Occurrence):
            raise InvalidSetting(f"occurrence is {occurrence!r}; give one of {', '.join(get_args(Occurrence))}")
        if max_draft is not None and max_draft < 0:
            raise InvalidSetting(f"max_draft is {max_draft}; give an integer >= 0, or None for no limit")
        self.vocab_size = vocab_size
        self.max_ngram = max_ngram
        self.min_ngram = min_ngram
        self.occurrence: Occurrence = occurrence
        self.max_draft = max_draft

    def check_vocabulary(self, target: Any) -> None:
        """Refuse a target of another size.

        Raises:
            VocabularyMismatch: naming both sizes.
        """
        check_vocabularies(Vocabulary(vocab_size(target)), Vocabulary(self.vocab_size))

    def propose(self, history: Sequence[int], target_hidden: mx.array | None, budget: int) -> DeviceBlock:
        """What followed the earlier occurrence, at most `budget` tokens; nothing where there is none.

        Raises:
            TokenOutOfRange: a token of the history outside the vocabulary.
        """
        limit = budget if self.max_draft is None else min(budget, self.max_draft)
        follows = list(history[(start := self._continuation(history)) : start + max(limit, 0)])
        if not follows:
            return DeviceBlock.empty(self.vocab_size)
        check_tokens(follows, self.vocab_size, "history")
        tokens = device_tokens(follows)
        return DeviceBlock(tokens, point_masses(tokens, self.vocab_size), mx.zeros((0,), mx.uint8))

    def commit(self, history: Sequence[int]) -> None:
        """Nothing is remembered."""

    def settle(self, history: Sequence[int]) -> None:
        """Nothing is remembered."""

    def rollback(self, history: Sequence[int]) -> None:
        """Nothing is remembered."""

    def copy(self) -> Self:
        """Itself: it has no state."""
        return self

    def _continuation(self, history: Sequence[int]) -> int:
        """The index behind the occurrence to copy from; the history's length where there is none."""
        length = len(history)
        for size in range(min(self.max_ngram, length - 1), self.min_ngram - 1, -1):
            starts = range(length - size)  # the last n tokens themselves, at length - size, are left out
            for start in starts if self.occurrence == "first" else reversed(starts):
                if history[start : start + size] == history[length - size :]:
                    return start + size
        return length
