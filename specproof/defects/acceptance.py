"""Defects of the acceptance rule, its residual, and of the q that a drafter reports: the output is not the target's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from reference.acceptance import AcceptanceRule, Verdict, residual
from reference.decoder import Decoder
from reference.drafters import DraftModel
from reference.randomness import Randomness, SeededRandomness
from reference.sampling import next_distribution, softmax
from reference.transformer import Activations
from reference.values import DraftBlock, DraftDistribution, SamplingParams
from specproof.defects.mutations import oracle_defect, with_decision

Floats = NDArray[np.float64]

# ---------------------------------------------------------------------------------------------------------- wrong q


class ReportsUntemperedQ(DraftModel):
    """D72: proposals are drawn from the processed logits, and the plain softmax is reported."""

    def propose(self, history: Sequence[int], target_hidden: Floats | None, budget: int) -> DraftBlock:
        """As the oracle's, with another q."""
        block = super().propose(history, target_hidden, budget)
        flatter = [np.sqrt(q.dense()) for q in block.distributions]
        return DraftBlock(block.tokens, tuple(DraftDistribution.from_dense(q / q.sum()) for q in flatter))


class DrawsArgmax(DraftModel):
    """D73: proposals are argmaxes, and the softmax they were not drawn from is reported."""

    def _draw(self, q: Floats, position: int) -> int:
        return int(np.argmax(q))


class ReportsSoftmaxOfArgmax(DraftModel):
    """D75, the drafter: at temperature 0 it proposes the argmax, and reports the softmax of temperature 1."""

    def _distribution(self, logits: Floats, context: Sequence[int]) -> Floats:
        sampling = _untempered(self.sampling)
        return next_distribution(logits, context, sampling, self.processors, self.model.name)

    def _draw(self, q: Floats, position: int) -> int:
        return int(np.argmax(q)) if self.sampling.temperature == 0 else super()._draw(q, position)


def _untempered(sampling: SamplingParams) -> SamplingParams:
    """What a greedy decoder that never divides by a temperature makes its distributions with."""
    return replace(sampling, temperature=1.0) if sampling.temperature == 0 else sampling


# ------------------------------------------------------------------------------------------------------- wrong rules


def argmax_by_ratio(p: Sequence[Floats], q: Sequence[Floats], drafted: Sequence[int],
                    randomness: Randomness, position: int) -> Verdict:  # fmt: skip
    """D75, the rule: the coins of `rejection`, and an argmax wherever it draws."""
    for i, token in enumerate(drafted):
        if not randomness.bernoulli(min(p[i][token] / q[i][token], 1)):
            return Verdict(i, int(np.argmax(residual(p[i], q[i]))))
    return Verdict(len(drafted), int(np.argmax(p[-1])))


class TossesCoinsForArgmaxes(Decoder):
    """D75: greedy decoding is an argmax in place of every draw, and the coins stay those of the softmax."""

    @property
    def acceptance(self) -> AcceptanceRule:
        """At temperature 0, whatever its name, `rejection` with argmaxes."""
        rule = super().acceptance
        return replace(rule, decision=argmax_by_ratio) if self.sampling.temperature == 0 else rule

    def _distribution(self, activations: Activations, row: int, context: Sequence[int]) -> Floats:
        decoder = Decoder(**{**vars(self), "sampling": _untempered(self.sampling), "rule": "rejection"})
        return decoder._distribution(activations, row, context)


def residual_one_row_early(p: Sequence[Floats], q: Sequence[Floats], drafted: Sequence[int],
                           randomness: Randomness, position: int) -> Verdict:  # fmt: skip
    """D74: the residual is that of the position before the rejected one."""
    for i, token in enumerate(drafted):
        if not randomness.bernoulli(min(p[i][token] / q[i][token], 1)):
            row = max(i - 1, 0)
            return Verdict(i, randomness.categorical(residual(p[row], q[row])))
    return Verdict(len(drafted), randomness.categorical(p[-1]))


def unguarded_residual(p: Sequence[Floats], q: Sequence[Floats], drafted: Sequence[int],
                       randomness: Randomness, position: int) -> Verdict:  # fmt: skip
    """D80: a residual whose mass is all lost in rounding is divided by zero."""
    for i, token in enumerate(drafted):
        if not randomness.bernoulli(min(p[i][token] / q[i][token], 1)):
            excess = np.maximum(p[i] - q[i], 0)
            with np.errstate(invalid="ignore"):
                return Verdict(i, randomness.categorical(excess / excess.sum()))
    return Verdict(len(drafted), randomness.categorical(p[-1]))


