"""The MLX decoder on every family of caches that mlx-lm's models have: tiny random models, each as an engine.

A family is an architecture of mlx-lm with weights drawn at random. They are drawn anew for every folder of a pair, from
its name; of the folder itself only the size of the vocabulary counts. The truth about such a model is the model itself:
logits of a pass without a cache (or of single steps on a fresh one, where the model does not make its caches itself),
and rows and states that a fresh cache holds after one token at a time.
"""

# mypy: allow-untyped-calls
# (mlx-lm carries no annotations)

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import ArraysCache, CacheList, ChunkedKVCache, QuantizedKVCache

from mlx_impl.cache import make_cache
from mlx_impl.forward import vocab_size
from mlx_impl.layers import kind_of, leaves
from mlx_impl.model_cache import ModelCache
from reference.transformer import WholePass
from specproof.adapters.mlx_family_models import FAMILIES, GROUP, build
from specproof.adapters.mlx_impl import MlxImplEngine, MlxImplSession
from specproof.engine import CacheRows, Capabilities, Case, Floats, Observation

PREFIX = "mlx-"
"""Of the names of these architectures."""


class CountedArraysCache(ArraysCache):
    """mlx-lm's cache of states, which also notes how many tokens its layer says that it took in."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.tokens = 0

    def advance(self, N: int) -> None:  # noqa: N803
        """N more tokens are in the states."""
        super().advance(N)
        self.tokens += N


@lru_cache(maxsize=64)
def load_family(folder: Path, name: str) -> Any:
    """The model that stands for a folder."""
    config = json.loads((folder / "config.json").read_text())
    return build(name, config["vocab_size"], zlib.crc32(folder.name.encode()))


def fresh_layers(model: Any, name: str) -> list[Any]:
    """Empty caches for a model of a family, as a user would have them, but that states count their tokens."""
    family = FAMILIES[name]
    if family.kv_bits is not None:
        return [QuantizedKVCache(GROUP, family.kv_bits) for _ in model.layers]
    return [_counted(layer) for layer in make_cache(model, family.max_kv_size)]


def _counted(layer: Any) -> Any:
    if isinstance(layer, CacheList):
        return CacheList(*map(_counted, layer.caches))
    return CountedArraysCache(len(layer.cache)) if isinstance(layer, ArraysCache) else layer


# ------------------------------------------------------------------------------------------------ what caches hold


def shown(layers: Sequence[Any]) -> tuple[tuple[int, ...], tuple[CacheRows, ...]]:
    """How many tokens each leaf of a cache holds, and its rows or states.

    A window that holds fewer rows than it should is shown as that many tokens: it cannot vouch for more.
    """
    held = [_shown(leaf) for leaf in leaves(layers)]
    return tuple(offset for offset, _ in held), tuple(rows for _, rows in held)


def _shown(leaf: Any) -> tuple[int, CacheRows]:
    if leaf.empty() or getattr(leaf, "offset", None) == 0:  # storage may be left: MLX dequantises no rows to an error
        return 0, CacheRows(np.zeros((0, 0, 0)), np.zeros((0, 0, 0)))
    if kind_of(leaf) == "state":
        keys, values = _states(leaf)
        return leaf.tokens, CacheRows(keys, values, leaf.tokens - 1)
    if hasattr(leaf, "bits"):
        return leaf.offset, CacheRows(_host(_dequantised(leaf, leaf.keys)), _host(_dequantised(leaf, leaf.values)))
    if kind_of(leaf) == "plain":
        return leaf.offset, CacheRows(_host(leaf.keys[0, :, : leaf.offset]), _host(leaf.values[0, :, : leaf.offset]))
    if isinstance(leaf, ChunkedKVCache):
        keys, values = (_host(part[0]) for part in leaf.keys_and_values())
        enough = keys.shape[1] >= min(leaf.offset, leaf.chunk_size)
        return leaf.offset if enough else keys.shape[1], CacheRows(keys, values, leaf.start_position)
    keys, values = (_host(leaf._temporal_order(part)[0]) for part in (leaf.keys, leaf.values))
    live = keys.shape[1] - leaf.keep if leaf.offset > keys.shape[1] else keys.shape[1]
    enough = keys.shape[1] >= min(leaf.offset, leaf.max_size)
    return (
        leaf.offset if enough else keys.shape[1],
        CacheRows(keys[:, keys.shape[1] - live :], values[:, keys.shape[1] - live :], leaf.offset - live),
    )


def _states(leaf: Any) -> tuple[Floats, Floats]:
    """The states of a leaf as one row, [1, 1, size]; and by itself the first, which is that of its convolution."""
    flat = [_host(state).ravel() for state in leaf.cache]
    return np.concatenate(flat)[None, None], flat[0][None, None]


def _dequantised(leaf: Any, part: Sequence[mx.array]) -> mx.array:
    """What attention reads of keys or values, [n_kv_heads, offset, head_dim]: codes, scales and offsets as numbers."""
    codes, scales, lows = (array[0, :, : leaf.offset] for array in part)
    return mx.dequantize(codes, scales, lows, leaf.group_size, leaf.bits)


def _host(array: mx.array) -> Floats:
    return np.array(array.astype(mx.float32)).astype(np.float64)


class WholeModel:
    """A model of a family as the oracle sees it: whole passes, whose decoding code is the model's own.

    Attributes:
        vocab_size: V.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self.model = load_family(folder, name)
        self.family = name
        self.vocab_size = vocab_size(self.model)
        self._stepped: _Stepped | None = None

    def forward_without_cache(self, tokens: Sequence[int]) -> WholePass:
        """Logits [T, V], and for each leaf what a fresh cache holds after every prefix: rows, or states as rows."""
        stepped = self._stepped
        if stepped is None or tuple(tokens[: len(stepped.tokens)]) != tuple(stepped.tokens):
            stepped = self._stepped = _Stepped.begun(fresh_layers(self.model, self.family))
        for token in tokens[len(stepped.tokens) :]:
            stepped.step(self.model, token)
        logits = mx.concatenate(stepped.logits)
        if FAMILIES[self.family].makes_its_caches:  # else a pass without them attends to all rows, and to exact ones
            logits = self.model(mx.array([list(tokens)]))[0]
        return WholePass(_host(logits), tuple(_joined(rows) for rows in stepped.newest))


