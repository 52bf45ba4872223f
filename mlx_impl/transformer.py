"""A Llama-style transformer on MLX: RMSNorm, half-split rotary positions, grouped-query attention, SwiGLU.

Leaves files to `checkpoint` and rows to `cache`: a layer hands its new keys and values to whatever cache it is
given, so mlx-lm's cache classes work here too. Module names are those of a checkpoint
(`model.layers.0.self_attn.q_proj.weight`), so loading is by name; dtypes are the checkpoint's (float32 for the toys).

In the shape comments: B batch, T new tokens, D hidden size, H heads, K key-value heads, d head size, V vocabulary.
"""

# mypy: allow-untyped-calls
# (mlx.nn is annotated in parts only)

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol, cast

import mlx.core as mx
from mlx.nn.layers.activations import silu
from mlx.nn.layers.base import Module
from mlx.nn.layers.embedding import Embedding
from mlx.nn.layers.linear import Linear
from mlx.nn.layers.normalization import RMSNorm
from mlx.utils import tree_flatten

from mlx_impl.cache import KVCache
from mlx_impl.checkpoint import ModelArgs, read_args, read_tokens, read_weights


class LayerCache(Protocol):
    """What attention needs of a layer's cache: mlx-lm's protocol."""

    offset: int

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Append T rows [B, K, T, d]; return all rows [B, K, offset, d]."""
        ...


class Attention(Module):
    """Grouped-query attention with rotary positions."""

    def __init__(self, args: ModelArgs) -> None:
        super().__init__()
        self.num_heads = args.num_attention_heads
        self.num_kv_heads = args.num_key_value_heads
        self.head_dim = args.head_dim
        self.rope_theta = args.rope_theta
        self.q_proj = Linear(args.hidden_size, self.num_heads * self.head_dim, bias=False)
        self.k_proj = Linear(args.hidden_size, self.num_kv_heads * self.head_dim, bias=False)
        self.v_proj = Linear(args.hidden_size, self.num_kv_heads * self.head_dim, bias=False)
        self.o_proj = Linear(self.num_heads * self.head_dim, args.hidden_size, bias=False)

    def __call__(self, x: mx.array, cache: LayerCache | None) -> mx.array:
        """Attend from T new rows to all rows: [B, T, D] -> [B, T, D]."""
        batch, length, _ = x.shape
        offset = 0 if cache is None else cache.offset
        queries = self._rotate(self._heads(self.q_proj(x), self.num_heads), offset)  # [B, H, T, d]
        keys = self._rotate(self._heads(self.k_proj(x), self.num_kv_heads), offset)  # [B, K, T, d]
        values = self._heads(self.v_proj(x), self.num_kv_heads)  # [B, K, T, d]
        if cache is not None:
            keys, values = cache.update_and_fetch(keys, values)  # [B, K, offset + T, d]
        # "causal" aligns the last query with the last key: row i sees the first offset + i + 1 rows.
        mask = "causal" if length > 1 else None
        attended = mx.fast.scaled_dot_product_attention(queries, keys, values, scale=self.head_dim**-0.5, mask=mask)
        return self.o_proj(attended.transpose(0, 2, 1, 3).reshape(batch, length, -1))

    def _heads(self, x: mx.array, heads: int) -> mx.array:
        """[B, T, heads * d] -> [B, heads, T, d]."""
        return x.reshape(*x.shape[:2], heads, self.head_dim).transpose(0, 2, 1, 3)

    def _rotate(self, x: mx.array, offset: int) -> mx.array:
        """Rotary positions offset .. offset + T - 1; the two halves of a head are paired, not its neighbours."""
        return mx.fast.rope(x, self.head_dim, traditional=False, base=self.rope_theta, scale=1.0, offset=offset)


class MLP(Module):
    """SwiGLU."""

    def __init__(self, args: ModelArgs) -> None:
        super().__init__()
        self.gate_proj = Linear(args.hidden_size, args.intermediate_size, bias=False)
        self.up_proj = Linear(args.hidden_size, args.intermediate_size, bias=False)
        self.down_proj = Linear(args.intermediate_size, args.hidden_size, bias=False)

    def __call__(self, x: mx.array) -> mx.array:
        """[B, T, D] -> [B, T, D]."""
        return self.down_proj(silu(self.gate_proj(x)) * self.up_proj(x))


class Block(Module):
    """One layer: attention and MLP, each behind a norm and beside a residual."""

    def __init__(self, args: ModelArgs) -> None:
        super().__init__()
        self.self_attn = Attention(args)
        self.mlp = MLP(args)
        self.input_layernorm = RMSNorm(args.hidden_size, eps=args.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(args.hidden_size, eps=args.rms_norm_eps)

    def __call__(self, x: mx.array, cache: LayerCache | None) -> mx.array:
        """[B, T, D] -> [B, T, D]."""
        x = x + self.self_attn(self.input_layernorm(x), cache)
        return x + self.mlp(self.post_attention_layernorm(x))


class Backbone(Module):
    """Everything below the head; `model.` in the names of a checkpoint."""

    def __init__(self, args: ModelArgs) -> None:
        super().__init__()
        self.embed_tokens = Embedding(args.vocab_size, args.hidden_size)
        self.layers = [Block(args) for _ in range(args.num_hidden_layers)]
        self.norm = RMSNorm(args.hidden_size, eps=args.rms_norm_eps)

    def __call__(self, inputs: mx.array, cache: Sequence[LayerCache | None]) -> mx.array:
        """Tokens [B, T] -> activations after the final norm [B, T, D]."""
        x: mx.array = self.embed_tokens(inputs)
        for layer, layer_cache in zip(self.layers, cache, strict=True):
            x = layer(x, layer_cache)
        normed: mx.array = self.norm(x)
        return normed


class Transformer(Module):
    """A Llama language model, called as mlx-lm calls its models."""

    def __init__(self, args: ModelArgs, tokens: Mapping[str, int] | None = None) -> None:
        super().__init__()
        self.args = args
        self._tokens = tokens  # an underscore keeps it out of the parameters
        self.model = Backbone(args)
        if not args.tie_word_embeddings:
            self.lm_head = Linear(args.hidden_size, args.vocab_size, bias=False)

    @property
    def tokens(self) -> Mapping[str, int] | None:
        """The tokenizer's vocabulary, token -> id, where the folder has one."""
        return self._tokens

    @property
    def layers(self) -> list[Block]:
        """The layers, first to last."""
        return self.model.layers

    def make_cache(self) -> list[KVCache]:
        """A fresh, empty cache: one `KVCache` for each layer."""
        return [KVCache() for _ in self.layers]

    def __call__(self, inputs: mx.array, cache: Sequence[LayerCache] | None = None) -> mx.array:
        """Logits of T tokens, appended to the cache where one is given: [B, T] -> [B, T, V].

        Token ids are not checked here (they may not be computed yet, and a look would wait for the device):
        whoever takes tokens in from outside checks them.
        """
        hidden = self.model(inputs, [None] * len(self.layers) if cache is None else cache)
        head = self.model.embed_tokens.as_linear if self.args.tie_word_embeddings else self.lm_head
        logits: mx.array = head(hidden)  # [B, T, V]
        return logits


def load(folder: Path | str) -> Transformer:
    """Read a model from a Hugging Face Llama folder.

    Raises:
        CheckpointError: not such a folder, unreadable, not a Llama, or weights that are missing or misshapen.
    """
    folder = Path(folder)
    model = Transformer(read_args(folder), read_tokens(folder))
    parameters = cast(list[tuple[str, mx.array]], tree_flatten(model.parameters()))
    shapes = {name: parameter.shape for name, parameter in parameters}
    model.load_weights(list(read_weights(folder, shapes).items()))
    mx.eval(model.parameters())
    return model