def redraw_from_p(p: Sequence[Floats], q: Sequence[Floats], drafted: Sequence[int],
                  randomness: Randomness, position: int) -> Verdict:  # fmt: skip
    """D81: rejection with the right coin, but no residual."""
    for i, token in enumerate(drafted):
        if not randomness.bernoulli(min(p[i][token] / q[i][token], 1)):
            return Verdict(i, randomness.categorical(p[i]))
    return Verdict(len(drafted), randomness.categorical(p[-1]))


def sampler_match_by_ratio(p: Sequence[Floats], q: Sequence[Floats], drafted: Sequence[int],
                           randomness: Randomness, position: int) -> Verdict:  # fmt: skip
    """D82: the target's own draw is still what is emitted, but a proposal is accepted by min(1, p / q)."""
    for i, token in enumerate(drafted):
        y = randomness.categorical(p[i])
        if not randomness.bernoulli(min(p[i][token] / q[i][token], 1)):
            return Verdict(i, y)
    return Verdict(len(drafted), randomness.categorical(p[-1]))


class AcceptsAtEquality(SeededRandomness):
    """D79: a coin accepts if u <= probability, so that u = 0 accepts a token without mass."""

    def bernoulli(self, probability: float) -> bool:
        """Not strict."""
        return bool(self.uniform() <= probability)


class CountsEdgesDown(AcceptsAtEquality):
    """D78: so do draws, whose every edge belongs to the bucket below it."""

    def categorical(self, probabilities: Floats) -> int:
        """The first token whose cumulative mass is not below u."""
        cumulative = np.cumsum(np.asarray(probabilities, dtype=np.float64))
        return int(np.searchsorted(cumulative, self.uniform() * cumulative[-1], side="left"))


# ----------------------------------------------------------------------------------------------------------- wrong p


class ScoresByDefaults(Decoder):
    """D76: p is made with the default sampling parameters, q with the user's."""

    def _distribution(self, activations: Activations, row: int, context: Sequence[int]) -> Floats:
        sampled = self.sampling.temperature > 0
        decoder = replace(self, sampling=SamplingParams()) if sampled else self
        return Decoder._distribution(decoder, activations, row, context)


class IgnoresTemperature(Decoder):
    """D83: the rule is built without the user's temperature, which is 1 then."""

    def _distribution(self, activations: Activations, row: int, context: Sequence[int]) -> Floats:
        sampled = self.sampling.temperature > 0
        decoder = replace(self, sampling=replace(self.sampling, temperature=1.0)) if sampled else self
        return Decoder._distribution(decoder, activations, row, context)


class SoftmaxTwice(Decoder):
    """D84: probabilities are taken for logits."""

    def _distribution(self, activations: Activations, row: int, context: Sequence[int]) -> Floats:
        p = super()._distribution(activations, row, context)
        return softmax(p, self.sampling.temperature) if self.sampling.temperature > 0 else p


class TakesArgmaxOfNaN(Decoder):
    """D86: the argmax of a row of NaN is an index all the same."""

    def _distribution(self, activations: Activations, row: int, context: Sequence[int]) -> Floats:
        logits = activations.logits[row]
        if np.isnan(logits).any():
            return DraftDistribution.point_mass(int(np.argmax(logits)), len(logits)).dense()
        return super()._distribution(activations, row, context)


CACHES = "target_cache_offset draft_cache_offset cache_content exit_state"
BOOKKEEPING = f"{CACHES} emitted_block greedy_parity processor_history bad_input"
"""What a biased rule leaves right."""
RULE = f"{BOOKKEEPING} honest_q counters log_probabilities"
"""And, where p and q are honest: all but the laws."""

