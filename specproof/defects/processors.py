"""Defects of penalties and logits processors: what they see of a block that is not decided yet, or whether they run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from reference.decoder import Decoder, DecoderState
from reference.drafters import DraftModel
from reference.transformer import Activations, advance
from reference.values import DraftBlock
from specproof.defects.mutations import oracle_defect

Floats = NDArray[np.float64]


class ShowsLastTokenOnly(Decoder):
    """D95: the history that processors see begins at the last token."""

    def _distribution(self, activations: Activations, row: int, context: Sequence[int]) -> Floats:
        return super()._distribution(activations, row, context[-1:])


class ShowsAnotherHistory(Decoder):
    """A verification that takes the history from a record of its own. Subclasses say what is on record."""

    def recorded(self, state: DecoderState, block: DraftBlock, i: int) -> list[int]:
        """What processors see for the token at place `i` of the block."""
        raise NotImplementedError

    def _verify(self, state: DecoderState, block: DraftBlock) -> tuple[list[Floats], Activations]:
        activations = advance(self.target, [state.history[-1], *block.tokens], state.target_cache)
        rows = range(len(block) + 1)
        return [self._distribution(activations, i, self.recorded(state, block, i)) for i in rows], activations


class KeepsRejectedHistory(ShowsAnotherHistory):
    """D97: rejected proposals stay on record."""

    def recorded(self, state: DecoderState, block: DraftBlock, i: int) -> list[int]:
        """The history, the last round's rejected proposals, and the block."""
        last = [token for token in state.tokens if token.round_index == state.num_rounds - 1]
        rejected = state.block.tokens[sum(token.from_draft for token in last) :]
        return [*state.history, *rejected, *block.tokens[:i]]


class SharesPenaltyCounts(ShowsAnotherHistory):
    """D100: a copy of the penalties' state shares its counts, so that every proposal is counted when it is verified."""

    def recorded(self, state: DecoderState, block: DraftBlock, i: int) -> list[int]:
        """The history, in which accepted proposals count twice, and rejected ones once."""
        return [*state.history, *state.block.tokens, *block.tokens[:i]]


class CountsLastOfCommit(ShowsAnotherHistory):
    """D101: of every commit only the last token reaches the penalties."""

    def recorded(self, state: DecoderState, block: DraftBlock, i: int) -> list[int]:
        """The prompt, and one token a round."""
        last = {token.round_index: token.token for token in state.tokens}
        return [*state.history[: state.prompt_length], *last.values()]


class FiltersBonusOnly(Decoder):
    """D102: min-p is applied to the bonus row, and not to those that are verified."""

    def _distribution(self, activations: Activations, row: int, context: Sequence[int]) -> Floats:
        verified = 0 <= row < len(activations.logits) - 1
        decoder = replace(self, sampling=replace(self.sampling, min_p=0.0)) if verified else self
        return Decoder._distribution(decoder, activations, row, context)


class SkipsPenalties(Decoder):
    """D103: with a drafter, penalties are not applied; the token of prefill still has them."""

    def _distribution(self, activations: Activations, row: int, context: Sequence[int]) -> Floats:
        without = replace(self.sampling, repetition_penalty=1.0, presence_penalty=0.0, frequency_penalty=0.0)
        return Decoder._distribution(self if row < 0 else replace(self, sampling=without), activations, row, context)


class ReadsThreeFields(Decoder):
    """D105: a fused sampler reads temperature, top-k and top-p, and nothing else."""

    def _distribution(self, activations: Activations, row: int, context: Sequence[int]) -> Floats:
        read = replace(self.sampling, repetition_penalty=1.0, presence_penalty=0.0, frequency_penalty=0.0, min_p=0.0,
                       logit_bias={})  # fmt: skip
        return Decoder._distribution(replace(self, sampling=read), activations, row, context)


class KeepsPlaceholders(DraftModel):
    """D111: after a round without proposals, the next one's are still placeholders."""

    PLACEHOLDER = -1
    _skipped = False

    def propose(self, history: Sequence[int], target_hidden: Floats | None, budget: int) -> DraftBlock:
        """As the oracle's, but for its tokens after a skipped round."""
        block = super().propose(history, target_hidden, budget)
        tokens = (self.PLACEHOLDER,) * len(block) if self._skipped else block.tokens
        self._skipped = budget > 0 and not block.tokens
        return DraftBlock(tokens, block.distributions)


ROWS = "target_cache_offset draft_cache_offset cache_content emitted_block honest_q bad_input"
"""What no processor has to do with."""

DEFECTS = (
    oracle_defect(
        "D95", "processors", "mlx-lm", "ml-explore/mlx-lm#1773",
        "Processors are shown the history from the last prompt token on, where plain decoding shows the whole prompt.",
        expected="processor_history greedy_parity exact_law", silent=ROWS, decoder_class=ShowsLastTokenOnly,
    ),
    oracle_defect(
        "D97", "processors", "mlx-examples", "ml-explore/mlx-examples#1291",
        "The record of previous tokens is not truncated after a rejection.",
        expected="processor_history exact_law", silent=ROWS, decoder_class=KeepsRejectedHistory,
    ),
    oracle_defect(
        "D100", "processors", "vmlx-swift", "osaurus-ai/vmlx-swift#357",
        "Copies of the penalties share a counter, so that rejected proposals are penalised and accepted ones twice.",
        expected="processor_history exact_law", silent=ROWS, decoder_class=SharesPenaltyCounts,
    ),
    oracle_defect(
        "D101", "processors", "SGLang", "sgl-project/sglang#33643",
        "Of every commit only the last token reaches the penalties.",
        expected="processor_history exact_law", silent=ROWS, decoder_class=CountsLastOfCommit,
    ),
    oracle_defect(
        "D102", "processors", "vLLM", "vllm-project/vllm#42744",
        "Rows that are verified skip min-p, and only the bonus row gets it.",
        expected="counters log_probabilities exact_law", silent=f"{ROWS} greedy_parity processor_history",
        decoder_class=FiltersBonusOnly,
    ),
    oracle_defect(
        "D103", "processors", "vLLM", "vllm-project/vllm#18902",
        "With a drafter, penalties are ignored without a warning.",
        expected="counters greedy_parity log_probabilities exact_law", silent=f"{ROWS} processor_history",
        decoder_class=SkipsPenalties,
    ),
    oracle_defect(
        "D105", "processors", "TensorRT-LLM", "NVIDIA/TensorRT-LLM#17701",
        "A fused sampler reads temperature, top-k and top-p, and ignores every other parameter.",
        expected="counters greedy_parity log_probabilities exact_law", silent=f"{ROWS} processor_history",
        decoder_class=ReadsThreeFields,
    ),
    oracle_defect(
        "D111", "processors", "vLLM", "vllm-project/vllm#46899",
        "Placeholder proposals outlive the step that was skipped, and are verified as tokens.",
        expected="emitted_block", silent="bad_input randomness acceptance_rate", drafter_class=KeepsPlaceholders,
    ),
)  # fmt: skip
"""In the order of their ids."""
