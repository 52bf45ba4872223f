"""From logits to the distribution a token is really drawn from: one path for target and drafter.

It knows sampling parameters and logits processors; who draws, and with which randomness, is decided elsewhere.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from reference.errors import DecodingFault, InvalidSetting, NonFiniteLogits
from reference.values import Floats, SamplingParams

LogitsProcessor = Callable[[Sequence[int], Floats], Floats]
"""(all tokens before the one to be drawn, its logits [V]) -> logits [V]. -inf bans a token.

It must be a function of its arguments: in a round it is called once per position, with contexts that may
hold proposals which are then rejected.
"""


def next_distribution(logits: Floats, context: Sequence[int], params: SamplingParams,
                      processors: Sequence[LogitsProcessor], model_name: str) -> Floats:  # fmt: skip
    """The distribution [V] of the token after `context`, from the model's raw logits [V] there.

    Raises:
        NonFiniteLogits: NaN or infinite logits from the model; or, from the processors, NaN, +inf or all -inf.
        DecodingFault: a processor returned something else than logits [V].
    """
    position, shape = len(context) - 1, logits.shape
    if len(bad := np.flatnonzero(~np.isfinite(logits))):
        logit = f"the logit {logits[bad[0]]} for token {bad[0]} at position {position}"
        raise NonFiniteLogits(f"{model_name} gave {logit}; nothing can be drawn: check the model's weights")
    for index, processor in enumerate(processors):
        logits = processor(context, logits)
        if not isinstance(logits, np.ndarray) or logits.shape != shape:
            got = f"a {type(logits).__name__} of shape {getattr(logits, 'shape', None)}, expected an array of {shape}"
            raise DecodingFault(f"logits processor {index} of {model_name} returned {got}: return the changed logits")
    if not np.isfinite(logits.max()):  # NaN, where one of them is
        left = f"no distribution for {model_name} at position {position} (highest logit {logits.max()})"
        raise NonFiniteLogits(f"the logits processors left {left}; ban tokens with -inf, but not all, and give no NaN")
    return distribution(logits, params, context)


def distribution(logits: Floats, params: SamplingParams, context: Sequence[int]) -> Floats:
    """The exact distribution [V] that `params` make of logits [V] after the tokens of `context`.

    Each filter renormalises, so that top-p is a share of what top-k kept. Logits of -inf stay without mass.

    Raises:
        NonFiniteLogits: penalties or bias made a finite logit infinite or NaN.
        InvalidSetting: a bias for a token outside the vocabulary.
    """
    given = np.asarray(logits, dtype=np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        logits = with_bias(with_penalties(given, params, context), params.logit_bias)
    if len(lost := np.flatnonzero(np.isfinite(given) & ~np.isfinite(logits))):
        change = f"the logit of token {lost[0]} from {given[lost[0]]} to {logits[lost[0]]}"
        raise NonFiniteLogits(f"the sampling settings took {change}; give less extreme ones than {params}")
    if params.temperature == 0:
        return np.where(np.arange(len(logits)) == np.argmax(logits), 1.0, 0.0)  # argmax: ties to the lowest id
    probabilities = keep_top_k(softmax(logits, params.temperature), params.top_k)
    probabilities = keep_top_p(probabilities, params.top_p)
    return keep_min_p(probabilities, params.min_p)


def with_penalties(logits: Floats, params: SamplingParams, context: Sequence[int]) -> Floats:
    """Repetition (CTRL), presence and frequency penalties on the tokens in the window. [V] -> [V]."""
    if not params.has_penalties:
        return logits
    window = np.asarray(context[-params.penalty_window :], dtype=np.int64)  # [-0:] is all of it
    counts = np.bincount(window, minlength=len(logits))  # [V]
    seen, penalty = counts > 0, params.repetition_penalty
    repeated = np.where(seen, np.where(logits > 0, logits / penalty, logits * penalty), logits)
    return repeated - (params.presence_penalty * seen + params.frequency_penalty * counts)


def with_bias(logits: Floats, bias: Mapping[int, float]) -> Floats:
    """Each bias added to its token's logit; InvalidSetting for a token outside the vocabulary. [V] -> [V]."""
    biased = logits.copy()
    for token, value in bias.items():
        if token >= len(logits):
            raise InvalidSetting(f"logit_bias names token {token}; give ids inside the vocabulary 0..{len(logits) - 1}")
        biased[token] += value
    return biased


def softmax(logits: Floats, temperature: float) -> Floats:
    """softmax(logits / temperature). [V] -> [V].

    The maximum is taken off before the division, so that no temperature > 0, however small, gives inf - inf.
    """
    with np.errstate(over="ignore"):
        return normalised(np.exp((logits - logits.max()) / temperature))


def keep_top_k(probabilities: Floats, k: int) -> Floats:
    """Only the k most probable tokens, ties to the lowest ids; 0 keeps all. [V] -> [V]."""
    return probabilities if k == 0 else _keep_first(probabilities, k)


def keep_top_p(probabilities: Floats, top_p: float) -> Floats:
    """Only the fewest most probable tokens whose mass reaches top_p; 1 keeps all. [V] -> [V]."""
    if top_p == 1:
        return probabilities
    short = np.cumsum(np.sort(probabilities)[::-1]) < top_p  # [V], True ... True False ... False
    return _keep_first(probabilities, short.sum() + 1)


def keep_min_p(probabilities: Floats, min_p: float) -> Floats:
    """Only tokens with at least min_p times the highest probability; 0 keeps all. [V] -> [V]."""
    return normalised(np.where(probabilities >= min_p * probabilities.max(), probabilities, 0.0))


def normalised(weights: Floats) -> Floats:
    """[V] -> [V], summing to 1."""
    total: np.float64 = weights.sum()
    return weights / total


def _keep_first(probabilities: Floats, count: int) -> Floats:
    """Only the `count` most probable tokens, ties to the lowest ids. [V] -> [V]."""
    kept, first = np.zeros_like(probabilities), np.argsort(-probabilities, kind="stable")[:count]
    kept[first] = probabilities[first]
    return normalised(kept)