DEFECTS = (
    oracle_defect(
        "D72", "acceptance", "transformers", "huggingface/transformers#47932",
        "Proposals are drawn from processed logits, and the raw ones are reported as q.",
        expected="honest_q exact_law", silent=BOOKKEEPING, drafter_class=ReportsUntemperedQ,
    ),
    oracle_defect(
        "D73", "acceptance", "transformers", "huggingface/transformers#32867",
        "The drafter is forced to be greedy, and the verification takes its full softmax for q.",
        expected="exact_law", silent=RULE, drafter_class=DrawsArgmax,
    ),
    oracle_defect(
        "D74", "acceptance", "transformers", "huggingface/transformers#28166",
        "After a rejection the residual of the position before is drawn from.",
        expected="exact_law", silent=f"{CACHES} emitted_block processor_history honest_q counters bad_input",
        decoder_class=with_decision(residual_one_row_early),
    ),
    oracle_defect(
        "D75", "acceptance", "speculative-sampling", "jaymody/speculative-sampling#3",
        "Greedy decoding takes an argmax for every draw, and still tosses the coins of the two softmaxes.",
        expected="greedy_parity honest_q", silent="target_cache_offset draft_cache_offset cache_content "
        "emitted_block processor_history bad_input exact_law output_distribution acceptance_rate randomness",
        decoder_class=TossesCoinsForArgmaxes, drafter_class=ReportsSoftmaxOfArgmax,
    ),
    oracle_defect(
        "D76", "acceptance", "vLLM", "vllm-project/vllm#10198",
        "The scorer makes p with the default sampling parameters, while q is filtered by the user's.",
        expected="counters log_probabilities exact_law", silent=f"{BOOKKEEPING} honest_q",
        decoder_class=ScoresByDefaults,
    ),
    oracle_defect(
        "D78", "acceptance", "SGLang", "sgl-project/sglang#35771",
        "A number in [0, 1) is compared by <=, so that 0 accepts or draws a token that has no mass.",
        expected="randomness", silent=f"{RULE} exact_law output_distribution acceptance_rate",
        randomness_class=CountsEdgesDown,
    ),
    oracle_defect(
        "D79", "acceptance", "transformers", "no public issue",
        "The acceptance test is u <= ratio with u in [0, 1), so that u = 0 accepts a token of probability 0.",
        expected="randomness", silent=f"{RULE} exact_law output_distribution acceptance_rate",
        randomness_class=AcceptsAtEquality,
    ),
    oracle_defect(
        "D80", "acceptance", "speculative-sampling", "jaymody/speculative-sampling#5",
        "A residual that rounding has left without mass is divided by its sum.",
        expected="randomness", silent=f"{RULE} exact_law output_distribution acceptance_rate",
        decoder_class=with_decision(unguarded_residual),
    ),
    oracle_defect(
        "D81", "acceptance", "Spec-RL", "ShopeeLLM/Spec-RL#14",
        "After a rejection the token is drawn from p, not from the residual.",
        expected="exact_law randomness", silent=RULE, decoder_class=with_decision(redraw_from_p),
    ),
    oracle_defect(
        "D82", "acceptance", "mlx-lm", "ml-explore/mlx-lm#1085",
        "Proposals are accepted by min(1, p / q), and after a rejection the target's own draw is emitted.",
        expected="exact_law randomness", silent=RULE,
        decoder_class=with_decision(sampler_match_by_ratio),
    ),
    oracle_defect(
        "D83", "acceptance", "keras-hub", "keras-team/keras-hub#2735",
        "The speculative sampler is built without the user's temperature.",
        expected="counters log_probabilities exact_law", silent=f"{BOOKKEEPING} honest_q",
        decoder_class=IgnoresTemperature,
    ),
    oracle_defect(
        "D84", "acceptance", "vllm-ascend", "vllm-project/vllm-ascend#6685",
        "Probabilities are passed where logits are expected, and go through a second softmax.",
        expected="counters log_probabilities exact_law output_distribution", silent="draft_cache_offset honest_q "
        "bad_input",
        decoder_class=SoftmaxTwice,
    ),
    oracle_defect(
        "D86", "acceptance", "vLLM", "vllm-project/vllm#53029",
        "The argmax over a row of NaN is an index all the same, and the turn goes on with it.",
        expected="bad_input",
        silent=f"{CACHES} emitted_block greedy_parity processor_history honest_q counters log_probabilities exact_law "
        "output_distribution acceptance_rate randomness",
        decoder_class=TakesArgmaxOfNaN,
    ),
)  # fmt: skip
"""In the order of their ids."""
