"""From logits to the distribution that a token is drawn from, on the device: one function for target and drafter.

Order: processors, repetition, presence and frequency penalties, logit bias, temperature, top-k, top-p, min-p. Or
processors, then an opaque sampler, whose distribution nobody knows: it draws at once, and its draw is a point mass.
Everything is float32 and lazy: nothing here waits for the device, so bad logits are flagged (`row_faults`) and
reported once the flags are on the host (`check_rows`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import mlx.core as mx
import numpy as np

from reference.errors import InvalidSetting, NonFiniteLogits
from reference.values import SamplingParams

SMALLEST, LARGEST = float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).max)
"""The smallest normal and the largest float32. Settings beyond them would become 0 or infinite on the device."""

LogitsProcessor = Callable[[mx.array, mx.array], mx.array]
"""mlx-lm's convention: (tokens [n], logits [1, V]) -> logits [1, V]. May ban tokens by -inf.

It must be a function of its arguments: it is shown proposals that may be rejected.
"""

Sampler = Callable[[mx.array], mx.array]
"""mlx-lm's convention: log-probabilities [1, V] -> token [1], as `mlx_lm.sample_utils.make_sampler` makes them.

Called once for each row, proposals that may be rejected included: what it draws must depend on nothing but its argument
and fresh random numbers. Where it takes those from, MLX's global generator for instance, is its caller's choice.
"""


def needs_context(sampling: SamplingParams | Sampler, processors: Sequence[LogitsProcessor]) -> bool:
    """Whether `distributions` looks at the tokens before a row."""
    return bool(processors) or (isinstance(sampling, SamplingParams) and sampling.has_penalties)


def distributions(
    logits: mx.array,
    params: SamplingParams | Sampler,
    context: mx.array | None = None,
    processors: Sequence[LogitsProcessor] = (),
) -> mx.array:
    """The distribution of the token after each row.

    Args:
        logits: [T, V], float32.
        params: what is done to them, or the sampler that draws from them.
        context: [L], the tokens before the one that the *last* row predicts, so that row i sees
            `context[: L - T + 1 + i]`. May be None where `needs_context` is false.
        processors: applied first, row by row.

    Returns:
        Probabilities [T, V], float32; each row sums to 1 within rounding, and is an exact point mass at temperature 0,
        or on the token that the sampler drew. Rows are NaN where NaN or infinity came in, where the processors left
        nothing to draw, or where the sampler left the vocabulary.

    Raises:
        InvalidSetting: a logit bias for a token outside the vocabulary.
    """
    if context is not None:
        logits = _process(logits, context, processors)
    if not isinstance(params, SamplingParams):
        return _drawn(logits, params)
    temperature = min(max(params.temperature, SMALLEST), LARGEST)
    if context is not None and params.has_penalties:
        logits = _penalise(logits, _counts(context, logits, params.penalty_window), params)
    if params.logit_bias:
        logits = logits + _bias(params, logits.shape[-1])
    highest = mx.max(logits, axis=-1, keepdims=True)  # [T, 1]
    if params.temperature == 0:
        p = point_masses(mx.argmax(logits, axis=-1), logits.shape[-1])
        return p + highest * 0  # x * 0 is 0, or NaN where x is not finite: faster than to choose in each place
    # The maximum comes off before the division: however small the temperature, no two infinities meet.
    p = mx.softmax((logits - highest) / temperature, axis=-1, precise=True)
    if 0 < params.top_k < p.shape[-1]:
        p = _keep_most_probable(p, mx.full((p.shape[0], 1), params.top_k, mx.int32))
    if params.top_p < 1:
        p = _keep_most_probable(p, _nucleus_size(p, params.top_p))
    if params.min_p > 0:
        p = _keep(p, p >= params.min_p * mx.max(p, axis=-1, keepdims=True))
    return p


def point_masses(tokens: mx.array, vocab_size: int) -> mx.array:
    """All mass on one token in each row: [T] -> float32 [T, V]."""
    # Of one type, or both sides would be converted.
    places = mx.arange(vocab_size, dtype=mx.uint32 if tokens.dtype == mx.uint32 else mx.int64)
    return (places[None] == tokens[:, None]).astype(mx.float32)


def row_faults(logits: mx.array, p: mx.array) -> mx.array:
    """What is wrong with each row, from a model's own logits [T, V] and the p made of them: uint8 [T].

    0: nothing; 1: the model's logits are not finite; 2: they are, but the settings or processors left no distribution.
    """
    # x * 0 is 0, or NaN where x is not finite: one sum shows it, at a third of the price of `isfinite` in each place.
    of_model = mx.sum(logits * 0, axis=-1) == 0
    of_p = p[:, 0] >= 0  # false of NaN; `distributions` makes a row NaN as a whole
    return mx.where(of_model, mx.where(of_p, 0, 2), 1).astype(mx.uint8)


def check_rows(faults: Sequence[int], model_name: str, first_position: int) -> None:
    """Report the first fault, of rows from `first_position` on (a position is the index of the input token).

    Raises:
        NonFiniteLogits: naming the model and the position.
    """
    for position, fault in enumerate(faults, first_position):
        if fault == 1:
            raise NonFiniteLogits(
                f"the {model_name}'s logits at position {position} hold NaN or infinity; check its weights and dtype"
            )
        if fault == 2:
            raise NonFiniteLogits(
                f"the sampling settings or processors left the {model_name} no distribution at position {position}; "
                "they may ban tokens by -inf, but not all, and must not give NaN: look for extreme penalties, or for a "
                "sampler that draws what is no token"
            )


def _drawn(logits: mx.array, sampler: Sampler) -> mx.array:
    """All mass on what the sampler draws from each row: [T, V] -> [T, V]."""
    highest = mx.max(logits, axis=-1, keepdims=True)  # [T, 1]
    log_p = logits - mx.logsumexp(logits, axis=-1, keepdims=True)  # as mlx-lm's own loop does it
    drawn = [mx.array(sampler(log_p[row : row + 1])).reshape(1) for row in range(log_p.shape[0])]
    p = point_masses(mx.concatenate(drawn), log_p.shape[-1])
    return mx.where(mx.isfinite(highest) & mx.any(p > 0, axis=-1, keepdims=True), p, mx.nan)


def _process(logits: mx.array, context: mx.array, processors: Sequence[LogitsProcessor]) -> mx.array:
    """Apply the processors to each row with the tokens before it. [T, V] -> [T, V]."""
    if not processors:
        return logits
    before = context.shape[0] - logits.shape[0] + 1
    rows = []
    for index in range(logits.shape[0]):
        row = logits[index : index + 1]  # [1, V]
        for processor in processors:
            row = processor(context[: before + index], row)
        rows.append(row)
    return mx.concatenate(rows, axis=0)


def _counts(context: mx.array, logits: mx.array, window: int) -> mx.array:
    """How often each token occurs in the last `window` tokens before each row: [L], [T, V] -> float32 [T, V]."""
    num_rows = logits.shape[0]
    window = min(window, context.shape[0])
    if window:
        context = context[max(context.shape[0] - (window + num_rows - 1), 0) :]  # what any row sees
    length = context.shape[0]
    index = mx.arange(length)[None]  # [1, L]
    end = mx.arange(length - num_rows + 1, length + 1)[:, None]  # [T, 1]
    seen = (index < end) & (index >= (end - window if window else 0))  # [T, L]
    return mx.zeros_like(logits).at[mx.arange(num_rows)[:, None], context[None]].add(seen.astype(mx.float32))


def _penalise(logits: mx.array, counts: mx.array, params: SamplingParams) -> mx.array:
    """Repetition (CTRL, Keskar et al. 2019), presence and frequency penalties. [T, V] -> [T, V]."""
    seen = counts > 0
    weakened = mx.where(logits > 0, logits / params.repetition_penalty, logits * params.repetition_penalty)
    logits = mx.where(seen, weakened, logits)
    return logits - params.presence_penalty * seen - params.frequency_penalty * counts


def _bias(params: SamplingParams, vocab_size: int) -> mx.array:
    """The logit bias, dense: float32 [V]."""
    dense = np.zeros(vocab_size, dtype=np.float32)
    for token, bias in params.logit_bias.items():
        if token >= vocab_size:
            raise InvalidSetting(f"logit_bias names token {token}; give ids inside the vocabulary 0..{vocab_size - 1}")
        dense[token] = min(max(bias, -LARGEST), LARGEST)
    return mx.array(dense)


def _nucleus_size(p: mx.array, top_p: float) -> mx.array:
    """How many of the most probable tokens are the fewest whose mass reaches top_p: [T, V] -> int32 [T, 1]."""
    mass = mx.cumsum(-mx.sort(-p, axis=-1), axis=-1)
    return mx.minimum(mx.sum(mass < top_p, axis=-1, keepdims=True).astype(mx.int32) + 1, p.shape[-1])


def _keep_most_probable(p: mx.array, count: mx.array) -> mx.array:
    """Only the `count` [T, 1] most probable tokens of each row [T, V]; ties go to the lowest ids.

    By value, not by a sorted order: equal tokens share a threshold, and the first of them are let in, so that
    nothing depends on whether the device sorts stably.
    """
    threshold = mx.take_along_axis(-mx.sort(-p, axis=-1), count - 1, axis=-1)  # [T, 1]
    above, level = p > threshold, p == threshold
    room = count - mx.sum(above, axis=-1, keepdims=True).astype(mx.int32)
    return _keep(p, above | (level & (mx.cumsum(level.astype(mx.int32), axis=-1) <= room)))


def _keep(p: mx.array, kept: mx.array) -> mx.array:
    """The distributions [T, V] given that one of the kept tokens was drawn."""
    weights = mx.where(kept, p, 0.0)
    return weights / mx.sum(weights, axis=-1, keepdims=True)
