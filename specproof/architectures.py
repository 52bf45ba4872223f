"""What can be made of the weights of a checkpoint: models of `reference` by name, for engines and for the oracle."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Protocol, cast

from reference.errors import InvalidSetting
from reference.parts.batch import BatchTransformer
from reference.parts.grammar import GrammarTransformer
from reference.parts.paged import PagedTransformer
from reference.parts.quantised import QuantisedTransformer
from reference.parts.recurrent import RecurrentTransformer
from reference.parts.rotating import WindowedTransformer
from reference.parts.rows import load_as
from reference.transformer import Transformer, WholePass


class WholeModel(Protocol):
    """What the oracle needs of a model."""

    @property
    def vocab_size(self) -> int:
        """V."""
        ...

    def forward_without_cache(self, tokens: Sequence[int]) -> WholePass:
        """Logits [T, V], and the rows that caches hold after them."""
        ...


ARCHITECTURES: Mapping[str, type[Transformer]] = {
    "llama": Transformer,
    "windowed": WindowedTransformer,
    "recurrent": RecurrentTransformer,
    "quantised": QuantisedTransformer,
    "paged": PagedTransformer,
    "grammar": GrammarTransformer,
    "batch": BatchTransformer,
}
"""Each reads the same folders. `llama`, `paged` and `batch` compute the same; the others do not."""


def architecture(name: str) -> type[Transformer]:
    """The model of that name.

    Raises:
        InvalidSetting: there is none.
    """
    if name not in ARCHITECTURES:
        raise InvalidSetting(f"no architecture is named {name!r}; give one of {', '.join(ARCHITECTURES)}")
    return ARCHITECTURES[name]


def is_grammar(name: str) -> bool:
    """Whether the logits of an architecture are masked by the tokens before them."""
    return issubclass(ARCHITECTURES.get(name, Transformer), GrammarTransformer)


def whole_model(folder: Path, name: str) -> WholeModel:
    """The model of a folder in an architecture, for passes without a cache.

    Names that begin with `mlx-` are families of mlx-lm's models (`adapters.mlx_families`), which take its extra.
    """
    if name.startswith("mlx-"):
        from specproof.adapters import mlx_families

        return mlx_families.WholeModel(folder, name.removeprefix(mlx_families.PREFIX))
    return load_model(folder, architecture(name))


def load_model(folder: Path, made_of: Callable[..., Transformer]) -> Transformer:
    """The model that a class makes of a folder, which must not change while the process runs."""
    return _loaded(folder, cast(Hashable, made_of))


@lru_cache(maxsize=64)
def _loaded(folder: Path, made_of: Callable[..., Transformer]) -> Transformer:
    return load_as(made_of, folder)
