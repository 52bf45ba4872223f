"""Who proposes tokens: the protocol, and the drafter that is a smaller model with a cache of its own.

A drafter's tokens stay on the device: `DeviceBlock` holds lazy arrays. The only wait is asked for by the caller:
with `min_prob` > 0 the drafter must look at each distribution before it draws, once for each proposal.
"""

# mypy: allow-untyped-calls
# (mx.async_eval carries no annotations)

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, Self, get_args

import mlx.core as mx

from mlx_impl.forward import check_tokens, device_tokens, vocab_size
from mlx_impl.model_cache import ModelCache, cache_of
from mlx_impl.randomness import Randomness
from mlx_impl.sampling import LogitsProcessor, Sampler, distributions, needs_context, row_faults
from mlx_impl.vocabulary import align
from reference.errors import InvalidSetting
from reference.values import SamplingParams

NAME = "draft model"

Schedule = Literal["catch_up", "deferred"]
"""When a draft model forwards the last proposal of a block that was accepted as a whole."""

Draw = Callable[[mx.array, int], mx.array]
"""(distributions [n, V], index in the history of the token that row 0 draws) -> tokens uint32 [n]."""


@dataclass(frozen=True)
class DeviceBlock:
    """What a drafter proposes in one round, on the device.

    Attributes:
        tokens: the k proposals, uint32 [k].
        probabilities: the distribution q that each was drawn from, float32 [k, V]. Where nobody knows it (an opaque
            sampler), a point mass on each proposal, which is true given the draw: every rule keeps its law.
        faults: `sampling.row_faults` of the rows it drew from, or would have: uint8 [n], the first one at the
            pending token. Empty for a drafter without a model.
    """

    tokens: mx.array
    probabilities: mx.array
    faults: mx.array

    @classmethod
    def empty(cls, vocab_size: int) -> DeviceBlock:
        """No proposals."""
        return cls(mx.zeros((0,), mx.uint32), mx.zeros((0, vocab_size)), mx.zeros((0,), mx.uint8))

    def __len__(self) -> int:
        return self.tokens.shape[0]


class Drafter(Protocol):
    """Proposes tokens, and keeps what it remembers of the history in step with it.

    `history` is prompt and emitted tokens, the last of them pending; a cache is in step when it holds the rows of
    `history[:-1]`.
    """

    @property
    def cache(self) -> ModelCache | None:
        """Its cache; None for a drafter without a model."""
        ...

    def check_vocabulary(self, target: Any) -> None:
        """Raises `VocabularyMismatch` unless it numbers its tokens as the target does."""
        ...

    def propose(self, history: Sequence[int], target_hidden: mx.array | None, budget: int) -> DeviceBlock:
        """At most `budget` proposals to follow the history."""
        ...

    def commit(self, history: Sequence[int]) -> None:
        """A round ended and this is the history now: drop what was rejected, catch up with what was accepted."""
        ...

    def settle(self, history: Sequence[int]) -> None:
        """The turn begins or ends: bring the cache in step with the history, whatever it holds."""
        ...

    def rollback(self, history: Sequence[int]) -> None:
        """A round failed: cut the cache to at most `len(history) - 1` rows, without a forward."""
        ...

    def copy(self) -> Self:
        """An independent copy; model and source of randomness are shared."""
        ...


