"""The tokenizer inside a GGUF file: tokens, merges, special ids and chat template are in its metadata.

How a text is split before merging is not: the file has only a name for it (`tokenizer.ggml.pre`). Those in `SPLITS` are
known here; a model with another is loaded without its tokenizer, as are SentencePiece models.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from mlx_impl.extras import needed
from mlx_impl.gguf import GGUF
from mlx_impl.tokenizer import Tokenizer
from reference.errors import CheckpointError

UNKNOWN, CONTROL, USER_DEFINED, UNUSED = 2, 3, 4, 5
"""Kinds of tokens (`tokenizer.ggml.token_type`). Unused ones are padding, under made-up names."""

SPLITS: Mapping[str, Callable[[Any], list[Any]]] = MappingProxyType(
    {"gpt-2": lambda split: [], "smollm": lambda split: [split.Digits(individual_digits=True)]}
)
"""What is split off a text before the pattern of GPT-2 is applied, by its name in the file."""

NAMES = {
    "bos_token": "tokenizer.ggml.bos_token_id",
    "eos_token": "tokenizer.ggml.eos_token_id",
    "unk_token": "tokenizer.ggml.unknown_token_id",
    "pad_token": "tokenizer.ggml.padding_token_id",
}


def vocabulary(gguf: GGUF) -> Mapping[str, int] | None:
    """Token -> id; None where the file does not list its tokens."""
    tokens = gguf.get("tokenizer.ggml.tokens")
    if tokens is None:
        return None
    unused = set(_ids_of_kind(gguf, UNUSED))
    return MappingProxyType({token: id for id, token in enumerate(tokens) if id not in unused})


def special_ids(gguf: GGUF) -> frozenset[int] | None:
    """Tokens that are no text; None where the file does not tell."""
    known = "tokenizer.ggml.token_type" in gguf.metadata
    return frozenset(_ids_of_kind(gguf, UNKNOWN, CONTROL)) if known else None


def tokenizer(gguf: GGUF) -> Tokenizer | None:
    """The tokenizer; None where it is of a kind that is not known here.

    Raises:
        CheckpointError: tokens, merges or a special id contradict each other.
        MissingExtra: tokenizers is not installed.
    """
    tokens = vocabulary(gguf)
    if tokens is None or gguf.get("tokenizer.ggml.model") != "gpt2" or gguf.get("tokenizer.ggml.pre") not in SPLITS:
        return None
    listed = gguf.get("tokenizer.ggml.tokens")
    try:
        named = {name: listed[id] for name, key in NAMES.items() if (id := gguf.get(key)) is not None}
        backend = _backend(gguf, tokens)
    except Exception as error:  # tokenizers raises nothing narrower
        raise CheckpointError(f"the tokenizer in {gguf.path} is not readable ({error}); download it again") from error
    if gguf.get("tokenizer.ggml.add_bos_token", False):
        bos = named["bos_token"]
        template = needed("tokenizers.processors", "text", "a tokenizer").TemplateProcessing
        backend.post_processor = template(single=f"{bos} $A", special_tokens=[(bos, tokens[bos])])
    stops = {gguf.get(key) for key in ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id")} - {None}
    return Tokenizer(backend, frozenset(stops), gguf.get("tokenizer.chat_template"), named)


def _backend(gguf: GGUF, tokens: Mapping[str, int]) -> Any:
    """A byte-level BPE of the file's tokens and merges."""
    tokenizers = needed("tokenizers", "text", "a tokenizer")
    split = tokenizers.pre_tokenizers
    merges = [tuple(merge.split(" ", 1)) for merge in gguf.get("tokenizer.ggml.merges", [])]
    backend = tokenizers.Tokenizer(tokenizers.models.BPE(dict(tokens), merges))
    first = SPLITS[gguf.get("tokenizer.ggml.pre")](split)
    backend.pre_tokenizer = split.Sequence([*first, split.ByteLevel(add_prefix_space=False)])
    backend.decoder = tokenizers.decoders.ByteLevel()
    listed = gguf.get("tokenizer.ggml.tokens")
    backend.add_special_tokens([listed[id] for id in _ids_of_kind(gguf, UNKNOWN, CONTROL)])
    backend.add_tokens([listed[id] for id in _ids_of_kind(gguf, USER_DEFINED)])
    return backend


def _ids_of_kind(gguf: GGUF, *kinds: int) -> list[int]:
    """Tokens of these kinds, in the order of their ids."""
    given = gguf.get("tokenizer.ggml.token_type")
    return [] if given is None else [id for id, kind in enumerate(given.tolist()) if kind in kinds]
