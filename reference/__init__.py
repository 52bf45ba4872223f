"""The oracle: speculative decoding in NumPy, written to be read.

Start with `decoder.Decoder.step`, which is one round. Everything else is one screen away: `acceptance` (the rules),
`drafters` and `prompt_lookup` (who proposes), `sampling` and `randomness` (how a token is drawn), `cache` and
`transformer` (what a forward leaves behind).
"""

from reference.acceptance import RULES, AcceptanceRule, Verdict
from reference.cache import KVCache
from reference.decoder import Decoder, DecoderState
from reference.drafters import Drafter, DraftModel
from reference.prompt_lookup import PromptLookup
from reference.randomness import Randomness, SeededRandomness
from reference.sampling import distribution
from reference.transformer import LanguageModel, Transformer, load
from reference.values import DraftBlock, DraftDistribution, GeneratedToken, Round, SamplingParams

__all__ = [
    "RULES", "AcceptanceRule", "Decoder", "DecoderState", "DraftBlock", "DraftDistribution", "DraftModel", "Drafter",
    "GeneratedToken", "KVCache", "LanguageModel", "PromptLookup", "Randomness", "Round", "SamplingParams",
    "SeededRandomness", "Transformer", "Verdict", "distribution", "load",
]  # fmt: skip
