"""Hugging Face Llama folders: `config.json`, `*.safetensors`, and `tokenizer.json` where there is one.

Knows files, names and defaults. What it cannot read faithfully (scaled rotary positions, biases, quantised
weights) is refused: such checkpoints are loaded by mlx-lm, whose models the decoder runs too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import mlx.core as mx

from reference.errors import CheckpointError


@dataclass(frozen=True)
class ModelArgs:
    """Sizes and constants of a Llama, by their names in `config.json`."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    tie_word_embeddings: bool


def read_args(folder: Path) -> ModelArgs:
    """The configuration; absent values take the defaults of that format.

    Raises:
        CheckpointError: not a folder, no or unreadable config.json, not a Llama, or one with unknown parts.
    """
    if not folder.is_dir():
        raise CheckpointError(f"{folder} is not a folder; give a Hugging Face Llama folder")
    if not (folder / "config.json").is_file():
        raise CheckpointError(f"{folder} has no config.json; give a Hugging Face Llama folder")
    config = read_object(folder / "config.json")
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(rope, dict):
        raise CheckpointError(f"config.json in {folder} describes rotary positions by {rope!r}; give a JSON object")
    _refuse_unknown_parts(folder, config, rope)
    try:
        heads = config["num_attention_heads"]
        args = ModelArgs(
            vocab_size=config["vocab_size"],
            hidden_size=config["hidden_size"],
            intermediate_size=config["intermediate_size"],
            num_hidden_layers=config["num_hidden_layers"],
            num_attention_heads=heads,
            num_key_value_heads=_given(config, "num_key_value_heads", heads),
            head_dim=_given(config, "head_dim", config["hidden_size"] // heads),
            rms_norm_eps=_given(config, "rms_norm_eps", 1e-6),
            rope_theta=_given(config, "rope_theta", _given(rope, "rope_theta", 10000.0)),
            tie_word_embeddings=config.get("tie_word_embeddings", False),
        )
    except KeyError as error:
        raise CheckpointError(f"config.json in {folder} lacks {error}; give a complete Llama configuration") from error
    except (TypeError, ZeroDivisionError) as error:
        raise CheckpointError(f"config.json in {folder} holds a value of the wrong kind ({error}); mend it") from error
    _check_sizes(folder, args)
    return args


def _given(fields: dict[str, Any], name: str, default: Any) -> Any:
    """The value of that name; the default where it is absent or null."""
    value = fields.get(name)
    return default if value is None else value


def _check_sizes(folder: Path, args: ModelArgs) -> None:
    """Every field a number of its kind, and positive (`tie_word_embeddings`: true or false)."""
    for name, value in vars(args).items():
        kinds = {"tie_word_embeddings": (bool,), "rms_norm_eps": (int, float), "rope_theta": (int, float)}.get(
            name, (int,)
        )
        if type(value) not in kinds or (bool not in kinds and not value > 0):
            raise CheckpointError(
                f"config.json in {folder} gives {name} as {value!r}; give a positive number of its kind"
            )
    if args.num_attention_heads % args.num_key_value_heads or args.head_dim % 2:
        raise CheckpointError(
            f"config.json in {folder} gives {args.num_attention_heads} heads of size {args.head_dim} on "
            f"{args.num_key_value_heads} key heads; give numbers that divide, and an even size"
        )


def read_weights(folder: Path, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, mx.array]:
    """The weights of these names and shapes, in the dtype they are stored in, from however many files.

    Raises:
        CheckpointError: no or unreadable files, or a weight that is missing, misshapen or in two files.
    """
    found: dict[str, mx.array] = {}
    for file in sorted(folder.glob("*.safetensors")):
        try:
            tensors = cast(dict[str, mx.array], mx.load(str(file)))
        except (RuntimeError, ValueError) as error:
            raise CheckpointError(f"{file} is not readable as safetensors ({error}); download it again") from error
        if twice := sorted(found.keys() & tensors.keys()):
            raise CheckpointError(f"{file} has {twice[0]!r}, and so has another file; keep the files of one model")
        found.update(tensors)
    if not found:
        raise CheckpointError(f"{folder} has no *.safetensors with weights; give a Hugging Face Llama folder")
    for name, shape in shapes.items():
        if name not in found:
            raise CheckpointError(f"{folder} lacks the weight {name!r}; give a complete checkpoint")
        if found[name].shape != shape:
            raise CheckpointError(
                f"{name!r} in {folder} has shape {found[name].shape}, config.json asks for {shape}; "
                "give a config.json that belongs to these weights"
            )
    return {name: found[name] for name in shapes}


def read_tokens(folder: Path) -> dict[str, int] | None:
    """Token -> id from `tokenizer.json`; None where there is no such file, or it does not list its tokens.

    Raises:
        CheckpointError: the file is unreadable.
    """
    if not (folder / "tokenizer.json").is_file():
        return None
    tokenizer = read_object(folder / "tokenizer.json")
    try:
        listed = (tokenizer.get("model") or {}).get("vocab")
        added = {token["content"]: token["id"] for token in tokenizer.get("added_tokens") or ()}
    except (AttributeError, KeyError, TypeError) as error:
        raise CheckpointError(f"tokenizer.json in {folder} is not of its format ({error!r}); mend it") from error
    return {**listed, **added} if isinstance(listed, dict) else None


def read_object(file: Path) -> dict[str, Any]:
    """The JSON object that a file holds.

    Raises:
        CheckpointError: it holds something else.
    """
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CheckpointError(f"{file} is not valid JSON ({error}); download it again") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{file} holds a {type(value).__name__}, not a JSON object; download it again")
    return value


def _refuse_unknown_parts(folder: Path, config: dict[str, Any], rope: dict[str, Any]) -> None:
    """Refuse what this package would compute wrongly."""
    if config.get("model_type") != "llama":
        raise CheckpointError(f"{folder} has model_type {config.get('model_type')!r}, not 'llama'; load it by mlx-lm")
    unknown = {
        "attention_bias": config.get("attention_bias"),
        "mlp_bias": config.get("mlp_bias"),
        "another hidden_act than 'silu'": config.get("hidden_act", "silu") != "silu",
        "scaled rotary positions": rope.get("rope_type", rope.get("type", "default")) != "default",
        "partial_rotary_factor": any(place.get("partial_rotary_factor") not in (None, 1) for place in (config, rope)),
        "quantised weights": "quantization" in config or "quantization_config" in config,
    }
    for part, used in unknown.items():
        if used:
            raise CheckpointError(f"{folder} has {part}, which is not implemented here; load it by mlx-lm")
