"""The caches of target and drafter in one file, so that a conversation goes on after the process ends.

The file is mlx-lm's own kind (`save_prompt_cache`), the target's layers first, then the drafter's. Beside them it says
how many layers are whose, and which tokens they hold. Takes mlx-lm.
"""

# mypy: allow-untyped-calls
# (mlx-lm carries no annotations)

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from mlx_lm.models.cache import load_prompt_cache, save_prompt_cache

from mlx_impl.drafters import NAME as DRAFT_NAME
from mlx_impl.forward import plain_tokens
from mlx_impl.model_cache import ModelCache
from reference.errors import CacheLengthError, CheckpointError

TARGET_NAME = "target"


def save_caches(path: Path | str, tokens: Sequence[int], target: ModelCache, draft: ModelCache | None = None) -> None:
    """Write the caches of a decode at a round boundary.

    Args:
        path: a `.safetensors` file, written over.
        tokens: the committed ones, which the caches hold: the history without its pending token.
        target, draft: of a `DecoderState` and of its drafter; None for a drafter without a model.

    Raises:
        CacheLengthError: a cache holds another number of tokens.
    """
    for cache in (target, draft):
        if cache is not None and cache.length != len(tokens):
            raise CacheLengthError(
                f"the {cache.name}'s cache holds {cache.length} tokens, and {len(tokens)} are given; save at a round "
                "boundary, with the history without its last token"
            )
    layers = [*target.layers, *(draft.layers if draft is not None else ())]
    metadata = {"target_layers": str(len(target)), "tokens": json.dumps(plain_tokens(tokens))}
    save_prompt_cache(str(path), layers, metadata)


def load_caches(
    path: Path | str,
) -> tuple[list[int], ModelCache, ModelCache | None]:
    """Read what `save_caches` wrote: the tokens held, the target's cache, and the drafter's (None where it had none).

    Raises:
        CheckpointError: there is no such file, or something else wrote it.
        CacheLengthError: the layers do not hold the tokens that the file names.
    """
    try:
        layers, metadata = load_prompt_cache(str(path), return_metadata=True)
        split, tokens = int(metadata["target_layers"]), plain_tokens(json.loads(metadata["tokens"]))
    except (OSError, RuntimeError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path} is no file of caches ({error}); give one that save_caches wrote") from error
    target = ModelCache(TARGET_NAME, layers[:split], length=len(tokens))
    draft = ModelCache(DRAFT_NAME, layers[split:], length=len(tokens)) if layers[split:] else None
    for cache in (target, draft):
        if cache is not None and cache.length != len(tokens):
            raise CacheLengthError(
                f"{path} names {len(tokens)} tokens, and its {cache.name}'s cache holds {cache.length}; save it again"
            )
        if cache is not None:
            cache.checkpoint(tokens)
    return tokens, target, draft
