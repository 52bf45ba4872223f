"""A drafter without a model: it proposes what followed an earlier occurrence of the last tokens.

Deterministic, so its q is a point mass on each proposal, and it has no cache. What it keeps in step with the history
is an index of the n-grams, so that a round costs what the new tokens cost, however long the history is.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, Literal, Self, get_args

import mlx.core as mx

from mlx_impl.drafters import DeviceBlock
from mlx_impl.forward import check_tokens, device_tokens, num_shared, vocab_size
from mlx_impl.sampling import point_masses
from mlx_impl.vocabulary import Vocabulary, check_vocabularies
from reference.errors import InvalidSetting

Occurrence = Literal["recent", "first"]
"""Which earlier occurrence counts; engines differ."""

WINDOW = 16
"""Tokens compared, or `max_ngram` if that is more, where index and history go together by the protocol."""


class NgramIndex:
    """Where each n-gram of a list of tokens occurred before, for some sizes n.

    It grows and shrinks at its end, at a cost of O(tokens added or dropped x sum of the sizes), and is asked in O(1):
    for each position it holds what was known of the n-grams that end there *when they came*. So dropping a position
    leaves exactly what was there before it, and the answer for the last n tokens leaves these themselves out.

    Attributes:
        tokens: what is indexed.
        sizes: the sizes n, the longest first.
        occurrence: which earlier occurrence is remembered.
    """

    def __init__(self, sizes: Sequence[int], occurrence: Occurrence) -> None:
        self.tokens: list[int] = []
        self.sizes = tuple(sizes)
        self.occurrence = occurrence
        self._ends: dict[tuple[int, ...], int] = {}  # n-gram -> index of the last token of its occurrence that counts
        self._earlier: list[tuple[int | None, ...]] = []  # [len(tokens)][size]: what `_ends` said before this position

    def __len__(self) -> int:
        return len(self.tokens)

    def append(self, token: int) -> None:
        """Index one more token."""
        self.tokens.append(token)
        end, earlier = len(self.tokens) - 1, []
        for gram in self._grams():
            earlier.append(self._ends.get(gram) if gram else None)
            if gram and (earlier[-1] is None or self.occurrence == "recent"):
                self._ends[gram] = end
        self._earlier.append(tuple(earlier))

    def pop(self) -> None:
        """Forget the last token."""
        for gram, end in zip(self._grams(), self._earlier.pop(), strict=True):
            if end is not None:
                self._ends[gram] = end  # for "first" it says so already
            elif gram:
                del self._ends[gram]
        self.tokens.pop()

    def continuation(self) -> int | None:
        """The index behind the earlier occurrence of the longest n-gram at the end that has one; None: none has."""
        ends = self._earlier[-1] if self._earlier else ()
        return next((end + 1 for end in ends if end is not None), None)

    def copy(self) -> NgramIndex:
        """An independent copy; the n-grams themselves are shared, so that nothing is hashed again."""
        twin = NgramIndex(self.sizes, self.occurrence)
        twin.tokens, twin._ends, twin._earlier = self.tokens.copy(), self._ends.copy(), self._earlier.copy()
        return twin

    def _grams(self) -> list[tuple[int, ...]]:
        """The n-grams that end at the last token, for each size; () where there are fewer than n tokens."""
        return [tuple(self.tokens[-size:]) if size <= len(self.tokens) else () for size in self.sizes]


class PromptLookup:
    """Looks the history's last n tokens up in what came before, the longest n first.

    The index belongs to one history, and a proposal is only made from an index of the very history that is given:

    - `propose` and `settle` compare the whole of both, unless the call before was a `commit`, `settle` or
      `rollback`. After one of these the index holds the history that the decoder named as its boundary, and by the
      protocol the next `propose` is for that boundary: then lengths and the last `WINDOW` tokens are compared.
    - `commit` follows a round: by the protocol its history is the one before, and new tokens. Its length, and the
      `WINDOW` tokens before the new ones, are compared.
    - `rollback` names a boundary that the history went through. Its length and its last `WINDOW` tokens are compared.
    - Wherever such a comparison fails, the whole is compared, and the index cut to what both share.

    What is proposed is read from the history given, behind tokens that are compared with its last ones there. So a
    caller who breaks the protocol, and edits tokens far back between `commit` and `propose`, still gets what follows
    an earlier occurrence in his history, though perhaps not of the longest n-gram. (q is a point mass on what is
    proposed in any case, and the output's distribution the target's.)

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
        self._index = self._empty()
        self._told = False  # whether the index holds the boundary that a hook named last

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
        start = self._continuation(history) if limit > 0 else None
        if start is None:
            return DeviceBlock.empty(self.vocab_size)
        follows = list(history[start : start + limit])
        check_tokens(follows, self.vocab_size, "history")
        tokens = device_tokens(follows)
        return DeviceBlock(tokens, point_masses(tokens, self.vocab_size), mx.zeros((0,), mx.uint8))

    def commit(self, history: Sequence[int]) -> None:
        """Index the tokens that the round emitted."""
        kept = len(self._index)
        self._follow(history, kept if self._agrees(history, kept) else None)
        self._told = True

    def settle(self, history: Sequence[int]) -> None:
        """Index this history, whatever was indexed; compares the whole."""
        self._follow(history, None)
        self._told = True

    def rollback(self, history: Sequence[int]) -> None:
        """Forget what is behind this history."""
        self._follow(history, len(history) if self._agrees(history, len(history)) else None)
        self._told = True

    def copy(self) -> Self:
        """One with a copy of the index."""
        twin = copy.copy(self)
        twin._index = self._index.copy()
        return twin

    def _continuation(self, history: Sequence[int]) -> int | None:
        """Where to copy from, by an index of this history."""
        trusted, self._told = self._told and len(self._index) == len(history), False
        start = self._index.continuation()
        if not (trusted and self._agrees(history, len(history)) and (start is None or self._agrees(history, start))):
            self._follow(history, None)
        return self._index.continuation()

    def _agrees(self, history: Sequence[int], end: int) -> bool:
        """Whether index and history both reach to `end`, and the tokens just before it are the same in both."""
        window = slice(max(end - max(WINDOW, self.max_ngram), 0), end)
        reached = end <= min(len(self._index), len(history))
        return reached and self._index.tokens[window] == list(history[window])

    def _follow(self, history: Sequence[int], kept: int | None) -> None:
        """Index this history, of which `kept` tokens are known to be what is indexed; None: compare them."""
        # Out of reach until it is whole again: an interrupt half-way leaves an empty index, to be filled anew.
        index, self._index, self._told = self._index, self._empty(), False
        kept = num_shared(index.tokens, history) if kept is None else kept
        while len(index) > kept:
            index.pop()
        for token in history[kept:]:
            index.append(token)
        self._index = index

    def _empty(self) -> NgramIndex:
        return NgramIndex(range(self.max_ngram, self.min_ngram - 1, -1), self.occurrence)
