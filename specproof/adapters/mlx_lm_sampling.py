"""`SamplingParams` in terms of `mlx_lm.sample_utils`: the package's sampler, and its processors for penalties and bias.

`make_sampler` truncates first, at temperature 1, by top-p, min-p and then top-k; its temperature comes last.
`SamplingParams` has temperature, top-k, top-p, min-p. The two agree at temperature 1, except for top-p together with
top-k, and for top-k alone at any temperature. `sampler_of` divides by the temperature and keeps the top k ahead of
`make_sampler`, so that they agree always. What is audited is thus how the package draws and each of its filters, but
not its own order of them.
"""

from __future__ import annotations

import mlx.core as mx
from mlx_lm.sample_utils import apply_top_k, make_logits_processors, make_sampler

from reference.values import SamplingParams
from specproof.adapters.mlx_lm_rounds import LogitsProcessor, Sampler


def sampler_of(sampling: SamplingParams) -> Sampler:
    """`make_sampler`, given what makes its draws those of `sampling`; penalties and bias are not its business."""
    if sampling.temperature == 0:
        return make_sampler(temp=0.0)
    draw = make_sampler(temp=1.0, top_p=sampling.top_p, min_p=sampling.min_p)

    def sampler(logprobs: mx.array) -> mx.array:
        # The maximum is taken off before the division, so that no temperature leaves all exponentials at 0.
        tempered = (logprobs - mx.max(logprobs, axis=-1, keepdims=True)) / sampling.temperature  # [n, V]
        if 0 < sampling.top_k < tempered.shape[-1]:  # it refuses to keep all
            tempered = apply_top_k(tempered, sampling.top_k)
        return draw(tempered)  # [n, V] -> [n]

    return sampler


def penalty_processors(sampling: SamplingParams) -> list[LogitsProcessor]:
    """The engine's own processors for penalties and bias; none where the sampling has neither.

    `make_logits_processors` puts the bias first, `SamplingParams` puts it last, hence two calls. Its context size 0
    means all tokens (it slices `tokens[-0:]`), as `penalty_window` 0 does.
    """
    window = sampling.penalty_window
    penalties: list[LogitsProcessor] = make_logits_processors(
        repetition_penalty=sampling.repetition_penalty if sampling.repetition_penalty != 1 else None,
        repetition_context_size=window,
        presence_penalty=sampling.presence_penalty,
        presence_context_size=window,
        frequency_penalty=sampling.frequency_penalty,
        frequency_context_size=window,
    )
    bias: list[LogitsProcessor] = make_logits_processors(logit_bias=dict(sampling.logit_bias))
    return penalties + bias
