"""Hugging Face Llama folders: `config.json`, `*.safetensors`, and `tokenizer.json` where there is one.

It knows file formats, names and shapes, and leaves the maths to `transformer`. Whatever it cannot read
faithfully (scaled rotary positions, biases, quantised weights) is refused, never approximated.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
from numpy.typing import NDArray

from reference.errors import CheckpointError

Floats = NDArray[np.float64]
_deserialize: Callable[[bytes], list[tuple[str, dict[str, Any]]]] = safetensors.deserialize


@dataclass(frozen=True)
class LlamaConfig:
    """The sizes of a Llama."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    tied: bool
    max_positions: int | None = None


def read_config(folder: Path) -> LlamaConfig:
    """The sizes in `config.json`.

    Raises:
        CheckpointError: not a folder, no such file, not JSON, not a Llama, or a Llama with parts unknown here.
    """
    if not folder.is_dir():
        raise CheckpointError(f"{folder} is not a folder; give a Hugging Face checkpoint folder with config.json in it")
    if not (folder / "config.json").is_file():
        raise CheckpointError(f"{folder} has no config.json; give a Hugging Face checkpoint folder")
    fields = _read_json(folder / "config.json")
    _refuse_unknown_parts(folder, fields)
    try:
        heads = int(fields["num_attention_heads"])
        rope = fields.get("rope_parameters") or fields.get("rope_scaling") or {}
        config = LlamaConfig(
            vocab_size=int(fields["vocab_size"]),
            hidden_size=int(fields["hidden_size"]),
            intermediate_size=int(fields["intermediate_size"]),
            num_layers=int(fields["num_hidden_layers"]),
            num_heads=heads,
            num_kv_heads=int(fields.get("num_key_value_heads") or heads),
            head_dim=int(fields.get("head_dim") or int(fields["hidden_size"]) // heads),
            rms_norm_eps=float(fields.get("rms_norm_eps", 1e-6)),
            rope_theta=float(fields.get("rope_theta") or rope.get("rope_theta", 10000.0)),
            tied=bool(fields.get("tie_word_embeddings", False)),
            max_positions=int(fields.get("max_position_embeddings") or 0) or None,
        )
    except KeyError as error:
        raise CheckpointError(
            f"{folder}/config.json has no {error}; a Llama needs it: restore the original file"
        ) from error
    except (AttributeError, TypeError, ValueError, ZeroDivisionError) as error:
        raise CheckpointError(
            f"{folder}/config.json holds a value of the wrong kind ({error}); restore the original file"
        ) from error
    if min(config.vocab_size, config.num_layers, config.num_heads, config.num_kv_heads, config.head_dim) < 1:
        raise CheckpointError(f"{folder}/config.json gives a size below 1; restore the original file")
    if not config.rope_theta > 0:
        raise CheckpointError(
            f"{folder}/config.json has rope_theta {config.rope_theta}; it must be positive: check the file"
        )
    if config.num_heads % config.num_kv_heads or config.head_dim % 2:
        raise CheckpointError(
            f"{folder}/config.json gives {config.num_heads} heads of size {config.head_dim} on {config.num_kv_heads} "
            "key heads; the numbers must divide evenly and the size be even: check the file"
        )
    return config


def read_weights(folder: Path, config: LlamaConfig) -> dict[str, Floats]:
    """Every weight the config asks for, float64, by its Hugging Face name.

    Raises:
        CheckpointError: no weight file, an unreadable one, a missing or ill-shaped weight.
    """
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise CheckpointError(f"{folder} has no *.safetensors file; download or convert the weights")
    found = {name: tensor for file in files for name, tensor in _read_tensors(file).items()}
    for name, shape in weight_shapes(config).items():
        if name not in found:
            raise CheckpointError(f"{folder} has no weight {name}; its files and config.json do not belong together")
        if found[name].shape != shape:
            raise CheckpointError(
                f"{folder}: weight {name} has shape {found[name].shape}, config.json asks for {shape}; "
                "they do not belong together"
            )
    return found


def read_tokens(folder: Path) -> dict[str, int] | None:
    """The vocabulary of `tokenizer.json`, token -> id; None where there is no such file, or it lists no tokens by id.

    Raises:
        CheckpointError: the file is not JSON.
    """
    if not (folder / "tokenizer.json").is_file():
        return None
    fields = _read_json(folder / "tokenizer.json")
    vocabulary = (fields.get("model") or {}).get("vocab")
    if not isinstance(vocabulary, Mapping):
        return None
    return {**vocabulary, **{token["content"]: token["id"] for token in fields.get("added_tokens", ())}}


def _read_json(file: Path) -> dict[str, Any]:
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CheckpointError(f"{file} is not JSON ({error}); download it again") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{file} holds a {type(value).__name__} where a JSON object belongs; download it again")
    return value


def _refuse_unknown_parts(folder: Path, fields: Mapping[str, Any]) -> None:
    """Refuse what would be computed wrongly: another architecture, or a Llama with parts unknown here."""
    if fields.get("model_type") != "llama":
        raise CheckpointError(f"{folder} is a {fields.get('model_type')!r} model; only 'llama' checkpoints can be read")
    rope = fields.get("rope_parameters") or fields.get("rope_scaling") or {}
    if not isinstance(rope, Mapping):
        raise CheckpointError(f"{folder}/config.json describes rotary positions by {rope!r}; give a JSON object")
    parts = {
        "attention_bias": fields.get("attention_bias", False),
        "mlp_bias": fields.get("mlp_bias", False),
        "hidden_act": fields.get("hidden_act", "silu") != "silu",
        "scaled rotary positions": rope.get("rope_type", rope.get("type", "default")) != "default",
        "quantization": "quantization" in fields or "quantization_config" in fields,
    }
    for part, used in parts.items():
        if used:
            raise CheckpointError(
                f"{folder}/config.json uses {part}, which this reader does not know; give a plain Llama"
            )


def weight_shapes(config: LlamaConfig) -> dict[str, tuple[int, ...]]:
    """Name -> shape of every weight; matrices are [out, in]."""
    d, m, v = config.hidden_size, config.intermediate_size, config.vocab_size
    q_width, kv_width = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (v, d), "model.norm.weight": (d,)}
    if not config.tied:
        shapes["lm_head.weight"] = (v, d)
    for index in range(config.num_layers):
        prefix = f"model.layers.{index}."
        shapes |= {
            prefix + "input_layernorm.weight": (d,),
            prefix + "self_attn.q_proj.weight": (q_width, d),
            prefix + "self_attn.k_proj.weight": (kv_width, d),
            prefix + "self_attn.v_proj.weight": (kv_width, d),
            prefix + "self_attn.o_proj.weight": (d, q_width),
            prefix + "post_attention_layernorm.weight": (d,),
            prefix + "mlp.gate_proj.weight": (m, d),
            prefix + "mlp.up_proj.weight": (m, d),
            prefix + "mlp.down_proj.weight": (d, m),
        }
    return shapes


def _read_tensors(file: Path) -> dict[str, Floats]:
    """All float tensors of a file, as float64.

    Decoded here because NumPy, and so `safetensors.numpy`, has no bfloat16: the upper half of a float32.
    """
    decoders = {
        "F64": lambda data: np.frombuffer(data, "<f8"),
        "F32": lambda data: np.frombuffer(data, "<f4"),
        "F16": lambda data: np.frombuffer(data, "<f2"),
        "BF16": lambda data: (np.frombuffer(data, "<u2").astype("<u4") << 16).view("<f4"),
    }
    try:
        entries = _deserialize(file.read_bytes())
    except safetensors.SafetensorError as error:
        raise CheckpointError(f"{file} is not a safetensors file ({error}); download it again") from error
    tensors = {}
    for name, entry in entries:
        if entry["dtype"] in decoders:
            tensors[name] = decoders[entry["dtype"]](entry["data"]).astype(np.float64).reshape(entry["shape"])
    return tensors
