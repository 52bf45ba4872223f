"""Speculative decoding on MLX: the loop that people run, for toy checkpoints and for mlx-lm models.

Written independently of `reference`, of which only value types and errors are used, so that each checks the other.
"""

from mlx_impl.blas import load_if_asked

load_if_asked()  # before anything imports MLX

# ruff: noqa: E402
from mlx_impl.acceptance import RULES, AcceptanceRule
from mlx_impl.cache import KVCache
from mlx_impl.chain import Chain
from mlx_impl.decoder import Decoder
from mlx_impl.draft_length import AdaptiveLength, DraftLength
from mlx_impl.drafters import DeviceBlock, Drafter, DraftModel
from mlx_impl.models import LoadedModel, load
from mlx_impl.prompt_lookup import PromptLookup
from mlx_impl.randomness import KeyedRandomness, Randomness
from mlx_impl.state import DecoderState
from mlx_impl.statistics import Statistics
from mlx_impl.text import TextPiece, TextTurn
from mlx_impl.tokenizer import Tokenizer
from mlx_impl.transformer import Transformer

__all__ = [
    "RULES",
    "AcceptanceRule",
    "AdaptiveLength",
    "Chain",
    "Decoder",
    "DecoderState",
    "DeviceBlock",
    "DraftLength",
    "DraftModel",
    "Drafter",
    "KVCache",
    "KeyedRandomness",
    "LoadedModel",
    "PromptLookup",
    "Randomness",
    "Statistics",
    "TextPiece",
    "TextTurn",
    "Tokenizer",
    "Transformer",
    "load",
]
