"""GGUF files for tests, written from the toy checkpoints as llama.cpp's converter writes them."""

import json
from dataclasses import fields
from pathlib import Path

import mlx.core as mx
from mlx_toys import TOYS

from mlx_impl.checkpoint import ModelArgs, read_args
from mlx_impl.gguf import LAYER, OUTER

WEIGHTS = {module: stem for stem, module in OUTER.items()}
KEYS = {
    "llama.embedding_length": "hidden_size",
    "llama.block_count": "num_hidden_layers",
    "llama.feed_forward_length": "intermediate_size",
    "llama.attention.head_count": "num_attention_heads",
    "llama.attention.head_count_kv": "num_key_value_heads",
    "llama.attention.key_length": "head_dim",
    "llama.attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "llama.rope.freq_base": "rope_theta",
}


def neighbours(matrix: mx.array, heads: int) -> mx.array:
    """The rows of each head in GGUF's order: components i and i + d/2 become neighbours."""
    return matrix.reshape(heads, 2, -1, matrix.shape[-1]).swapaxes(1, 2).reshape(matrix.shape)


def tensors(name: str) -> dict[str, mx.array]:
    """A toy checkpoint's weights by GGUF's names, in its layout."""
    args = read_args(TOYS / name)
    heads = {"attn_q": args.num_attention_heads, "attn_k": args.num_key_value_heads}
    found = {}
    for full, array in mx.load(str(TOYS / name / "model.safetensors")).items():
        module = full.removesuffix(".weight")
        if module in WEIGHTS:
            found[f"{WEIGHTS[module]}.weight"] = array
            continue
        _, _, layer, rest = module.split(".", 3)
        stem = next(stem for stem, path in LAYER.items() if path == rest)
        found[f"blk.{layer}.{stem}.weight"] = neighbours(array, heads[stem]) if stem in heads else array
    return found


def metadata(name: str) -> dict[str, mx.array | str | list[str]]:
    """A toy checkpoint's configuration and tokens."""
    args = read_args(TOYS / name)
    assert {field.name for field in fields(ModelArgs)} >= set(KEYS.values())
    vocabulary = json.loads((TOYS / name / "tokenizer.json").read_text())["model"]["vocab"]
    return {
        "general.architecture": "llama",
        "llama.context_length": mx.array(512, mx.uint32),
        **{key: _number(getattr(args, field)) for key, field in KEYS.items()},
        "tokenizer.ggml.model": "none",
        "tokenizer.ggml.tokens": sorted(vocabulary, key=vocabulary.__getitem__),
        "tokenizer.ggml.token_type": mx.array([1] * len(vocabulary), mx.int32),
    }


def write(path: Path, name: str = "target", *, without: str | None = None, tensors_too=None, **changes) -> Path:
    """A file of that toy checkpoint; `changes` of metadata have two underscores for a dot, and None leaves one out."""
    arrays = {key: array for key, array in {**tensors(name), **(tensors_too or {})}.items() if key != without}
    values = {**metadata(name), **{key.replace("__", "."): value for key, value in changes.items()}}
    mx.save_gguf(str(path), arrays, {key: value for key, value in values.items() if value is not None})
    return path


def _number(value: float) -> mx.array:
    return mx.array(value, mx.uint32 if isinstance(value, int) else mx.float32)
