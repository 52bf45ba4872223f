"""Defects of what is reported: log-probabilities and counters. The tokens are right, and so are the caches."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from reference.acceptance import Verdict
from reference.decoder import Decoder, DecoderState
from reference.values import DraftBlock, Round
from specproof.defects.mutations import oracle_defect

Floats = NDArray[np.float64]


class LeavesLogProbabilitiesEmpty(Decoder):
    """D129: accepted proposals are emitted with the log-probability that their record began with."""

    def _report(
        self, state: DecoderState, block: DraftBlock, p: list[Floats], q: list[Floats], verdict: Verdict
    ) -> Round:
        done = super()._report(state, block, p, q, verdict)
        filled = (0.0 if i < done.num_accepted else figure for i, figure in enumerate(done.log_probabilities))
        return replace(done, log_probabilities=tuple(filled))


class CountsUntested(Decoder):
    """D132: proposals behind a rejection, which nobody tested, count in the denominator."""

    def _report(
        self, state: DecoderState, block: DraftBlock, p: list[Floats], q: list[Floats], verdict: Verdict
    ) -> Round:
        done = super()._report(state, block, p, q, verdict)
        all_ = range(len(block))
        return replace(done, sum_min=tuple(float(np.minimum(p[i], q[i]).sum()) for i in all_),
                       sum_prod=tuple(float((p[i] * q[i]).sum()) for i in all_))  # fmt: skip


class CountsEmitted(Decoder):
    """D135: accepted is what was emitted, less one."""

    def _report(
        self, state: DecoderState, block: DraftBlock, p: list[Floats], q: list[Floats], verdict: Verdict
    ) -> Round:
        done = super()._report(state, block, p, q, verdict)
        return replace(done, num_accepted=len(done.emitted) - 1)


class CountsOneMore(Decoder):
    """D136: one proposal too many is reported."""

    def _report(
        self, state: DecoderState, block: DraftBlock, p: list[Floats], q: list[Floats], verdict: Verdict
    ) -> Round:
        done = super()._report(state, block, p, q, verdict)
        return replace(done, p=(*done.p, 0.5))


class CachesByProposed(Decoder):
    """D137: what is kept at the end is computed with the largest number of proposals, not with the round's own."""

    def _commit(self, state: DecoderState, round_: Round) -> None:
        super()._commit(state, round_)
        if round_.finish is not None:
            surplus = self.num_draft_tokens - len(round_.drafted)
            state.target_cache.trim(min(surplus, state.target_cache.offset))


REST = (
    "target_cache_offset draft_cache_offset cache_content greedy_parity honest_q exit_state processor_history "
    "exact_law "
    "output_distribution bad_input randomness"
)
"""What no report has to do with."""

DEFECTS = (
    oracle_defect(
        "D129", "metrics", "llama.cpp", "ggml-org/llama.cpp#27972",
        "Accepted proposals never get a probability, so that every log-probability is 0.",
        expected="log_probabilities", silent=f"{REST} emitted_block counters acceptance_rate",
        decoder_class=LeavesLogProbabilitiesEmpty,
    ),
    oracle_defect(
        "D132", "metrics", "llama.cpp", "ggml-org/llama.cpp#14104",
        "Proposals that were discarded before they were verified count in the denominator of the acceptance rate.",
        expected="counters", silent=f"{REST} emitted_block log_probabilities", decoder_class=CountsUntested,
    ),
    oracle_defect(
        "D135", "metrics", "vLLM", "vllm-project/vllm#26372",
        "Accepted is counted as emitted - 1, which is wrong where a block is cut, and -1 where nothing is emitted.",
        expected="counters", silent=f"{REST} log_probabilities", decoder_class=CountsEmitted,
    ),
    oracle_defect(
        "D136", "metrics", "tokenspeed", "lightseekorg/tokenspeed#1443",
        "One proposal too many is counted in every round.",
        expected="counters", silent=f"{REST} emitted_block log_probabilities", decoder_class=CountsOneMore,
    ),
    oracle_defect(
        "D137", "metrics", "vLLM", "vllm-project/vllm#18668",
        "The cached length is computed with the configured number of proposals instead of those that were scheduled.",
        expected="target_cache_offset exit_state",
        silent="draft_cache_offset cache_content emitted_block greedy_parity honest_q processor_history counters "
        "exact_law "
        "output_distribution log_probabilities bad_input randomness acceptance_rate",
        decoder_class=CachesByProposed,
    ),
)  # fmt: skip
"""In the order of their ids."""
