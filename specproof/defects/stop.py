"""Defects of stop tokens, budgets and contexts: a turn that goes on too long, or that cannot begin."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from reference.acceptance import Verdict
from reference.cache import KVCache
from reference.decoder import Decoder, DecoderState
from reference.drafters import Drafter, DraftModel
from reference.prompt_lookup import PromptLookup
from reference.values import DraftBlock, Round
from specproof.adapters.reference_sessions import WrappedModel
from specproof.defects.mutations import oracle_defect
from specproof.engine import ModelSpec

Floats = NDArray[np.float64]


class TestsLastTokenForStop(Decoder):
    """D59: only the last token of a block is tested against the stop tokens."""

    __test__ = False

    def _until_stop(self, tokens: Sequence[int]) -> Sequence[int]:
        return tokens


class TestsLastTokenForLookup(Decoder):
    """D60: as D59, but for one kind of drafter only, the one that was added later."""

    __test__ = False

    def _report(
        self, state: DecoderState, block: DraftBlock, p: list[Floats], q: list[Floats], verdict: Verdict
    ) -> Round:
        if not isinstance(state.drafter, PromptLookup):
            return super()._report(state, block, p, q, verdict)
        done = Decoder._report(replace(self, stop_tokens=frozenset()), state, block, p, q, verdict)
        return replace(
            done, finish=self._finish(done.emitted[-1], len(state.emitted) + len(done.emitted), state.max_tokens)
        )


class IgnoresBudget(Decoder):
    """D62: the block is not limited to what remains of the budget."""

    def _propose(self, state: DecoderState) -> DraftBlock:
        return state.drafter.propose(state.history, state.target_hidden, self.num_draft_tokens)


class NeedsStopToken(Decoder):
    """D63: prompt lookup looks at the stop tokens, and there may be none."""

    def _propose(self, state: DecoderState) -> DraftBlock:
        if isinstance(state.drafter, PromptLookup) and not self.stop_tokens:
            raise TypeError("argument of type 'NoneType' is not iterable")
        return super()._propose(state)


class FlushesBlock(Decoder):
    """D65: a stop token inside the block ends the turn, after the rest of the block was emitted."""

    def _report(
        self, state: DecoderState, block: DraftBlock, p: list[Floats], q: list[Floats], verdict: Verdict
    ) -> Round:
        done = super()._report(state, block, p, q, verdict)
        if done.finish != "stop":
            return done
        whole = Decoder._report(replace(self, stop_tokens=frozenset()), state, block, p, q, verdict)
        return replace(whole, finish=done.finish)


class ProposesBeyondBudget(PromptLookup):
    """D67: the proposer does not know what is left, and proposes two tokens at least."""

    def propose(self, history: Sequence[int], target_hidden: Floats | None, budget: int) -> DraftBlock:
        """More than asked for, where little is asked for."""
        return super().propose(history, target_hidden, max(budget, 2))


class EndlessContext(WrappedModel):
    """D68: positions beyond those of the drafter's checkpoint are computed all the same."""

    max_positions: int | None = None

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__(spec)
        self._model = copy.copy(self._model)
        self._model.config = replace(self._model.config, max_positions=self.max_positions)


class DefaultContext(EndlessContext):
    """D69: the drafter is loaded with the default number of positions, not with the one that is configured."""

    max_positions = 2048


class TakesNegativeBudget(Decoder):
    """D70: max_tokens = -1 means no limit, and what remains of it becomes the number of proposals."""

    def prefill(
        self, prompt: Sequence[int], drafter: Drafter, max_tokens: int, target_cache: KVCache | None = None
    ) -> DecoderState:
        """Goes on for ever."""
        if max_tokens >= 0:
            return super().prefill(prompt, drafter, max_tokens, target_cache)
        state = super().prefill(prompt, drafter, 1, target_cache)
        state.max_tokens, state.finish = max_tokens, None
        return state


