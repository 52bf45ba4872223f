"""Tiny random models of mlx-lm's own architectures, one for each family of caches."""

# mypy: allow-untyped-calls
# (mlx-lm carries no annotations)

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any

import mlx.core as mx
from mlx.utils import tree_map_with_path

SHARED: Mapping[str, Any] = MappingProxyType(
    {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 512,
        "rope_theta": 10000.0,
        "sliding_window": 8,
        "sliding_window_pattern": 3,
    }
)
"""What most of mlx-lm's configurations ask for; each takes what it knows."""

GROUP = 32
"""Entries of a quantised row that share a scale: the fewest that MLX knows."""


@dataclass(frozen=True)
class Family:
    """An architecture of mlx-lm, and what it shows of its kind of cache.

    Attributes:
        module: in `mlx_lm.models`.
        caches: what its layers have, for reports.
        settings: of its configuration, beyond `SHARED`.
        max_kv_size: rows that a layer keeps where the model does not say itself; None: all.
        kv_bits: of its rows' entries, in groups of `GROUP`; None: they are kept as they come.
    """

    module: str
    caches: str
    settings: Mapping[str, Any]
    max_kv_size: int | None = None
    kv_bits: int | None = None

    @property
    def makes_its_caches(self) -> bool:
        """Whether its caches are those of the model's own making. Else a pass without a cache sees other rows."""
        return self.max_kv_size is None and self.kv_bits is None


FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        "llama": Family("llama", "full attention", {"num_hidden_layers": 2}),
        "llama_rotating": Family("llama", "max_kv_size: rotating, first rows kept", {"num_hidden_layers": 2}, 12),
        # Few bits: the fewer there are, the rarer is an entry so near the edge of two codes that rounding decides.
        "llama_quantised": Family(
            "llama",
            "full attention, rows in four bits",
            {"num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": GROUP},
            kv_bits=4,
        ),
        "llama4": Family(
            "llama4",
            "chunks of eight tokens and full attention, mixture of experts",
            {
                "num_hidden_layers": 4,
                "attention_bias": False,
                "attention_chunk_size": 8,
                "interleave_moe_layer_step": 2,
                "intermediate_size_mlp": 48,
                "num_experts_per_tok": 1,
                "num_local_experts": 2,
                "rope_scaling": None,
                "use_qk_norm": True,
                "floor_scale": 4,
            },
        ),
        "gemma3_text": Family(
            "gemma3_text",
            "sliding windows and full attention",
            {"num_hidden_layers": 3, "num_key_value_heads": 1, "query_pre_attn_scalar": 8},
        ),
        "gemma4_text": Family(
            "gemma4_text",
            "windows; layers that share keys and values of others",
            {
                "num_hidden_layers": 6,
                "num_key_value_heads": 1,
                "num_kv_shared_layers": 2,
                "global_head_dim": 16,
                "hidden_size_per_layer_input": 8,
            },
        ),
        "mamba2": Family(
            "mamba2",
            "recurrent and convolutional states only",
            {
                "num_hidden_layers": 2,
                "num_heads": 4,
                "hidden_size": 16,
                "intermediate_size": 32,
                "state_size": 8,
                "ssm_state_size": 8,
                "layer_norm_epsilon": 1e-5,
                "conv_kernel": 4,
                "n_groups": 1,
                "use_bias": False,
                "use_conv_bias": True,
                "tie_word_embeddings": True,
                "time_step_limit": (0.0, float("inf")),
                "time_step_rank": "auto",
            },
        ),
        "lfm2": Family(
            "lfm2",
            "short convolutions and full attention",
            {
                "num_hidden_layers": 3,
                "norm_eps": 1e-5,
                "conv_bias": False,
                "conv_L_cache": 3,
                "block_dim": 32,
                "block_ff_dim": 48,
                "block_multiple_of": 8,
                "block_ffn_dim_multiplier": 1.0,
                "block_auto_adjust_ff_dim": False,
                "full_attn_idxs": [1],
                "layer_types": None,
            },
        ),
        "qwen3_next": Family(
            "qwen3_next",
            "gated-delta states and full attention, mixture of experts",
            {
                "num_hidden_layers": 4,
                "linear_num_value_heads": 4,
                "linear_num_key_heads": 2,
                "linear_key_head_dim": 8,
                "linear_value_head_dim": 8,
                "linear_conv_kernel_dim": 4,
                "num_experts": 2,
                "num_experts_per_tok": 1,
                "decoder_sparse_step": 1,
                "shared_expert_intermediate_size": 16,
                "mlp_only_layers": [],
                "moe_intermediate_size": 16,
                "partial_rotary_factor": 0.5,
                "full_attention_interval": 2,
            },
        ),
        "falcon_h1": Family(
            "falcon_h1",
            "composite: a state and full attention in each layer",
            {
                "num_hidden_layers": 2,
                "mamba_d_ssm": 32,
                "mamba_n_heads": 4,
                "mamba_d_head": 8,
                "mamba_d_state": 8,
                "mamba_n_groups": 1,
                "mamba_d_conv": 4,
            },
        ),
    }
)
"""By name. A new family is an entry here: tests, `specproof audit mlx_impl-NAME` and the table follow."""


def build(name: str, vocab_size: int, seed: int) -> Any:
    """A tiny model of a family, its matrices drawn so that logits are spread and depend on far tokens."""
    family = FAMILIES[name]
    module = importlib.import_module(f"mlx_lm.models.{family.module}")
    sizes = {"vocab_size": vocab_size, "vocab_size_per_layer_input": vocab_size}
    settings = {**SHARED, **family.settings, **sizes, "model_type": family.module}
    if "text_config" in {field.name for field in fields(module.ModelArgs)}:
        settings = {"model_type": family.module, "text_config": settings}
    model = module.Model(module.ModelArgs.from_dict(settings))
    keys = iter(mx.random.split(mx.random.key(seed), 1000))

    def drawn(path: str, weight: mx.array) -> mx.array:
        if "conv" in path or weight.ndim < 2:
            return weight if weight.ndim < 2 else mx.random.normal(weight.shape, key=next(keys), scale=0.5)
        scale = 2.0 / float(weight.shape[-1]) ** 0.5
        return mx.random.normal(weight.shape, key=next(keys), scale=scale)

    model.update(tree_map_with_path(drawn, model.parameters()))
    model.eval()
    mx.eval(model.parameters())
    return model
