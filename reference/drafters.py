"""Who proposes: the protocol of a drafter, and the drafter that is a smaller language model.

A drafter owns its cache. It never remembers a position beside it: what to forward follows, on every call,
from the history it is given and the rows its cache holds. What the target makes of a proposal is not its business.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, Protocol, Self, get_args

from reference.cache import KVCache
from reference.errors import InvalidSetting, VocabularyMismatch
from reference.randomness import Randomness
from reference.sampling import LogitsProcessor, next_distribution
from reference.transformer import LanguageModel, advance
from reference.values import DraftBlock, DraftDistribution, Floats, SamplingParams, checked_integer

Schedule = Literal["catch_up", "eager", "deferred"]
Draw = Callable[[Floats, int], int]
"""(q [V], index in the history of the token to be drawn) -> token."""


class Drafter(Protocol):
    """What a decoder needs of a drafter.

    `history` is always prompt + emitted tokens, the last of which is pending: in no cache yet.
    """

    @property
    def cache(self) -> KVCache | None:
        """Its rows; None for a drafter without a model."""

    def check_vocabulary(self, target: LanguageModel) -> None:
        """Raises `VocabularyMismatch` unless it numbers its tokens as the target does."""

    def propose(self, history: Sequence[int], target_hidden: Floats | None, budget: int) -> DraftBlock:
        """At most `budget` tokens to follow the history, each with the q it was drawn from.

        `target_hidden` [n, D]: the target's hidden states of the tokens committed last, for drafters built on them.
        """

    def commit(self, history: Sequence[int]) -> None:
        """A round is decided, this is the history now: drop what was rejected, catch up as the schedule says."""

    def settle(self, history: Sequence[int]) -> None:
        """Make the cache hold exactly `history[:-1]`: after prefill, and at every end."""

    def rollback(self, history: Sequence[int]) -> None:
        """Undo a round that failed: drop all rows behind `history[:-1]`. Forwards nothing, never raises."""

    def copy(self) -> Self:
        """An independent drafter in the same state; it shares the model and the source of randomness."""


class DraftModel:
    """A language model that drafts by sampling.

    Schedules differ in when the last proposal d_{k-1}, drawn but not needed as an input, is forwarded:

    - `catch_up`: in `commit`, and only if the round accepted everything. Exactly the committed rows between rounds.
    - `eager`: in `propose`, always; one forward more per round, never one in `commit`.
    - `deferred`: in the next round, together with the pending token. Between rounds the cache may be one row short.

    Args:
        model, sampling: the drafter's own model, and what makes q of its logits; need not be the target's.
        randomness, draw: draw(q, position) draws a proposal, by default `randomness.categorical`; the `coupled` rule
            wants `randomness.coupled_categorical`.
        min_prob: the block ends where the most probable token has less than this. Decided *before* the draw, from q
            alone: judging the token that was drawn would bias the output, since proposals would no longer follow q.
        max_draft: the most proposals per round, whatever the caller's budget.
        processors: logits processors, applied as to the target.
        cache: rows to start from, of a prefix of the first history (a warm start).
        target: compare vocabularies with this model now, not at prefill.

    Raises InvalidSetting for a setting outside its range, and VocabularyMismatch as `check_vocabularies`.
    """

    def __init__(self, model: LanguageModel, sampling: SamplingParams, randomness: Randomness, *,
                 schedule: Schedule = "catch_up", min_prob: float = 0.0, max_draft: int | None = None,
                 draw: Draw | None = None, processors: Sequence[LogitsProcessor] = (),
                 cache: KVCache | None = None, target: LanguageModel | None = None) -> None:  # fmt: skip
        if schedule not in get_args(Schedule):
            raise InvalidSetting(f"schedule is {schedule!r}; give one of {', '.join(get_args(Schedule))}")
        if not min_prob >= 0:
            raise InvalidSetting(f"min_prob is {min_prob}; give a number >= 0 (0 never stops a block)")
        self.model, self.sampling, self.processors = model, sampling, tuple(processors)
        self.randomness, self.draw = randomness, draw
        self.schedule, self.min_prob, self.max_draft = schedule, min_prob, checked_limit(max_draft)
        self.cache = model.new_cache() if cache is None else cache
        if target is not None:
            self.check_vocabulary(target)

    def check_vocabulary(self, target: LanguageModel) -> None:
        """Raises `VocabularyMismatch` unless sizes and, where both are known, tokens agree."""
        contents = (getattr(model, "tokens", None) for model in (target, self.model))
        check_vocabularies(target.vocab_size, self.model.vocab_size, *contents)

    def synced_len(self, history: Sequence[int]) -> int:
        """How many tokens of the history the cache holds."""
        return min(self.cache.offset, len(history))

    def propose(self, history: Sequence[int], target_hidden: Floats | None, budget: int) -> DraftBlock:
        """Up to min(budget, max_draft) proposals, drawn one after the other; DecodingFault by a broken model."""
        self.rollback(history)
        block = DraftBlock()
        for _ in range(budget if history else 0)[: self.max_draft]:
            context = [*history, *block.tokens]
            logits = advance(self.model, context[self.cache.offset :], self.cache).logits[-1]  # [T, V] -> [V]
            q = self._distribution(logits, context)
            if q.max() < self.min_prob:
                break
            token = self._draw(q, len(context))
            block = DraftBlock((*block.tokens, token), (*block.distributions, DraftDistribution.from_dense(q)))
        if block.tokens and self.schedule == "eager":
            self._feed([*history, *block.tokens])
        return block

    def commit(self, history: Sequence[int]) -> None:
        """Trim to the committed tokens, and forward those that are missing: all, or (`deferred`) all but one.

        After a full acceptance one row is missing, and no trim can express that (lablup/mlxcel#994).
        """
        self.rollback(history)
        self._feed(history[:-2] if self.schedule == "deferred" else history[:-1])

    def settle(self, history: Sequence[int]) -> None:
        """Trim to the committed tokens, and forward every one that is missing."""
        self.rollback(history)
        self._feed(history[:-1])

    def rollback(self, history: Sequence[int]) -> None:
        """Trim to the committed tokens, whatever layer a failed forward stopped at."""
        self.cache.trim_to(max(len(history) - 1, 0))

    def copy(self) -> Self:
        """The same drafter with a cache of its own."""
        twin = copy.copy(self)
        twin.cache = self.cache.copy()
        return twin

    def _distribution(self, logits: Floats, context: Sequence[int]) -> Floats:
        return next_distribution(logits, context, self.sampling, self.processors, self.model.name)

    def _draw(self, q: Floats, position: int) -> int:
        return self.randomness.categorical(q) if self.draw is None else self.draw(q, position)

    def _feed(self, tokens: Sequence[int]) -> None:
        """Forward what the cache does not hold of `tokens`, from position 0 on."""
        if missing := tokens[self.cache.offset :]:
            advance(self.model, missing, self.cache)


def checked_limit(max_draft: int | None) -> int | None:
    """The most proposals per round, None for no limit; InvalidSetting unless it is one of these."""
    return None if max_draft is None else checked_integer("max_draft", max_draft, 0, ", or None for no limit")


def check_vocabularies(target_size: int, draft_size: int, target_tokens: Mapping[str, int] | None = None,
                       draft_tokens: Mapping[str, int] | None = None) -> None:  # fmt: skip
    """VocabularyMismatch where the sizes differ, or both tokenizers are given and number a token differently."""
    advice = "proposals are verified by id: use a drafter with the target's tokenizer and (padded) vocabulary size"
    if target_size != draft_size:
        raise VocabularyMismatch(f"the target has {target_size} tokens, the drafter {draft_size}; {advice}")
    if target_tokens is not None and draft_tokens is not None and target_tokens != draft_tokens:
        token = min(token for token, _ in target_tokens.items() ^ draft_tokens.items())
        ids = f"{target_tokens.get(token)} for the target, {draft_tokens.get(token)} for the drafter"
        raise VocabularyMismatch(f"both have {target_size} ids, but {token!r} is {ids}; {advice}")
