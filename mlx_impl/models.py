"""Models that people have, by where they are on the disk: a folder in Hugging Face's or MLX's form, or a GGUF file.

Folders go through mlx-lm's own loader, so any model that it knows can be a target or a drafter. Nothing is fetched.
"""

# mypy: allow-untyped-calls
# (mlx.nn is annotated in parts only)

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx

from mlx_impl import gguf, gguf_tokenizer
from mlx_impl.extras import needed
from mlx_impl.tokenizer import Tokenizer, from_folder
from reference.errors import CheckpointError


@dataclass(frozen=True)
class LoadedModel:
    """A model and what turns text into its tokens.

    Attributes:
        model: mlx-lm's. Its attributes `tokens` (token -> id) and `special_ids` are what is known of its vocabulary, or
            None: `vocabulary.check_vocabularies` compares them with another model's.
        tokenizer: None where the folder or file has none of a kind that is known here.
    """

    model: Any
    tokenizer: Tokenizer | None


def load(path: Path | str) -> LoadedModel:
    """Read a model, in the dtype and the quantisation that it is stored in, and its tokenizer.

    Args:
        path: a folder with `config.json` and `model*.safetensors`, or a GGUF file of a Llama.

    Raises:
        CheckpointError: it is neither, is damaged or incomplete, or of an architecture that is not known.
        MissingExtra: mlx-lm is not installed.
    """
    path = Path(path)
    return _from_folder(path) if path.is_dir() else _from_gguf(path)


def in_float32(model: Any) -> Any:
    """The same model with every parameter in float32 and no layer quantised. Changes the model, and returns it.

    On a CPU, matrices are stored by columns from then on, which changes no shape, and results by rounding at most.
    """
    dense = needed("mlx_lm.utils", "mlx-lm", "to dequantise a model").dequantize_model(model)
    dense.set_dtype(mx.float32)
    if mx.default_device().type == mx.cpu:
        _store_by_columns(dense)
    mx.eval(dense.parameters())
    return dense


def _store_by_columns(model: Any) -> None:
    """Lay every matrix out by columns, one after the other, so that at no time there are two of each.

    A layer computes x @ weight.T, whose second factor then lies by rows. That is how a BLAS reads it fastest: the
    reference BLAS two times as fast, and OpenBLAS by a quarter.
    """
    for module in model.modules():
        weight = module.get("weight")
        if weight is not None and weight.ndim == 2:
            module.weight = mx.contiguous(weight.T).T
            mx.eval(module.weight)


def _from_folder(folder: Path) -> LoadedModel:
    if not (folder / "config.json").is_file():
        raise CheckpointError(
            f"{folder} has no config.json; give a folder in Hugging Face's or MLX's form, or a GGUF file"
        )
    utils = needed("mlx_lm.utils", "mlx-lm", "a model")
    try:
        model, _ = utils.load_model(folder)
    except (OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise CheckpointError(f"mlx-lm cannot read the model in {folder} ({reason}); give a complete one") from error
    tokenizer = from_folder(folder)
    if tokenizer is None:
        return _knowing(model, None, None, None)
    return _knowing(model, tokenizer, tokenizer.vocabulary, tokenizer.special_ids)


def _from_gguf(file: Path) -> LoadedModel:
    content = gguf.read(file)
    model = gguf.llama(content, gguf.llama_args(content))
    known = gguf_tokenizer.vocabulary(content), gguf_tokenizer.special_ids(content)
    return _knowing(model, gguf_tokenizer.tokenizer(content), *known)


def _knowing(
    model: Any, tokenizer: Tokenizer | None, tokens: Mapping[str, int] | None, special_ids: AbstractSet[int] | None
) -> LoadedModel:
    """A model that knows its vocabulary. Neither kind of value is one that MLX would take for parameters."""
    model.tokens, model.special_ids = tokens, special_ids
    return LoadedModel(model, tokenizer)
