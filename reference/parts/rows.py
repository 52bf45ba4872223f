"""What a layer's cache is to `KVCache` and to whoever looks at it; layers of several kinds in one cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, Self, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from reference.cache import KVCache, LayerCache
from reference.checkpoint import read_config, read_tokens, read_weights
from reference.transformer import Transformer

Floats = NDArray[np.float64]
Model = TypeVar("Model", bound=Transformer)


class Rows(Protocol):
    """A layer of a `KVCache`: a value that is never written to after it is made, so copies may share it."""

    @property
    def first(self) -> int:
        """The position of the first row that it shows: 0, unless it forgets."""
        ...

    @property
    def keys(self) -> Floats:
        """What it shows [n_kv_heads, rows, ...], from position `first` to `offset - 1`."""
        ...

    @property
    def values(self) -> Floats:
        """As `keys`."""
        ...

    @property
    def offset(self) -> int:
        """How many tokens it has seen: the position of the next one."""
        ...

    def with_rows(self, keys: Floats, values: Floats) -> Self:
        """Itself after T more tokens [n_kv_heads, T, head_dim]."""
        ...

    def first_rows(self, length: int) -> Self:
        """Itself as it was after `length` tokens; itself where it has seen no more.

        Raises:
            CacheLengthError: it no longer knows. Never a silent nothing.
        """
        ...


def cache_of(layers: Sequence[Rows | LayerCache]) -> KVCache:
    """A cache of such layers: `KVCache` asks no more of a layer than `Rows` promises."""
    return KVCache(cast(list[LayerCache], list(layers)))


def load_as(model_class: Callable[..., Model], folder: Path | str) -> Model:
    """As `transformer.load`, with a class that treats the same weights in another way."""
    folder = Path(folder)
    config = read_config(folder)
    return model_class(config, read_weights(folder, config), folder.name, read_tokens(folder))
