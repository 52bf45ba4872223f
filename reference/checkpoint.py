"""Hugging Face Llama folders: `config.json`, `*.safetensors`, and `tokenizer.json` where there is one.

It knows file formats, names and shapes, and leaves the maths to `transformer`. Whatever it cannot read
faithfully (scaled rotary positions, biases, quantised weights) is refused, never approximated.
"""

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

_PLAIN = {"attention_bias": False, "mlp_bias": False, "hidden_act": "silu", "partial_rotary_factor": 1,
          "quantization": None, "quantization_config": None, "rope_type": "default", "type": "default"}  # fmt: skip
"""What a Llama may have that is unknown here -> the value, beside null, that says that it has not."""

_FORMATS = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}
"""Float formats as NumPy reads them. It has no bfloat16, which is the upper half of a float32."""


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
    max_positions: int | None = None  # None: no limit


def read_config(folder: Path) -> LlamaConfig:
    """The sizes in `config.json`, where null is as good as nothing.

    Raises:
        CheckpointError: no such file, not JSON, not a Llama, parts unknown here, a value missing or of another kind.
    """
    if not (file := folder / "config.json").is_file():
        problem = "has no config.json" if folder.is_dir() else "is not a folder"
        raise CheckpointError(f"{folder} {problem}; give a Hugging Face checkpoint folder")
    given = {name: value for name, value in _read_json(file).items() if value is not None}
    if (kind := given.get("model_type")) != "llama":
        raise CheckpointError(f"{folder} is a {kind!r} model; only 'llama' checkpoints can be read")
    rope = given.get("rope_parameters") or given.get("rope_scaling") or {}
    if not isinstance(rope, Mapping):
        raise CheckpointError(f"{file} describes rotary positions by {rope!r}; give a JSON object")
    for name, value in [*given.items(), *rope.items()]:
        if value not in (None, _PLAIN.get(name, value)):
            raise CheckpointError(f"{file} gives {name} as {value!r}, unknown to this reader; give a plain Llama")

    def positive(name: str, absent: object = None, *, kinds: tuple[type, ...] = (int,)) -> Any:
        value: Any = given.get(name, absent)
        if type(value) not in kinds or not value > 0:
            wanted = " or ".join(kind.__name__ for kind in kinds)
            raise CheckpointError(f"{file} gives {name} as {value!r}; a Llama needs a positive {wanted}")
        return value

    heads, hidden_size, real = positive("num_attention_heads"), positive("hidden_size"), (int, float)
    config = LlamaConfig(
        vocab_size=positive("vocab_size"), hidden_size=hidden_size, intermediate_size=positive("intermediate_size"),
        num_layers=positive("num_hidden_layers"), num_heads=heads, num_kv_heads=positive("num_key_value_heads", heads),
        head_dim=positive("head_dim", hidden_size // heads), rms_norm_eps=positive("rms_norm_eps", 1e-6, kinds=real),
        rope_theta=positive("rope_theta", rope.get("rope_theta", 10000.0), kinds=real),
        tied=given.get("tie_word_embeddings", False),
        max_positions=positive("max_position_embeddings") if "max_position_embeddings" in given else None,
    )  # fmt: skip
    if not isinstance(config.tied, bool):
        raise CheckpointError(f"{file} gives tie_word_embeddings as {config.tied!r}; give true or false")
    if config.num_heads % config.num_kv_heads or config.head_dim % 2:
        sizes = f"{config.num_heads} heads of size {config.head_dim} on {config.num_kv_heads} key heads"
        raise CheckpointError(f"{file} gives {sizes}; the numbers must divide evenly and the size be even")
    return config


def layer_shapes(config: LlamaConfig) -> dict[str, tuple[int, ...]]:
    """Name -> shape of every weight of one layer; matrices are [out, in]."""
    d, m = config.hidden_size, config.intermediate_size
    q, kv = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    return {
        "input_layernorm": (d,), "self_attn.q_proj": (q, d), "self_attn.k_proj": (kv, d), "self_attn.v_proj": (kv, d),
        "self_attn.o_proj": (d, q), "post_attention_layernorm": (d,),
        "mlp.gate_proj": (m, d), "mlp.up_proj": (m, d), "mlp.down_proj": (d, m),
    }  # fmt: skip


def weight_shapes(config: LlamaConfig) -> dict[str, tuple[int, ...]]:
    """Hugging Face name -> shape of every weight."""
    v, d, layers = config.vocab_size, config.hidden_size, range(config.num_layers)
    head = {} if config.tied else {"lm_head.weight": (v, d)}
    parts = {f"model.layers.{i}.{part}.weight": s for i in layers for part, s in layer_shapes(config).items()}
    return {"model.embed_tokens.weight": (v, d), "model.norm.weight": (d,), **head, **parts}


def read_weights(folder: Path, config: LlamaConfig) -> dict[str, Floats]:
    """Every weight the config asks for, float64, by its Hugging Face name, from however many files.

    Raises:
        CheckpointError: no weight file, an unreadable one, a weight that is missing, ill-shaped or in two files.
    """
    found: dict[str, Floats] = {}
    for file in sorted(folder.glob("*.safetensors")):
        try:
            entries = _deserialize(file.read_bytes())
        except safetensors.SafetensorError as error:
            raise CheckpointError(f"{file} is not a safetensors file ({error}); download it again") from error
        tensors = {name: _floats(entry) for name, entry in entries if entry["dtype"] in _FORMATS}
        if twice := sorted(found.keys() & tensors.keys()):
            raise CheckpointError(f"{file} holds {twice[0]}, which another file has, too; keep the files of one model")
        found |= tensors
    if not found:
        raise CheckpointError(f"{folder} has no *.safetensors file with weights; download or convert them")
    for name, shape in weight_shapes(config).items():
        if name not in found:
            raise CheckpointError(f"{folder} has no weight {name}; its files and config.json do not belong together")
        if (held := found[name].shape) != shape:
            raise CheckpointError(f"{folder}: {name} has shape {held}, config.json asks for {shape}; get both anew")
    return found


def _floats(entry: Mapping[str, Any]) -> Floats:
    """A tensor of a file, as float64."""
    numbers = np.frombuffer(entry["data"], _FORMATS[entry["dtype"]])
    if entry["dtype"] == "BF16":
        numbers = (numbers.astype("<u4") << 16).view("<f4")
    return numbers.astype(np.float64).reshape(entry["shape"])


def read_tokens(folder: Path) -> dict[str, int] | None:
    """The vocabulary of `tokenizer.json`, token -> id; None where there is no such file, or it lists no tokens by id.

    Raises:
        CheckpointError: the file is not JSON, or not of the format.
    """
    if not (file := folder / "tokenizer.json").is_file():
        return None
    fields = _read_json(file)
    try:
        vocabulary = (fields.get("model") or {}).get("vocab")
        added = {token["content"]: token["id"] for token in fields.get("added_tokens") or ()}
    except (AttributeError, KeyError, TypeError) as error:
        raise CheckpointError(f"{file} is not of its format ({error!r}); download it again") from error
    return {**vocabulary, **added} if isinstance(vocabulary, Mapping) else None


def _read_json(file: Path) -> dict[str, Any]:
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CheckpointError(f"{file} is not JSON ({error}); download it again") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{file} holds a {type(value).__name__} where a JSON object belongs; download it again")
    return value
