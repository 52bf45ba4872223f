"""A Llama in NumPy, float64: RMSNorm, half-split rotary positions, grouped-query attention, SwiGLU, head tied or not.

The two passes, `forward` and `forward_without_cache`, share the maths of a layer and no code that touches a cache, so
that each can be checked against the other. It knows nothing of drafting or sampling.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from reference.cache import KVCache, LayerCache
from reference.checkpoint import LlamaConfig, layer_shapes, read_config, read_tokens, read_weights
from reference.errors import ContextExhausted, EmptyPrompt, HiddenCache, TokenOutOfRange
from reference.values import Bools, Floats, Ints, as_count

Layer = Mapping[str, Floats]
"""The weights of one layer, by their names in `checkpoint.layer_shapes`; matrices are [out, in]."""


@dataclass(frozen=True)
class Activations:
    """What a forward over T tokens returns."""

    logits: Floats  # [T, V]; row i predicts the token after the i-th
    hidden: Floats  # [T, D], after the final norm; what feature-level drafters build on


@dataclass(frozen=True)
class WholePass:
    """What a pass without a cache returns."""

    logits: Floats  # [T, V]
    rows: tuple[tuple[Floats, Floats], ...]  # per layer the keys and values to cache, each [n_kv_heads, T, head_dim]


class LanguageModel(Protocol):
    """What a decoder needs of a model, target or drafter."""

    @property
    def name(self) -> str:
        """Names the model in error messages."""

    @property
    def vocab_size(self) -> int:
        """V."""

    def new_cache(self) -> KVCache:
        """An empty cache for `forward`."""

    def forward(self, tokens: Sequence[int], cache: KVCache) -> Activations:
        """Run T tokens at the positions after the cache's rows, and append their T rows to it."""


class Transformer:
    """A Llama with its weights in memory; `tokens` is its tokenizer's vocabulary, token -> id, where it has one."""

    def __init__(self, config: LlamaConfig, weights: Mapping[str, Floats], name: str,
                 tokens: Mapping[str, int] | None = None) -> None:  # fmt: skip
        self.config, self.vocab_size, self.name, self.tokens = config, config.vocab_size, name, tokens
        self.embedding = weights["model.embed_tokens.weight"]  # [V, D]
        parts, indices = layer_shapes(config), range(config.num_layers)
        self.layers: list[Layer] = [{p: weights[f"model.layers.{i}.{p}.weight"] for p in parts} for i in indices]
        self.final_norm = weights["model.norm.weight"]  # [D]
        self.head = self.embedding if config.tied else weights["lm_head.weight"]  # [V, D]

    def new_cache(self) -> KVCache:
        """A cache without rows."""
        nothing = np.zeros((self.config.num_kv_heads, 0, self.config.head_dim))
        return KVCache([LayerCache(nothing, nothing)] * self.config.num_layers)

    def forward(self, tokens: Sequence[int], cache: KVCache) -> Activations:
        """Run T tokens after the S rows of the cache; the cache then holds S + T rows.

        Raises:
            EmptyPrompt: no tokens.
            TokenOutOfRange, ContextExhausted: a token or a position the model has not; the cache is unchanged.
        """
        x = self._embed(tokens)  # [T] -> [T, D]
        positions = cache.offset + np.arange(len(x))  # [T]
        self._check_positions(positions)
        angles = rotary_angles(positions, self.config)  # [T, d/2]
        for index, layer in enumerate(self.layers):
            queries, keys, values = self._project(layer, x, angles)
            held = cache.append(index, keys, values)  # [n_kv, T, d] -> [n_kv, S + T, d]
            x = self._read(index, layer, x, queries, held, positions)  # [T, D]
        return self._finish(x)

    def forward_without_cache(self, tokens: Sequence[int]) -> WholePass:
        """Run T tokens from position 0, all at once. Raises EmptyPrompt and TokenOutOfRange, as `forward`."""
        x = self._embed(tokens)  # [T] -> [T, D]
        causal = np.tri(len(x), dtype=np.bool_)  # [T, T]
        angles = rotary_angles(np.arange(len(x)), self.config)  # [T, d/2]
        rows = []
        for layer in self.layers:
            queries, keys, values = self._project(layer, x, angles)
            rows.append((keys, values))
            x = self._mix(layer, x, queries, keys, values, causal)  # [T, D]
        return WholePass(self._finish(x).logits, tuple(rows))

    def _read(self, index: int, layer: Layer, x: Floats, queries: Floats, held: LayerCache, positions: Ints) -> Floats:
        """The rest of a layer, from what its cache holds now: every token sees the rows up to its own. -> [T, D]."""
        visible = np.arange(held.offset) <= positions[:, None]  # [T, S + T]
        return self._mix(layer, x, queries, held.keys, held.values, visible)

    def _check_positions(self, positions: Ints) -> None:
        last, limit = positions[-1], self.config.max_positions
        if limit is not None and last >= limit:
            raise ContextExhausted(f"{self.name} has {limit} positions, and was asked for {last}; end the turn before")

    def _embed(self, tokens: Sequence[int]) -> Floats:
        """[T] -> [T, D]."""
        if len(tokens) == 0:
            raise EmptyPrompt(f"{self.name} was given no tokens; there is no position to predict from: give at least 1")
        return self.embedding[check_tokens(tokens, self)]

    def _project(self, layer: Layer, x: Floats, angles: Floats) -> tuple[Floats, Floats, Floats]:
        """x [T, D] -> queries [n_heads, T, d], keys and values [n_kv, T, d]; positions applied."""
        c = self.config
        x = rms_norm(x, layer["input_layernorm"], c.rms_norm_eps)
        queries = split_heads(x @ layer["self_attn.q_proj"].T, c.num_heads)  # [T, D] -> [n_heads, T, d]
        keys = split_heads(x @ layer["self_attn.k_proj"].T, c.num_kv_heads)  # [T, D] -> [n_kv, T, d]
        values = split_heads(x @ layer["self_attn.v_proj"].T, c.num_kv_heads)
        return rotate(queries, angles), rotate(keys, angles), values

    def _mix(self, layer: Layer, x: Floats, queries: Floats, keys: Floats, values: Floats, visible: Bools) -> Floats:
        """The rest of a layer: attention over the given rows, then SwiGLU. [T, D] -> [T, D]."""
        x = x + attention(queries, keys, values, visible) @ layer["self_attn.o_proj"].T
        h = rms_norm(x, layer["post_attention_layernorm"], self.config.rms_norm_eps)
        gated = silu(h @ layer["mlp.gate_proj"].T) * (h @ layer["mlp.up_proj"].T)  # [T, D] -> [T, M]
        return x + gated @ layer["mlp.down_proj"].T  # [T, M] -> [T, D]

    def _finish(self, x: Floats) -> Activations:
        """[T, D] -> hidden [T, D] and logits [T, V]."""
        hidden = rms_norm(x, self.final_norm, self.config.rms_norm_eps)
        return Activations(hidden @ self.head.T, hidden)


