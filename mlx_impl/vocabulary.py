"""Whether two models number their tokens alike, and how to draft with one that does under another size.

Models are often wider than their tokenizer: rows are added until the size suits the hardware, and those of a family are
padded to different sizes. Such models can work together. Where the drafter's rows are laid out as the target's:

- an id that both know keeps its logit, so that q is renormalised on the shared ids;
- any other id gets none, *before* temperature and filters, so that the q reported is the q drawn from;
- an id of the target that the drafter does not know reads as one that it does: what a drafter reads is its own affair.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import numpy as np

from mlx_impl.forward import vocab_size
from reference.errors import VocabularyMismatch

LOWEST = float(np.finfo(np.float32).min)
"""The logit of a token that cannot be drawn: finite, as infinite logits are a fault of the model. Its probability is
exactly 0 up to a temperature of 1e36."""


@dataclass(frozen=True)
class Vocabulary:
    """What is known of a model's tokens.

    Attributes:
        size: how many logits the model has; at least one for each token of its tokenizer.
        tokens: token -> id, as the tokenizer has it; None where it is not known.
        special_ids: those of them that are no text; None where it is not known.
    """

    size: int
    tokens: Mapping[str, int] | None = None
    special_ids: AbstractSet[int] | None = None

    @classmethod
    def of(cls, model: Any) -> Vocabulary:
        """That of a model: its size, and its `tokens` and `special_ids` where it has such attributes.

        Raises:
            InvalidSetting: it does not tell its size.
        """
        return cls(vocab_size(model), getattr(model, "tokens", None), getattr(model, "special_ids", None))


def check_vocabularies(target: Vocabulary, draft: Vocabulary) -> None:
    """Refuse a pair whose distributions cannot be compared id by id.

    Where both tokenizers are known they must be one: the same tokens under the same ids, special ones and others; but a
    special token, as fine-tuning adds it, may be missing from one of them. Sizes may differ then.

    Raises:
        VocabularyMismatch: the tokenizers differ, or one is not known and the sizes differ.
    """
    difference = _difference(target, draft)
    known = target.tokens is not None and draft.tokens is not None
    if target.size != draft.size and (difference or not known):
        raise VocabularyMismatch(
            f"the target knows {target.size} tokens, the drafter {draft.size}; a proposal would mean another token to "
            "the target: give a drafter with the target's tokenizer and vocabulary size"
            + (
                f" ({difference})"
                if difference
                else ", or load both with their tokenizers, which may show that they agree"
            )
        )
    if difference:
        raise VocabularyMismatch(
            f"{difference}; a proposal would mean another token to the target: give a drafter with the target's "
            "tokenizer"
        )


def _difference(target: Vocabulary, draft: Vocabulary) -> str | None:
    """The first thing in which two tokenizers differ; None where nothing is known to."""
    ours, theirs = target.tokens, draft.tokens
    if ours is None or theirs is None:
        return None
    if ours != theirs:
        special = frozenset().union(target.special_ids or (), draft.special_ids or ())
        owners = {id: token for token, id in ours.items()}
        for token, id in sorted(set(ours.items()) ^ set(theirs.items())):
            missing = (token in ours) != (token in theirs)
            if missing and id in special and owners.get(id, token) == token:
                continue
            return f"token {token!r} has id {ours.get(token)} for the target and {theirs.get(token)} for the drafter"
    if target.special_ids is None or draft.special_ids is None:
        return None
    disputed = target.special_ids ^ draft.special_ids
    if not disputed or not (disputed := disputed & shared_ids(target, draft)):
        return None
    of_target = min(disputed) in target.special_ids
    return (
        f"id {min(disputed)} is a special token for the {'target' if of_target else 'drafter'} and text for the other"
    )


def shared_ids(target: Vocabulary, draft: Vocabulary) -> frozenset[int]:
    """Ids that both models have and, where the tokenizers are known, both name."""
    shared = frozenset(range(min(target.size, draft.size)))
    for tokens in (target.tokens, draft.tokens):
        shared &= shared if tokens is None else frozenset(tokens.values())
    return shared


@dataclass(frozen=True)
class Alignment:
    """How the drafter's ids lie among the target's.

    Attributes:
        shared: ids that both know: bool [V], V the target's size.
        readable: for each id of the target the one that the drafter reads: uint32 [V].
    """

    shared: mx.array
    readable: mx.array

    @classmethod
    def on(cls, shared: Iterable[int], size: int) -> Alignment:
        """The alignment on these ids, at least one, with a target of that size."""
        ids = sorted(shared)
        mask = np.zeros(size, dtype=bool)
        mask[ids] = True
        return cls(mx.array(mask), mx.array(np.where(mask, np.arange(size), ids[0]).astype(np.uint32)))

    def logits(self, logits: mx.array) -> mx.array:
        """The drafter's logits in the target's places, float32 [..., V]: `LOWEST` at all ids that are not shared."""
        size, width = self.shared.shape[0], logits.shape[-1]
        placed = logits[..., :size].astype(mx.float32)
        if width < size:
            filler = mx.full((*logits.shape[:-1], size - width), LOWEST, dtype=mx.float32)
            placed = mx.concatenate([placed, filler], axis=-1)
        return mx.where(self.shared, placed, LOWEST)


class AlignedModel:
    """A drafter's model under the target's vocabulary; in everything else the model that it wraps.

    Args:
        inner: the model.
        target: whose vocabulary it takes on.
        alignment: of the two.
    """

    def __init__(self, inner: Any, target: Vocabulary, alignment: Alignment) -> None:
        self.inner = inner
        self.target = target
        self.alignment = alignment
        self.args = SimpleNamespace(**{**vars(inner.args), "vocab_size": target.size})
        self.tokens = target.tokens
        self.special_ids = target.special_ids

    def __call__(self, inputs: mx.array, cache: Any = None) -> mx.array:
        """Token ids of the target [B, T] -> logits in its places, float32 [B, T, V]. Waits for nothing."""
        return self.alignment.logits(self.inner(self.alignment.readable[inputs], cache=cache))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # Python's own protocols, asked for before there is an inner model
            raise AttributeError(name)
        return getattr(self.inner, name)


def align(model: Any, target: Any) -> Any:
    """A drafter's model as it can propose to the target: itself, where they have one vocabulary, or wrapped.

    Raises:
        VocabularyMismatch: see `check_vocabularies`.
    """
    ours = Vocabulary.of(target)
    if isinstance(model, AlignedModel) and model.target == ours:
        return model
    inner = model.inner if isinstance(model, AlignedModel) else model
    theirs = Vocabulary.of(inner)
    check_vocabularies(ours, theirs)
    if ours.size == theirs.size and (ours.tokens is None or theirs.tokens is None or ours.tokens == theirs.tokens):
        return inner
    return AlignedModel(inner, ours, Alignment.on(shared_ids(ours, theirs), ours.size))
