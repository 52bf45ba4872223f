"""GGUF files of Llamas: tensors and metadata as MLX reads them, put into mlx-lm's Llama.

Matrices of the kinds that MLX computes with (Q4_0, Q4_1 and Q8_0: 4 and 8 bits, in groups of 32) stay quantised. Of the
others it turns those that it can read into float16.

GGUF numbers the components of a head so that rotary positions turn *neighbours*; a Hugging Face folder so that they
turn a component of one half with one of the other. Under the wrong layout short answers still look right. The
probability of a text does not: see `tests/mlx_impl/test_gguf.py`.
"""

# mypy: allow-untyped-calls
# (mlx.nn is annotated in parts only)

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import mlx.core as mx
from mlx.nn.layers.quantized import quantize

from mlx_impl.extras import needed
from reference.errors import CheckpointError

MAGIC = b"GGUF"
OUTER = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
PARTS = ("weight", "scales", "biases")
"""What a quantised matrix consists of; a plain one is a weight."""


@dataclass(frozen=True)
class GGUF:
    """A file as MLX reads it.

    Attributes:
        path: where it is.
        tensors: by GGUF's names; a quantised matrix is three of them.
        metadata: numbers, strings and lists of strings; arrays of numbers as `mx.array`.
    """

    path: Path
    tensors: Mapping[str, mx.array]
    metadata: Mapping[str, Any]

    def get(self, key: str, default: Any = None) -> Any:
        """The value of that key, numbers as Python's; the default where it is absent."""
        value = self.metadata.get(key, default)
        return value.item() if isinstance(value, mx.array) and value.ndim == 0 else value

    def number(self, key: str, default: float | None = None) -> Any:
        """The number of that key.

        Raises:
            CheckpointError: it is absent and there is no default, or it is no number.
        """
        value = self.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise CheckpointError(f"{self.path} gives {key} as {value!r}; give a file with a number there")
        return value


def read(path: Path) -> GGUF:
    """Read a file.

    Raises:
        CheckpointError: there is no such file, it is not GGUF, or it is damaged.
    """
    if not path.is_file():
        raise CheckpointError(f"{path} is not a file; give a GGUF file, or a folder")
    with path.open("rb") as file:
        magic = file.read(len(MAGIC))
    if magic != MAGIC:
        raise CheckpointError(f"{path} begins with {magic!r}, not with {MAGIC!r}; give a GGUF file, or a folder")
    try:
        tensors, metadata = cast(Any, mx.load(str(path), format="gguf", return_metadata=True))
    except (RuntimeError, ValueError) as error:
        raise CheckpointError(f"{path} is not readable as GGUF ({error}); download it again") from error
    return GGUF(path, tensors, metadata)


def llama_args(gguf: GGUF) -> Any:
    """The configuration: mlx-lm's `ModelArgs` for its Llama.

    Raises:
        CheckpointError: not a Llama, lacks a number or the embedding, or has scaled or partial rotary positions.
        MissingExtra: mlx-lm is not installed.
    """
    architecture = gguf.get("general.architecture")
    if architecture != "llama":
        raise CheckpointError(
            f"{gguf.path} has the architecture {architecture!r}, not 'llama'; give the model as a folder, "
            "which mlx-lm reads"
        )
    if "token_embd.weight" not in gguf.tensors:
        raise CheckpointError(f"{gguf.path} lacks the tensor 'token_embd.weight'; give a complete file")
    heads, hidden = gguf.number("llama.attention.head_count"), gguf.number("llama.embedding_length")
    head_dim = gguf.number("llama.attention.key_length", hidden // heads)
    _refuse_other_rotations(gguf, head_dim)
    return _llama().ModelArgs(
        model_type="llama",
        hidden_size=hidden,
        num_hidden_layers=gguf.number("llama.block_count"),
        intermediate_size=gguf.number("llama.feed_forward_length"),
        num_attention_heads=heads,
        num_key_value_heads=gguf.number("llama.attention.head_count_kv", heads),
        head_dim=head_dim,
        rms_norm_eps=gguf.number("llama.attention.layer_norm_rms_epsilon"),
        vocab_size=gguf.tensors["token_embd.weight"].shape[0],
        max_position_embeddings=gguf.number("llama.context_length"),
        rope_theta=gguf.number("llama.rope.freq_base", 10000.0),
        rope_traditional=True,
        tie_word_embeddings="output.weight" not in gguf.tensors,
    )


def _refuse_other_rotations(gguf: GGUF, head_dim: int) -> None:
    """Refuse rotary positions that this package would compute wrongly."""
    rotated = gguf.get("llama.rope.dimension_count", head_dim)
    scaling = gguf.get("llama.rope.scaling.type", "none")
    if rotated != head_dim or scaling != "none":
        raise CheckpointError(
            f"{gguf.path} rotates {rotated} of {head_dim} components of a head, with scaling {scaling!r}, which is not "
            "implemented here; give the model as a folder, which mlx-lm reads"
        )


def llama(gguf: GGUF, args: Any) -> Any:
    """The model: mlx-lm's Llama of that configuration with the file's tensors, quantised where they are.

    Raises:
        CheckpointError: a tensor is missing, misshapen, or one that a Llama has not.
        MissingExtra: mlx-lm is not installed.
    """
    weights = _named_weights(gguf, args)
    model = _llama().Model(args)

    def packing(path: str, module: Any) -> dict[str, Any] | bool:
        if f"{path}.scales" not in weights:
            return False
        size = module.weight.shape[-1]
        packed, groups = weights[f"{path}.weight"].shape[-1], weights[f"{path}.scales"].shape[-1]
        return {"group_size": size // groups, "bits": packed * 32 // size}

    try:
        quantize(model, class_predicate=packing)
        model.load_weights(list(weights.items()))
    except ValueError as error:
        raise CheckpointError(
            f"the tensors in {gguf.path} do not fit its metadata ({error}); download it again"
        ) from error
    model.eval()
    mx.eval(model.parameters())
    return model


def _named_weights(gguf: GGUF, args: Any) -> dict[str, mx.array]:
    """The tensors by the names that mlx-lm's Llama has for them."""
    names = {stem: module for stem, module in OUTER.items() if stem != "output" or not args.tie_word_embeddings}
    for layer in range(args.num_hidden_layers):
        names |= {f"blk.{layer}.{stem}": f"model.layers.{layer}.{module}" for stem, module in LAYER.items()}
    for stem in names:
        if f"{stem}.weight" not in gguf.tensors:
            raise CheckpointError(f"{gguf.path} lacks the tensor '{stem}.weight'; give a complete file")
    weights = {}
    for tensor, array in gguf.tensors.items():
        stem, _, part = tensor.rpartition(".")
        if stem not in names or part not in PARTS:
            raise CheckpointError(
                f"{gguf.path} has the tensor {tensor!r}, which is not implemented here; give the model as a folder, "
                "which mlx-lm reads"
            )
        weights[f"{names[stem]}.{part}"] = array
    return weights


def _llama() -> Any:
    return needed("mlx_lm.models.llama", "mlx-lm", "a GGUF file")