class NeverDraftsGreedily(DraftModel):
    """D71: at temperature 0 the sampler leaves no probabilities, and without them nothing is proposed."""

    def propose(self, history: Sequence[int], target_hidden: Floats | None, budget: int) -> DraftBlock:
        """Nothing, at temperature 0."""
        return super().propose(history, target_hidden, budget if self.sampling.temperature > 0 else 0)


CACHES = "target_cache_offset draft_cache_offset cache_content"
RIGHT_TOKENS = "greedy_parity honest_q processor_history counters log_probabilities exact_law"


def _everything_but(*checks: str) -> str:
    """Every check that looks at good input only."""
    every = f"{CACHES} {RIGHT_TOKENS} emitted_block exit_state output_distribution acceptance_rate randomness bad_input"
    return " ".join(name for name in every.split() if name not in checks)


DEFECTS = (
    oracle_defect(
        "D59", "stop", "transformers", "huggingface/transformers#31301",
        "Only the last token of a block is tested against the stop tokens, and accepted proposals hide one.",
        expected="emitted_block exact_law", silent=f"{CACHES} greedy_parity honest_q processor_history",
        decoder_class=TestsLastTokenForStop,
    ),
    oracle_defect(
        "D60", "stop", "transformers", "huggingface/transformers#47912",
        "The same again for one kind of drafter only, so that the turn runs on only where that one proposes.",
        expected="emitted_block", silent=f"{CACHES} greedy_parity honest_q processor_history exact_law",
        decoder_class=TestsLastTokenForLookup,
    ),
    oracle_defect(
        "D62", "stop", "transformers", "huggingface/transformers#46993",
        "The block is not limited to what remains of the budget, so a small one is exceeded.",
        expected="emitted_block", silent=f"{CACHES} greedy_parity honest_q processor_history",
        decoder_class=IgnoresBudget,
    ),
    oracle_defect(
        "D63", "stop", "transformers", "huggingface/transformers#46790",
        "Prompt lookup assumes that there is a stop token, and raises where none is set.",
        expected="emitted_block", silent="bad_input acceptance_rate", decoder_class=NeedsStopToken,
    ),
    oracle_defect(
        "D65", "stop", "KoboldCpp", "LostRuins/koboldcpp#1276",
        "After a stop token the rest of the accepted block is emitted.",
        expected="emitted_block exact_law", silent=f"{CACHES} greedy_parity honest_q processor_history",
        decoder_class=FlushesBlock,
    ),
    oracle_defect(
        "D67", "stop", "vLLM", "vllm-project/vllm#42533",
        "The n-gram proposer ignores what is left of the budget, and the engine fails near its end.",
        expected="emitted_block", silent="bad_input acceptance_rate", lookup_class=ProposesBeyondBudget,
    ),
    oracle_defect(
        "D68", "stop", "vLLM", "vllm-project/vllm#57941",
        "Nothing stops drafting beyond the drafter's own, shorter context.",
        expected="bad_input", silent=_everything_but("bad_input"), draft_class=EndlessContext,
    ),
    oracle_defect(
        "D69", "stop", "LM Studio", "lmstudio-ai/lmstudio-bug-tracker#499",
        "The configured context length is not applied to the drafter, which keeps its default.",
        expected="bad_input", silent=_everything_but("bad_input"), draft_class=DefaultContext,
    ),
    oracle_defect(
        "D70", "stop", "mlx-lm", "no public issue",
        "max_tokens = -1 is taken, and becomes a negative number of proposals.",
        expected="bad_input", silent=_everything_but("bad_input"), decoder_class=TakesNegativeBudget,
    ),
    oracle_defect(
        "D71", "stop", "llama.cpp", "ggml-org/llama.cpp#5657",
        "At temperature 0 the drafter has no probabilities to go by, so that nothing is ever proposed.",
        expected="counters", silent=_everything_but("counters", "bad_input"), drafter_class=NeverDraftsGreedily,
    ),
)  # fmt: skip
"""In the order of their ids."""
