"""A drafter without a model: what followed the last time these tokens occurred will follow again.

The proposals are certain given the history, so every q is a point mass.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, Self, get_args

from reference.drafters import check_vocabularies, checked_limit
from reference.errors import InvalidSetting
from reference.transformer import LanguageModel
from reference.values import DraftBlock, DraftDistribution, Floats, checked_integer

Occurrence = Literal["recent", "first"]


@dataclass(frozen=True)
class PromptLookup:
    """N-gram lookup in prompt and output (Saxena 2023).

    The last n tokens of the history are looked for earlier in it, for n from `max_ngram` down to `min_ngram`; the
    tokens behind the first hit are proposed, up to the history's end. Engines differ in which occurrence they take.

    Raises InvalidSetting for a setting outside its range.
    """

    vocab_size: int  # V of the target
    max_ngram: int = 3  # the longest n
    min_ngram: int = 1  # the shortest
    occurrence: Occurrence = "recent"  # of several, the most recent or the first
    max_draft: int | None = None  # the most proposals per round, whatever the caller's budget
    cache: ClassVar[None] = None  # it has none

    def __post_init__(self) -> None:
        shortest, longest = (checked_integer(name, getattr(self, name), 1) for name in ("min_ngram", "max_ngram"))
        vars(self).update(min_ngram=shortest, max_ngram=longest, max_draft=checked_limit(self.max_draft))
        if self.min_ngram > self.max_ngram:
            raise InvalidSetting(f"min_ngram is {self.min_ngram}, max_ngram {self.max_ngram}; give no more than that")
        if self.occurrence not in get_args(Occurrence):
            raise InvalidSetting(f"occurrence is {self.occurrence!r}; give one of {', '.join(get_args(Occurrence))}")

    def check_vocabulary(self, target: LanguageModel) -> None:
        """Raises `VocabularyMismatch` unless the sizes agree."""
        check_vocabularies(target.vocab_size, self.vocab_size)

    def propose(self, history: Sequence[int], target_hidden: Floats | None, budget: int) -> DraftBlock:
        """The tokens that followed the longest n-gram found; none where nothing is found."""
        tokens = tuple(self._continuation(list(history))[: max(budget, 0)][: self.max_draft])
        return DraftBlock(tokens, tuple(DraftDistribution.point_mass(token, self.vocab_size) for token in tokens))

    def _continuation(self, history: list[int]) -> list[int]:
        """What followed an earlier occurrence of the history's last tokens; nothing where there is none."""
        for n in range(self.max_ngram, self.min_ngram - 1, -1):
            starts = range(len(history) - n)
            for start in starts if self.occurrence == "first" else reversed(starts):
                if history[start : start + n] == history[-n:]:
                    return history[start + n :]
        return []

    def commit(self, history: Sequence[int]) -> None:
        """Nothing to do: it holds no state."""

    settle = rollback = commit

    def copy(self) -> Self:
        """Itself: it holds no state."""
        return self
