"""A model's cache: forwards that are seen to fill it, and the ways back from what it should not hold.

`checkpoint` before a block, `commit` after it: what was forwarded since and is not committed leaves no trace, in
whatever kind of cache (`layers`). Plain layers are trimmed. A window gets its rows back from a copy, and the accepted
ones from the end of the block. A recurrent state goes back to a copy that was made after the last forward whose tokens
all stay; tokens behind it are forwarded again, through the whole model. mlx-lm's models give the state after a pass
only, so a verify pass accepted in part costs that; a drafter's single steps leave a copy each, and cost nothing.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Self

import mlx.core as mx

from mlx_impl.cache import make_cache
from mlx_impl.forward import device_tokens, num_shared
from mlx_impl.kv_quantisation import KVQuantisation
from mlx_impl.layers import Kind, arrays, changed, copied, emptied, kind_of, leaves, trim
from mlx_impl.marks import Mark, put_back, rows_behind
from reference.errors import CacheLengthError, HiddenCache, InvalidSetting

PREFILL_STEP = 512
"""Most tokens in one forward of a long prompt; bounds the memory that attention takes."""


class ModelCache(Sequence[Any]):
    """The cache of a model. As a sequence: the caches of its layers.

    The model itself, called as mlx-lm calls its models, is given to whatever forwards.

    Args:
        name: names the model in messages.
        layers: the caller's own caches, which are written to. May be fewer than the model has layers, where some share
            theirs.
        length: tokens that `layers` hold, where no layer can tell (a model of recurrent layers only); else None.
        quantisation: when to quantise key-value rows; None for never.
        prefill_step: most tokens in one forward of a long prompt.

    Raises:
        InvalidSetting: caches of a batch; recurrent ones that hold something without a `length`; or `quantisation` of
            caches that cannot be quantised.
        CacheLengthError: layers hold different numbers of tokens.
    """

    def __init__(
        self,
        name: str,
        layers: Sequence[Any],
        *,
        length: int | None = None,
        quantisation: KVQuantisation | None = None,
        prefill_step: int = PREFILL_STEP,
    ) -> None:
        self.name = name
        self.layers = _own(layers)
        if any(getattr(leaf, "keep", 0) for leaf in self._leaves):
            from mlx_impl.rotating import with_right_masks  # mlx-lm is there: the cache is one of its own

            self.layers[:] = [with_right_masks(layer) for layer in self.layers]
        self.quantisation = quantisation
        self.prefill_step = prefill_step
        self._marks: list[Mark] = []
        self._known: Sequence[int] | None = None  # tokens of the first rows, as far as it was told
        self._unquantised: list[Any] = []  # empty caches, where those in use were quantised
        self._torn = False
        self._owed = 0
        self._kinds: list[Kind] = [kind_of(leaf) for leaf in self._leaves]
        self._count = _count(self._leaves, length)
        if max(self._offsets()) == 0:
            self._known = ()
        if quantisation is not None:
            quantisation.check(self.layers, name)

    def __len__(self) -> int:
        return len(self.layers)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.layers)

    def __getitem__(self, index: Any) -> Any:
        return self.layers[index]

    @property
    def length(self) -> int:
        """Tokens held: read off the layers, where one can tell.

        Raises:
            CacheLengthError: the layers disagree, or something stopped a forward half-way and nobody rolled it back.
        """
        offsets = self._offsets()
        if self._torn:
            raise CacheLengthError(
                f"a forward or a roll-back of the {self.name}'s cache did not come to its end; roll it back to what is "
                "known of it (rollback), or begin with a fresh one"
            )
        if len(set(offsets)) > 1:
            raise CacheLengthError(f"layers hold {offsets} rows; give a cache whose layers hold the same tokens")
        return offsets[0]

    @property
    def behind(self) -> bool:
        """Whether fewer tokens are held than the last way back was to end at: a forward of the others is due."""
        return self._owed > 0

    def shared(self, tokens: Sequence[int]) -> int:
        """How many of these tokens are held for certain, from the first one on.

        Rows whose tokens it was told (`checkpoint`, `feed`, `commit`) are compared. Those that came with the caller's
        own layers, before it was told anything, are taken for the tokens at their places; those of a `forward` that
        is not committed yet do not count.

        Raises:
            CacheLengthError: as `length`.
        """
        held = min(self.length, len(tokens))
        return held if self._known is None else num_shared(self._known[:held], tokens)

    def shared_after_forwards(self, tokens: Sequence[int]) -> int:
        """As `shared`, where the caller knows that what was forwarded since the checkpoint are these tokens, too.

        Raises:
            CacheLengthError: as `length`.
        """
        known = self._known or ()
        return min(self.length, len(tokens)) if num_shared(known, tokens) == len(known) else self.shared(tokens)

    @property
    def is_plain(self) -> bool:
        """Whether every layer can be trimmed at any time."""
        return all(kind == "plain" for kind in self._kinds)

    @property
    def _leaves(self) -> list[Any]:
        return list(leaves(self.layers))

    def _offsets(self) -> tuple[int, ...]:
        """Tokens held by each leaf that can tell; at least one number."""
        return tuple(leaf.offset for leaf in self._leaves if hasattr(leaf, "offset")) or (self._count,)

    # ------------------------------------------------------------------------------------------------- forward

    def forward(self, model: Any, tokens: mx.array) -> mx.array:
        """Append tokens [T]; return their logits, float32 [T, V].

        Raises:
            HiddenCache: some layer's cache did not grow by T.
        """
        logits = self._append(model, tokens)
        self._mark()
        return logits

    def feed(self, model: Any, tokens: Sequence[int]) -> mx.array:
        """Append any number of tokens, at least one; return the logits of the last, float32 [1, V].

        Where the caller drops the logits, MLX never computes them.

        Raises:
            HiddenCache: as `forward`.
            CacheLengthError: as `length`.
        """
        size = self.prefill_step
        chunks = [device_tokens(tokens[start : start + size]) for start in range(0, len(tokens), size)]
        if self._known is not None and len(self._known) >= (held := self.length):
            # Before the rows come: should two interrupts leave them behind, it is known whose they are.
            self._known = [*self._known[:held], *tokens]
        for chunk in chunks[:-1]:
            self._append(model, chunk)
            mx.async_eval([layer.state for layer in self.layers])  # type: ignore[no-untyped-call]
        return self.forward(model, chunks[-1])[-1:]

    def _append(self, model: Any, tokens: mx.array) -> mx.array:
        count = tokens.shape[0]
        before = [(getattr(leaf, "offset", None), arrays(leaf)) for leaf in self._leaves]
        self._torn = True
        logits: mx.array = model(tokens[None], cache=self.layers)[0]
        grown = [
            changed(leaf, states) if offset is None else leaf.offset - offset == count
            for leaf, (offset, states) in zip(self._leaves, before, strict=True)
        ]
        if not grown or not all(grown):
            offsets = tuple(offset for offset, _ in before)
            after = tuple(getattr(leaf, "offset", None) for leaf in self._leaves)
            raise HiddenCache(
                f"a forward of {count} tokens took the {self.name}'s cache offsets from {offsets} to {after}; it keeps "
                "its rows where they cannot be rolled back: use a model that fills the cache it is given"
            )
        self._count, self._owed, self._torn = self._count + count, 0, False
        return logits.astype(mx.float32)

    # ------------------------------------------------------------------------------------------------ ways back

    def checkpoint(self, tokens: Sequence[int]) -> None:
        """What is held now is committed, and these are its tokens: forget all earlier ways back.

        Raises:
            CacheLengthError: as `length`.
        """
        self._count, self._known = self.length, list(tokens)
        self._marks = [self._here()]

    def commit(self, model: Any, tokens: Sequence[int]) -> None:
        """Hold exactly these tokens from now on, a prefix of what is held; whatever came behind them is forgotten.

        Raises:
            CacheLengthError: fewer are held, the layers disagree, or one does not let itself be trimmed.
        """
        held, length = self.length, len(tokens)
        if held < length:
            raise CacheLengthError(
                f"the {self.name}'s cache holds {held} tokens, fewer than the {length} to be kept; refill it"
            )
        if held > length:
            self._cut(length)
            if self._owed:
                self.feed(model, tokens[length - self._owed :])
            else:
                self._mark()
        self._known = list(tokens)
        self._quantise()

    def rollback(self, length: int) -> None:
        """Hold at most `length` tokens, and forward nothing: the model may be what failed.

        Layers may differ before, as after a forward that failed half-way. Where a layer has no way back to `length`
        without a forward, all layers go back to fewer tokens.

        Raises:
            CacheLengthError: a layer does not let itself be trimmed.
        """
        if self._torn or max(self._offsets()) > length:
            self._cut(min(length, *self._offsets()) if self.is_plain else length)
        self._owed = max(length - min(self._offsets()), 0)

    def _cut(self, length: int) -> None:
        """Go back to `length` tokens, or where that takes a forward to fewer: then some are owed."""
        self._torn = True
        index = max((i for i, mark in enumerate(self._marks) if mark.length <= length), default=None)
        mark = None if index is None else self._marks[index]
        following = None if index is None else next(iter(self._marks[index + 1 :]), None)
        del self._marks[0 if index is None else index + 1 :]
        reached = length
        if mark is not None:
            self.layers[:] = mark.layers
        elif self.quantisation is not None and self._unquantised and length < self.quantisation.start:
            self.layers[:], reached = [copied(layer) for layer in self._unquantised], 0
        if not self.is_plain:
            start = 0 if mark is None else mark.length
            rows = None if mark is None else rows_behind(mark, following, length, self._kinds)
            reached = start if rows is None else length
            put_back(self._leaves, self._kinds, mark, rows or {}, length - start)
        for place, (leaf, kind) in enumerate(zip(self._leaves, self._kinds, strict=True)):
            if kind == "plain":
                trim(leaf, reached, place)
        self._known = None if self._known is None else self._known[:reached]
        self._count, self._owed, self._torn = reached, length - reached, False

    def _mark(self) -> None:
        self._marks.append(self._here())

    def _here(self) -> Mark:
        return Mark.of(self._count, self.layers, self._kinds)

    def copy(self) -> Self:
        """An independent copy, with the same ways back; the model is shared."""
        known = {id(layer): layer for mark in self._marks for layer in mark.layers}
        twins = {key: copied(layer) for key, layer in (known | {id(layer): layer for layer in self.layers}).items()}
        twin = copy.copy(self)
        twin.layers = [twins[id(layer)] for layer in self.layers]
        twin._marks = [replace(mark, layers=tuple(twins[id(layer)] for layer in mark.layers)) for mark in self._marks]
        return twin

    # ------------------------------------------------------------------------------------------------ quantising

    @property
    def tokens_before_quantising(self) -> int | None:
        """How many more tokens are forwarded before rows are quantised; None where that is over, or never."""
        if self.quantisation is None or not any(hasattr(layer, "to_quantized") for layer in self.layers):
            return None
        return max(self.quantisation.start - self.length, 0)

    def _quantise(self) -> None:
        """Quantise rows that are due. At a boundary only: plain decoding does so between two tokens of its output."""
        if self.quantisation is None or self.length == 0:
            return
        self.quantisation.check_rows(self.layers)
        if self.tokens_before_quantising == 0:
            self._unquantised = self._unquantised or [emptied(layer) for layer in self.layers]
            self.layers[:] = self.quantisation.of(self.layers)
            self._mark()


def cache_of(model: Any, name: str, cache: ModelCache | Sequence[Any] | None) -> ModelCache:
    """A model's cache as the caller gives it: whole, as a list of its layers' caches, or not at all: a fresh one."""
    if isinstance(cache, ModelCache):
        return cache
    return ModelCache(name, make_cache(model) if cache is None else cache)


def _own(layers: Sequence[Any]) -> list[Any]:
    """The caller's list itself where it is one: caches that are replaced must be replaced for the caller, too."""
    return layers if isinstance(layers, list) else list(layers)


def _count(layers: Sequence[Any], length: int | None) -> int:
    """Tokens held by layers that cannot tell."""
    hidden = [layer for layer in layers if not hasattr(layer, "offset")]
    if length is None and len(hidden) == len(layers) and not all(layer.empty() for layer in hidden):
        raise InvalidSetting(
            "the caches are of recurrent layers, which do not tell how many tokens they hold; give length"
        )
    return length or 0