class DraftModel:
    """A language model as drafter: k forwards for k proposals. After a full acceptance the last one has no row yet.

    By the `catch_up` schedule it is forwarded at once; by `deferred` in the next round, with the pending token, which
    is faster where a forward of two tokens takes hardly longer than that of one. The cache may then be one row short
    between rounds, though never at an end.

    Its position is read off history and cache on each call and never remembered beside them: the cache is cut to
    what it shares with the history, and the tokens behind that are forwarded.

    Args:
        model: `Transformer`, or any mlx-lm model.
        sampling: what is drawn from; need not be the target's. An opaque sampler draws by itself.
        randomness: makes the draws.
        min_prob: end the block where the most probable token has less than this. Decided *before* drawing: to
            decide on the drawn token would leave the improbable ones out and bias the output. Above 0 it costs one
            synchronisation for each proposal; above 1 nothing is ever proposed.
        max_draft: most proposals in a block, whatever the budget; None: the budget alone decides.
        processors: logits processors in mlx-lm's convention.
        draw: draws the proposals in place of `randomness.categorical`, where there is something to draw: at temperature
            0 it is not called. Give `randomness.coupled_categorical` for the rule `coupled`.
        cache: one that already holds a prefix of the history, as a list of the layers' caches or a `ModelCache`; None
            for a fresh one.
        schedule: when the last proposal is forwarded, see above.

    Raises:
        InvalidSetting: min_prob or max_draft out of range, min_prob beside an opaque sampler, an unknown schedule, or a
            cache that `ModelCache` refuses.
    """

    def __init__(
        self,
        model: Any,
        sampling: SamplingParams | Sampler,
        randomness: Randomness,
        *,
        min_prob: float = 0.0,
        max_draft: int | None = None,
        processors: Sequence[LogitsProcessor] = (),
        draw: Draw | None = None,
        cache: ModelCache | Sequence[Any] | None = None,
        schedule: Schedule = "catch_up",
    ) -> None:
        if schedule not in get_args(Schedule):
            raise InvalidSetting(f"schedule is {schedule!r}; give one of {', '.join(get_args(Schedule))}")
        if not (math.isfinite(min_prob) and min_prob >= 0):
            raise InvalidSetting(f"min_prob is {min_prob}; give a finite number >= 0 (0 never ends a block)")
        if min_prob > 0 and not isinstance(sampling, SamplingParams):
            raise InvalidSetting(f"min_prob is {min_prob}, but an opaque sampler shows no probabilities; give 0")
        if max_draft is not None and max_draft < 0:
            raise InvalidSetting(f"max_draft is {max_draft}; give an integer >= 0, or None for no limit")
        self.model = model
        self.sampling = sampling
        self.randomness = randomness
        self.min_prob = min_prob
        self.max_draft = max_draft
        self.processors = tuple(processors)
        self.draw = draw
        self.schedule: Schedule = schedule
        self.vocab_size = vocab_size(model)
        self.cache = cache_of(model, NAME, cache)

    def check_vocabulary(self, target: Any) -> None:
        """Refuse a target that numbers its tokens otherwise; take on its size where it is padded to another.

        Raises:
            VocabularyMismatch: see `vocabulary.check_vocabularies`.
        """
        self.model = align(self.model, target)
        self.vocab_size = vocab_size(self.model)

    def synced_len(self, history: Sequence[int]) -> int:
        """How many tokens of the history the cache holds for certain (see `ModelCache.shared`)."""
        return self.cache.shared(history)

    def propose(self, history: Sequence[int], target_hidden: mx.array | None, budget: int) -> DeviceBlock:
        """At most `budget` proposals; the cache grows by a row for each token forwarded.

        Raises:
            HiddenCache: the model did not fill the cache it was given.
            TokenOutOfRange: a token of the history that the model does not know.
        """
        none = DeviceBlock.empty(self.vocab_size)
        limit = budget if self.max_draft is None else min(budget, self.max_draft)
        if not history:
            return none
        kept = self._cut(history[:-1], self.synced_len(history))
        self.cache.checkpoint(history[:kept])
        if limit <= 0:
            return none
        logits = self._feed(history[kept:])  # [1, V], the row at the pending token
        context = device_tokens(history) if needs_context(self.sampling, self.processors) else None
        tokens, rows, seen = [none.tokens], [logits], [none.probabilities]
        while True:
            q = distributions(logits, self.sampling, context, self.processors)  # [1, V]
            seen.append(q)
            # NaN compares false, so it ends the block here; its fault tells the decoder why.
            if self.min_prob > 0 and not float(mx.max(q)) >= self.min_prob:
                break
            token = self._draw(q, len(history) + len(tokens) - 1)  # [1]; `tokens` begins with an empty one
            tokens.append(token)
            mx.async_eval(token)  # the device works on it while the host builds what follows, be it the target's pass
            if len(tokens) > limit:
                break
            context = None if context is None else mx.concatenate([context, token])
            logits = self.cache.forward(self.model, token)  # [1, V]
            rows.append(logits)
        every = mx.concatenate(seen)  # [n, V], of all rows looked at, drawn from or not
        return DeviceBlock(mx.concatenate(tokens), every[: len(tokens) - 1], row_faults(mx.concatenate(rows), every))

    def commit(self, history: Sequence[int]) -> None:
        """Drop the rows of rejected proposals; after a full acceptance forward the last one, which has no row.

        That row is what engines forget: no trim can express a missing one (lablup/mlxcel PR#1002).
        """
        # By the protocol `propose` went before, and what the round accepted is what it forwarded.
        held, committed = self.cache.shared_after_forwards(history), len(history) - 1
        owed = 1 if self.schedule == "deferred" and held < committed else 0
        self._fill(history[: committed - owed], held)

    def settle(self, history: Sequence[int]) -> None:
        """Make the cache hold exactly the rows of `history[:-1]`.

        Raises:
            HiddenCache, TokenOutOfRange: as `propose`.
        """
        self._fill(history[:-1], self.synced_len(history))

    def rollback(self, history: Sequence[int]) -> None:
        """Cut every layer to at most the rows of `history[:-1]`; layers may differ after a failed forward."""
        self.cache.rollback(max(len(history) - 1, 0))

    def copy(self) -> Self:
        """The same drafter, of its own class, with a copy of the cache."""
        twin = copy.copy(self)
        twin.cache = self.cache.copy()
        return twin

    def _draw(self, q: mx.array, position: int) -> mx.array:
        if not isinstance(self.sampling, SamplingParams) or self.sampling.temperature == 0:
            return mx.argmax(q, axis=-1)  # a point mass leaves nothing to chance
        return self.randomness.categorical(q) if self.draw is None else self.draw(q, position)

    def _cut(self, tokens: Sequence[int], held: int) -> int:
        """Cut the cache to those of its first `held` rows that belong to these tokens; return how many."""
        kept = min(held, len(tokens))
        self.cache.commit(self.model, tokens[:kept])
        return kept

    def _fill(self, tokens: Sequence[int], held: int) -> None:
        """Make the cache, whose first `held` rows may stay, hold exactly these tokens."""
        missing = tokens[self._cut(tokens, held) :]
        if missing:
            self._feed(missing)
            self.cache.commit(self.model, tokens)
            # Now, though it may be long until someone asks for a proposal: or the rows wait in a graph that grows.
            mx.async_eval([layer.state for layer in self.cache])

    def _feed(self, tokens: Sequence[int]) -> mx.array:
        """Forward the tokens that the cache lacks; return the logits of the last, float32 [1, V]."""
        check_tokens(tokens, self.vocab_size, "history")
        return self.cache.feed(self.model, tokens)