@dataclass(frozen=True)
class _Stepped:
    """A sequence that went through a fresh cache, one token at a time. The next one is often this one and more.

    Attributes:
        tokens: the sequence.
        cache: what holds it.
        logits: of each token, [1, V].
        newest: for each leaf of the cache, its last row or state behind each token.
    """

    tokens: list[int]
    cache: list[Any]
    logits: list[mx.array]
    newest: list[list[CacheRows]]

    @classmethod
    def begun(cls, cache: list[Any]) -> _Stepped:
        """An empty one."""
        return cls([], cache, [], [[] for _ in leaves(cache)])

    def step(self, model: Any, token: int) -> None:
        """Take one token in."""
        self.logits.append(model(mx.array([[token]]), cache=self.cache)[0])
        for rows, held in zip(self.newest, shown(self.cache)[1], strict=True):
            rows.append(CacheRows(held.keys[:, -1:], held.values[:, -1:]))
        self.tokens.append(token)


def _joined(rows: Sequence[CacheRows]) -> tuple[Floats, Floats]:
    """Rows one behind the other: [n_kv_heads, T, head_dim] twice."""
    keys = np.concatenate([row.keys for row in rows], axis=1)
    return keys, np.concatenate([row.values for row in rows], axis=1)


# ------------------------------------------------------------------------------------------------------ the engine


class FamilySession(MlxImplSession):
    """One turn on a model of a family."""

    def observe(self) -> Observation:
        """The caches as they are now."""
        offsets, rows = shown(self.target_cache)
        if self.drafter.cache is None:
            return Observation(target_offsets=offsets, target_rows=rows)
        draft_offsets, draft_rows = shown(self.drafter.cache)
        return Observation(offsets, draft_offsets, rows, draft_rows)


@dataclass(frozen=True)
class FamilyEngine(MlxImplEngine):
    """The MLX decoder on models of one family, target and drafter.

    Attributes:
        family: its name in `FAMILIES`.
    """

    family: str = "llama"
    session_class: type[MlxImplSession] = FamilySession

    @property
    def capabilities(self) -> Capabilities:
        """As of the decoder on plain caches; states cannot be compared as fast as an enumeration needs it."""
        return replace(
            super().capabilities,
            architecture=PREFIX + self.family,
            injectable_choices=False,
            refusals=frozenset(),
        )

    def start_lean(self, case: Case) -> MlxImplSession:
        """As `start`: what states there are cannot tell their offsets otherwise."""
        return self.start(case)

    def _load(self, folder: Path) -> Any:
        return load_family(folder, self.family)

    def _model(self, folder: Path) -> Any:
        return self._load(folder)

    def _cache(self, name: str, folder: Path, layers: Sequence[Any] | None) -> ModelCache:
        """As on plain caches; where only states could tell how many tokens they hold, their own count is given."""
        own = fresh_layers(self._load(folder), self.family) if layers is None else list(layers)
        held = [leaf.tokens for leaf in leaves(own) if isinstance(leaf, CountedArraysCache)]
        return ModelCache(name, own, length=held[0] if held else None)


def engine_of(name: str) -> FamilyEngine:
    """The engine of a family by its name."""
    return FamilyEngine(name=f"mlx_impl-{name}", family=name)


(
    LLAMA, LLAMA_ROTATING, LLAMA_QUANTISED, LLAMA4, GEMMA3_TEXT, GEMMA4_TEXT, MAMBA2, LFM2, QWEN3_NEXT, FALCON_H1,
) = map(engine_of, FAMILIES)  # fmt: skip
