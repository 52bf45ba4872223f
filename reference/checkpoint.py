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

from reference.errors import CheckpointError
from reference.values import Floats

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
        CheckpointError: no such file, not JSON, not a Llama, parts unknown here, a value missing or of another kind.
    """
    if not (folder / "config.json").is_file():
        problem = "has no config.json" if folder.is_dir() else "is not a folder"
        raise CheckpointError(f"{folder} {problem}; give a Hugging Face checkpoint folder")
    fields = _read_json(folder / "config.json")
    rope = fields.get("rope_parameters") or fields.get("rope_scaling") or {}
    if not isinstance(rope, Mapping):
        raise CheckpointError(f"{folder}/config.json describes rotary positions by {rope!r}; give a JSON object")
    _refuse_unknown_parts(folder, fields, rope)

    def positive(name: str, absent: Any = None, kinds: tuple[type, ...] = (int,)) -> Any:
        value = absent if fields.get(name) is None else fields[name]
        if type(value) not in kinds or not value > 0:
            wanted = " or ".join(kind.__name__ for kind in kinds)
            raise CheckpointError(f"{folder}/config.json gives {name} as {value!r}; a Llama needs a positive {wanted}")
        return value

    heads, hidden_size = positive("num_attention_heads"), positive("hidden_size")
    config = LlamaConfig(
        vocab_size=positive("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=positive("intermediate_size"),
        num_layers=positive("num_hidden_layers"),
        num_heads=heads,
        num_kv_heads=positive("num_key_value_heads", heads),
        head_dim=positive("head_dim", hidden_size // heads),
        rms_norm_eps=positive("rms_norm_eps", 1e-6, (int, float)),
        rope_theta=positive("rope_theta", rope.get("rope_theta", 10000.0), (int, float)),
        tied=fields.get("tie_word_embeddings", False),
        max_positions=None if fields.get("max_position_embeddings") is None else positive("max_position_embeddings"),
    )
    if not isinstance(config.tied, bool):
        raise CheckpointError(f"{folder}/config.json gives tie_word_embeddings as {config.tied!r}; give true or false")
    if config.num_heads % config.num_kv_heads or config.head_dim % 2:
        raise CheckpointError(
            f"{folder}/config.json gives {config.num_heads} heads of size {config.head_dim} on {config.num_kv_heads} "
            "key heads; the numbers must divide evenly and the size be even"
        )
    return config


def _refuse_unknown_parts(folder: Path, fields: Mapping[str, Any], rope: Mapping[str, Any]) -> None:
    """Refuse what would be computed wrongly: another architecture, or a Llama with parts unknown here."""
    if fields.get("model_type") != "llama":
        raise CheckpointError(f"{folder} is a {fields.get('model_type')!r} model; only 'llama' checkpoints can be read")
    parts = {
        "attention_bias": fields.get("attention_bias", False),
        "mlp_bias": fields.get("mlp_bias", False),
        "hidden_act": fields.get("hidden_act", "silu") != "silu",
        "scaled rotary positions": rope.get("rope_type", rope.get("type", "default")) != "default",
        "partial_rotary_factor": any(place.get("partial_rotary_factor") not in (None, 1) for place in (fields, rope)),
        "quantization": "quantization" in fields or "quantization_config" in fields,
    }
    if used := [part for part, is_used in parts.items() if is_used]:
        raise CheckpointError(f"{folder}/config.json uses {used[0]}, unknown to this reader; give a plain Llama")


def layer_shapes(config: LlamaConfig) -> dict[str, tuple[int, ...]]:
    """Name -> shape of every weight of one layer; matrices are [out, in]."""
    d, m = config.hidden_size, config.intermediate_size
    q_width, kv_width = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    return {
        "input_layernorm": (d,),
        "self_attn.q_proj": (q_width, d),
        "self_attn.k_proj": (kv_width, d),
        "self_attn.v_proj": (kv_width, d),
        "self_attn.o_proj": (d, q_width),
        "post_attention_layernorm": (d,),
        "mlp.gate_proj": (m, d),
        "mlp.up_proj": (m, d),
        "mlp.down_proj": (d, m),
    }


def weight_shapes(config: LlamaConfig) -> dict[str, tuple[int, ...]]:
    """Hugging Face name -> shape of every weight."""
    v, d = config.vocab_size, config.hidden_size
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (v, d), "model.norm.weight": (d,)}
    if not config.tied:
        shapes["lm_head.weight"] = (v, d)
    for index in range(config.num_layers):
        shapes |= {f"model.layers.{index}.{name}.weight": shape for name, shape in layer_shapes(config).items()}
    return shapes


def read_weights(folder: Path, config: LlamaConfig) -> dict[str, Floats]:
    """Every weight the config asks for, float64, by its Hugging Face name, from however many files.

    Raises:
        CheckpointError: no weight file, an unreadable one, a weight that is missing, ill-shaped or in two files.
    """
    found: dict[str, Floats] = {}
    for file in sorted(folder.glob("*.safetensors")):
        tensors = _read_tensors(file)
        if twice := sorted(found.keys() & tensors.keys()):
            raise CheckpointError(f"{file} holds {twice[0]}, which another file has, too; keep the files of one model")
        found |= tensors
    if not found:
        raise CheckpointError(f"{folder} has no *.safetensors file with weights; download or convert them")
    for name, shape in weight_shapes(config).items():
        if name not in found:
            raise CheckpointError(f"{folder} has no weight {name}; its files and config.json do not belong together")
        if found[name].shape != shape:
            raise CheckpointError(
                f"{folder}: {name} has shape {found[name].shape}, config.json asks for {shape}; get both anew"
            )
    return found


def _read_tensors(file: Path) -> dict[str, Floats]:
    """All float tensors of a file, as float64. Decoded here, since NumPy (and `safetensors.numpy`) has no bfloat16."""
    decoders = {
        "F64": lambda data: np.frombuffer(data, "<f8"),
        "F32": lambda data: np.frombuffer(data, "<f4"),
        "F16": lambda data: np.frombuffer(data, "<f2"),
        "BF16": lambda data: (np.frombuffer(data, "<u2").astype("<u4") << 16).view("<f4"),  # upper half of a float32
    }
    try:
        entries = _deserialize(file.read_bytes())
    except safetensors.SafetensorError as error:
        raise CheckpointError(f"{file} is not a safetensors file ({error}); download it again") from error
    return {
        name: decoders[entry["dtype"]](entry["data"]).astype(np.float64).reshape(entry["shape"])
        for name, entry in entries
        if entry["dtype"] in decoders
    }


def read_tokens(folder: Path) -> dict[str, int] | None:
    """The vocabulary of `tokenizer.json`, token -> id; None where there is no such file, or it lists no tokens by id.

    Raises:
        CheckpointError: the file is not JSON.
    """
    if not (folder / "tokenizer.json").is_file():
        return None
    fields = _read_json(folder / "tokenizer.json")
    try:
        vocabulary = (fields.get("model") or {}).get("vocab")
        added = {token["content"]: token["id"] for token in fields.get("added_tokens") or ()}
    except (AttributeError, KeyError, TypeError) as error:
        raise CheckpointError(f"tokenizer.json in {folder} is not of its format ({error!r}); mend it") from error
    return {**vocabulary, **added} if isinstance(vocabulary, Mapping) else None


def _read_json(file: Path) -> dict[str, Any]:
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CheckpointError(f"{file} is not JSON ({error}); download it again") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{file} holds a {type(value).__name__} where a JSON object belongs; download it again")
    return value