def load(folder: Path | str) -> Transformer:
    """Read a Hugging Face Llama folder; the model is named after it. CheckpointError where it cannot be read."""
    config = read_config(folder := Path(folder))
    return Transformer(config, read_weights(folder, config), folder.name, read_tokens(folder))


def rms_norm(x: Floats, weight: Floats, eps: float) -> Floats:
    """[T, D] -> [T, D]."""
    mean_square: Floats = (x * x).mean(axis=-1, keepdims=True)  # [T, 1]
    return x / np.sqrt(mean_square + eps) * weight


def silu(x: Floats) -> Floats:
    """x * sigmoid(x), elementwise; written with tanh, which cannot overflow."""
    return x * 0.5 * (1.0 + np.tanh(0.5 * x))


def split_heads(x: Floats, num_heads: int) -> Floats:
    """[T, n * d] -> [n, T, d]."""
    return x.reshape(len(x), num_heads, -1).transpose(1, 0, 2)


def rotary_angles(positions: Ints, config: LlamaConfig) -> Floats:
    """How far each pair of entries turns at each position. [T] -> [T, d/2]."""
    half = config.head_dim // 2
    return positions[:, None] * config.rope_theta ** (-np.arange(half) / half)


def rotate(x: Floats, angles: Floats) -> Floats:
    """Rotary positions, half-split: entry j turns together with entry j + d/2. [n, T, d] -> [n, T, d]."""
    cos, sin = np.cos(angles), np.sin(angles)  # [T, d/2]
    first, second = np.split(x, 2, axis=-1)  # [n, T, d/2] each
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def attention(queries: Floats, keys: Floats, values: Floats, visible: Bools) -> Floats:
    """Grouped-query attention: consecutive query heads share a key head.

    queries [n_heads, T, d], keys and values [n_kv, S, d], visible [T, S] -> [T, n_heads * d].
    """
    (n_heads, length, d), n_kv = queries.shape, len(keys)
    grouped = queries.reshape(n_kv, n_heads // n_kv, length, d)  # [n_kv, group, T, d]
    scores = np.where(visible, grouped @ keys[:, None].swapaxes(-1, -2) / np.sqrt(d), -np.inf)  # [n_kv, group, T, S]
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    mixed: Floats = weights / weights.sum(axis=-1, keepdims=True) @ values[:, None]  # [n_kv, group, T, d]
    return mixed.reshape(n_heads, length, d).transpose(1, 0, 2).reshape(length, n_heads * d)


def check_tokens(tokens: Sequence[int], model: LanguageModel) -> list[int]:
    """The tokens as plain ints; TokenOutOfRange names the first that is no id of the model's vocabulary."""
    for index, token in enumerate(tokens):
        if not 0 <= as_count(token) < model.vocab_size:
            vocabulary = f"the vocabulary 0..{model.vocab_size - 1} of {model.name}; give integer ids of its tokenizer"
            raise TokenOutOfRange(f"token {token!r} at index {index} is outside {vocabulary}")
    return [int(token) for token in tokens]


def advance(model: LanguageModel, tokens: Sequence[int], cache: KVCache) -> Activations:
    """`model.forward`, and proof that its rows can be rolled back: HiddenCache unless the cache grew by one a token."""
    before = cache.offset
    activations = model.forward(tokens, cache)
    if cache.offset != before + len(tokens):
        went = f"the cache it was given went from {before} to {cache.offset} rows"
        raise HiddenCache(f"{model.name} forwarded {len(tokens)} tokens, but {went}; let forward append to that cache")
    return activations
