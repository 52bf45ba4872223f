"""Defects of how a turn ends: what the caches hold after a stop, a close, an exception, and what the next turn gets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

from reference.decoder import Decoder, DecoderState
from reference.transformer import Activations, advance
from reference.values import DraftBlock, Round
from specproof.adapters.reference import ReferenceEngine
from specproof.adapters.reference_sessions import ReferenceSession
from specproof.defects.mutations import oracle_defect
from specproof.engine import Case, Session

Floats = NDArray[np.float64]

INSIDE = "emitted_block greedy_parity honest_q processor_history log_probabilities exact_law output_distribution"
"""What is right as long as the turn goes on."""


class CleansUpByStaleCounts(Decoder):
    """D51: whatever happened, the clean-up trims k less the last round's accepted proposals."""

    def prefill(self, *arguments: Any, **named: Any) -> DecoderState:
        """As the oracle's; the state's clean-up is replaced."""
        state = super().prefill(*arguments, **named)
        vars(state)["roll_back"] = lambda: self._clean_up(state)
        return state

    def _clean_up(self, state: DecoderState) -> None:
        last = [token for token in state.tokens if token.round_index == state.num_rounds - 1]
        stale = sum(token.from_draft for token in last)
        rows = min(state.target_cache.offsets)
        state.target_cache.trim_to(max(rows - max(self.num_draft_tokens - stale, 0), 0))
        state.drafter.rollback(state.history)


class EndsByItsLastToken(Decoder):
    """D52: a turn that ends with an accepted proposal leaves that proposal's row in the target's cache."""

    def _commit(self, state: DecoderState, round_: Round) -> None:
        layers = state.target_cache.layers
        super()._commit(state, round_)
        if round_.finish is not None and len(round_.emitted) <= round_.num_accepted:
            kept = state.target_cache.offset + 1
            state.target_cache.layers = [layer.first_rows(kept) for layer in layers]


class NeverCommitsStop(Decoder):
    """D53: the turn ends one row early if it ends with a stop token."""

    def _commit(self, state: DecoderState, round_: Round) -> None:
        super()._commit(state, round_)
        if round_.finish == "stop":
            state.target_cache.trim(1)


class KeepsBlockBehindStop(Decoder):
    """D54: the accepted block is inserted whole, and the stop token in it ends the turn without removing the rest."""

    def _commit(self, state: DecoderState, round_: Round) -> None:
        layers = state.target_cache.layers
        kept = len(state.history) + round_.num_accepted
        super()._commit(state, round_)
        if round_.finish == "stop":
            state.target_cache.layers = [layer.first_rows(kept) for layer in layers]


@dataclass(frozen=True)
class ReleasesOldSlot(ReferenceEngine):
    """D55: the clean-up of a closed turn goes to the slot it was prefilled in, where other turns are by now."""

    name: str = "D55"
    live: WeakSet[ReferenceSession] = field(default_factory=WeakSet)

    def start(self, case: Case) -> ReferenceSession:
        """A turn whose end is the end of the others."""
        session = super().start(case)
        others = list(self.live)
        self.live.add(session)
        close = session.close

        def close_and_release() -> None:
            close()
            for other in others:
                other.target_cache.trim_to(0)

        vars(session)["close"] = close_and_release
        return session


class SplitsVerifyBatch(Decoder):
    """D56: a block is verified in two batches, and the second one's rows are counted from 0 again."""

    def _verify(self, state: DecoderState, block: DraftBlock) -> tuple[list[Floats], Activations]:
        tokens = [state.history[-1], *block.tokens]
        half = (len(tokens) + 1) // 2
        batches = [batch for batch in (tokens[:half], tokens[half:]) if batch]
        done = [advance(self.target, batch, state.target_cache) for batch in batches]
        whole = Activations(*(np.concatenate(rows) for rows in zip(*((d.logits, d.hidden) for d in done), strict=True)))
        rows = [i % half for i in range(len(tokens))]
        p = [self._distribution(whole, row, [*state.history, *block.tokens[:i]]) for i, row in enumerate(rows)]
        return p, whole


@dataclass(frozen=True)
class KeepsTokenRecord(ReferenceEngine):
    """D58: a further turn gets new caches, and only the tokens that are not on record as cached are forwarded."""

    name: str = "D58"

    def resume(self, session: Session, emitted: Sequence[int], tokens: Sequence[int], case: Case) -> ReferenceSession:
        """The next turn, without its past."""
        history = (*case.prompt, *emitted, *tokens)
        return self._session(case, history[-1 - len(tokens) :], None, None, self.randomness_class(case.seed))


DEFECTS = (
    oracle_defect(
        "D51", "exit", "mlx-lm", "ml-explore/mlx-lm#1528",
        "The clean-up after an exception or a close trims by this round's k and the last round's accepted proposals.",
        expected="target_cache_offset exit_state", silent=INSIDE, decoder_class=CleansUpByStaleCounts,
    ),
    oracle_defect(
        "D52", "exit", "mlx-lm", "no public issue",
        "What the target's cache holds at the end of a turn depends on whether the last token was a proposal.",
        expected="target_cache_offset exit_state", silent=INSIDE, decoder_class=EndsByItsLastToken,
    ),
    oracle_defect(
        "D53", "exit", "LiteRT-LM", "google-ai-edge/LiteRT-LM#3439",
        "The stop token that ends a turn is not committed, and the next turn does not add it.",
        expected="target_cache_offset exit_state", silent=INSIDE, decoder_class=NeverCommitsStop,
    ),
    oracle_defect(
        "D54", "exit", "llama.cpp", "ggml-org/llama.cpp#28049",
        "An accepted block is inserted whole, and a stop token in it ends the turn without removing what follows.",
        expected="target_cache_offset exit_state", silent=INSIDE, decoder_class=KeepsBlockBehindStop,
    ),
    oracle_defect(
        "D55", "exit", "vllm-tt-plugin", "tenstorrent/vllm-tt-plugin#118",
        "Closing a turn clears the slot it was prefilled in, where another turn is by now.",
        expected="randomness", silent=f"{INSIDE} target_cache_offset draft_cache_offset cache_content exit_state",
        make=ReleasesOldSlot,
    ),
    oracle_defect(
        "D56", "exit", "llama.cpp (fork)", "unslothai/llama.cpp#182",
        "A block is verified again in smaller batches, and the rows of the second are indexed as if it were the first.",
        expected="greedy_parity counters exact_law log_probabilities",
        silent="target_cache_offset draft_cache_offset cache_content honest_q processor_history",
        decoder_class=SplitsVerifyBatch,
    ),
    oracle_defect(
        "D58", "exit", "mlx-engine", "lmstudio-ai/mlx-engine#91",
        "The record of cached tokens is not cleared when the caches are made anew, so a further turn lacks its past.",
        expected="exit_state", silent=f"{INSIDE} target_cache_offset draft_cache_offset cache_content",
        make=KeepsTokenRecord,
    ),
)  # fmt: skip
"""In the order of their ids."""
