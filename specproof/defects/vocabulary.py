"""Defects of vocabularies: ids that mean something else to the other model, and prompts that mean nothing."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from reference.cache import KVCache
from reference.decoder import Decoder, DecoderState
from reference.drafters import Drafter, DraftModel, check_vocabularies
from reference.transformer import LanguageModel
from reference.values import DraftBlock
from specproof.defects.mutations import oracle_defect

Floats = NDArray[np.float64]

PADDING = 128
"""How much two padded vocabularies are allowed to differ by."""


class SkipsVocabularyCheck(DraftModel):
    """D123: any drafter will do, until its q meets p."""

    def check_vocabulary(self, target: LanguageModel) -> None:
        """Nothing is refused."""


class CutsToTargetsVocabulary(SkipsVocabularyCheck):
    """D122: any drafter will do, and its q is made to fit."""

    _size: int | None = None

    def check_vocabulary(self, target: LanguageModel) -> None:
        """Nothing is refused; the size is noted."""
        self._size = target.vocab_size

    def _distribution(self, logits: Floats, context: Sequence[int]) -> Floats:
        return super()._distribution(logits[: self._size], context)


class AllowsPadding(DraftModel):
    """D124: padded sizes may differ a little, and what is padded is then taken for the same length."""

    def check_vocabulary(self, target: LanguageModel) -> None:
        """Only large differences are refused."""
        if abs(target.vocab_size - self.model.vocab_size) > PADDING:
            super().check_vocabulary(target)


class PassesUntranslatedIds(DraftModel):
    """D125: where the drafter has a token of its own, its id goes to the target as it is."""

    def propose(self, history: Sequence[int], target_hidden: Floats | None, budget: int) -> DraftBlock:
        """As the oracle's; every proposal of token 0 has the id behind the last one."""
        block = super().propose(history, target_hidden, budget)
        return DraftBlock(tuple(token or self.model.vocab_size for token in block.tokens), block.distributions)


class WrapsPromptIds(Decoder):
    """D126: ids outside the vocabulary index something all the same."""

    def prefill(
        self, prompt: Sequence[int], drafter: Drafter, max_tokens: int, target_cache: KVCache | None = None
    ) -> DecoderState:
        """As the oracle's, ids taken modulo the vocabulary."""
        return super().prefill([token % self.target.vocab_size for token in prompt], drafter, max_tokens, target_cache)


class ComparesSizesOnly(DraftModel):
    """D128: two vocabularies of one size count as the same."""

    def check_vocabulary(self, target: LanguageModel) -> None:
        """Other contents are not refused."""
        check_vocabularies(target.vocab_size, self.model.vocab_size)


GOOD_INPUT = (
    "target_cache_offset draft_cache_offset cache_content emitted_block greedy_parity honest_q exit_state "
    "processor_history "
    "counters log_probabilities exact_law output_distribution acceptance_rate randomness"
)
"""All checks that never give an engine anything bad."""

DEFECTS = (
    oracle_defect(
        "D122", "vocabulary", "SGLang", "sgl-project/sglang#24051",
        "A drafter of another vocabulary is taken, and its q is cut to the target's size.",
        expected="bad_input", silent=GOOD_INPUT, drafter_class=CutsToTargetsVocabulary,
    ),
    oracle_defect(
        "D123", "vocabulary", "llama.cpp", "ggml-org/llama.cpp#3812",
        "Vocabularies are not compared, and the first block fails.",
        expected="bad_input", silent=GOOD_INPUT, drafter_class=SkipsVocabularyCheck,
    ),
    oracle_defect(
        "D124", "vocabulary", "transformers", "huggingface/transformers#45307",
        "Vocabularies padded to different sizes count as the same, although q is then shorter than p.",
        expected="bad_input", silent=GOOD_INPUT, drafter_class=AllowsPadding,
    ),
    oracle_defect(
        "D125", "vocabulary", "llama.cpp", "ggml-org/llama.cpp#17480",
        "An id of the drafter's own vocabulary reaches the target untranslated.",
        expected="emitted_block exact_law", drafter_class=PassesUntranslatedIds,
    ),
    oracle_defect(
        "D126", "vocabulary", "ExLlamaV2", "turboderp-org/exllamav2#733",
        "A prompt id outside the vocabulary indexes something all the same.",
        expected="bad_input", silent=GOOD_INPUT, decoder_class=WrapsPromptIds,
    ),
    oracle_defect(
        "D128", "vocabulary", "mlx-lm", "no public issue",
        "Only the sizes of the vocabularies are compared, not what their ids mean.",
        expected="bad_input", silent=GOOD_INPUT, drafter_class=ComparesSizesOnly,
    ),
)  # fmt: skip
"""In the order of their ids."""
