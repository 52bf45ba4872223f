"""What a model says without any cache: the truth that runs are compared with.

An `Oracle` reads the folder of a `ModelSpec` with `reference.transformer`, forwards whole sequences by the
cache-free path, and applies the spec's transform. It knows nothing of engines, drafts or rounds. Passes are
remembered, since many checks ask about the same sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from reference.parts.grammar import GrammarTransformer
from reference.sampling import distribution
from reference.transformer import WholePass
from reference.values import SamplingParams
from specproof.architectures import WholeModel, whole_model
from specproof.engine import CacheRows, Floats, ModelSpec

GREEDY = SamplingParams(temperature=0.0)


REMEMBERED = 50_000
"""Prefixes for which a model's passes are kept; beyond it all are forgotten and the memory begins anew."""


TRIES = 32
"""Errors that `Oracle.alternatives` tries. A tie of two tokens escapes it with a chance of 2 ** -32."""


class _Passes:
    """One model's passes over whole sequences, before any transform, each kept for all prefixes of its sequence."""

    def __init__(self, model: WholeModel) -> None:
        self.model = model
        self._by_prefix: dict[tuple[int, ...], WholePass] = {}

    def of(self, tokens: tuple[int, ...]) -> WholePass:
        """A pass over `tokens` and perhaps more: its first T rows are theirs. Callers must not write into it."""
        found = self._by_prefix.get(tokens)
        if found is None:
            if len(self._by_prefix) > REMEMBERED:
                self._by_prefix.clear()
            found = self.model.forward_without_cache(tokens)
            for length in range(1, len(tokens) + 1):
                self._by_prefix.setdefault(tokens[:length], found)
        return found


@lru_cache(maxsize=32)
def _passes(folder: Path, name: str) -> _Passes:
    """The passes of a folder's model; the folder must not change while the process runs."""
    return _Passes(whole_model(folder, name))


class Oracle:
    """The cache-free truth about one model.

    Args:
        spec: its folder and transform; a fault is ignored.

    Raises:
        CheckpointError: the folder is not a readable Llama checkpoint.
    """

    def __init__(self, spec: ModelSpec) -> None:
        self.spec = replace(spec, fault=None)
        self._passes = _passes(spec.folder, spec.architecture)
        self.vocab_size = self._passes.model.vocab_size

    def logits(self, tokens: Sequence[int]) -> Floats:
        """Transformed logits [T, V]; row i predicts token i + 1, and its position is i. A grammar masks them last."""
        plain = self._passes.of(tuple(tokens)).logits[: len(tokens)]
        transform, model = self.spec.transform, self._passes.model
        changed = plain if transform is None else transform(plain, np.arange(len(plain)))
        return model.constrained(tokens, changed) if isinstance(model, GrammarTransformer) else changed

    def rows(self, tokens: Sequence[int]) -> tuple[CacheRows, ...]:
        """The rows that every layer must hold after exactly these tokens: [n_kv_heads, T, head_dim]."""
        count = len(tokens)
        return tuple(
            CacheRows(keys[:, :count], values[:, :count]) for keys, values in self._passes.of(tuple(tokens)).rows
        )

    def distributions(self, tokens: Sequence[int], first: int, sampling: SamplingParams) -> list[Floats]:
        """What tokens `first` .. T are drawn from, each [V]: element i belongs to token `first + i`.

        Penalties see the whole sequence before a token, as in plain decoding. `first` is at least 1.
        """
        logits = self.logits(tokens)
        return [distribution(logits[i - 1], sampling, tokens[:i]) for i in range(first, len(tokens) + 1)]

    def distribution(
        self, prefix: Sequence[int], sampling: SamplingParams, context: Sequence[int] | None = None
    ) -> Floats:
        """What the token after `prefix` is drawn from [V]. Penalties see `context`: the prefix unless given."""
        return distribution(self.logits(prefix)[-1], sampling, prefix if context is None else context)

    def scores(self, tokens: Sequence[int], first: int, sampling: SamplingParams) -> list[Floats]:
        """As `distributions`, but log-probabilities before temperature and truncation.

        Differences between their entries are differences of logits after penalties and bias: the gaps that
        decide whether an argmax is safe from rounding.
        """
        untruncated = replace(sampling, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
        with np.errstate(divide="ignore"):  # a banned token has probability 0 and score -inf
            return [np.log(p) for p in self.distributions(tokens, first, untruncated)]

    def alternatives(self, prefix: Sequence[int], sampling: SamplingParams, noise: float) -> list[Floats]:
        """What rounding may make of `distribution(prefix, sampling)`: distributions [V] with other tokens in them.

        Errors of the logits up to `noise` turn the argmax of a near-tie, or move a token over the edge of top-k, top-p
        or min-p. They are tried, `TRIES` random ones, the same in every call; nearly always there is no alternative.
        """
        if sampling.temperature > 0 and (sampling.top_k, sampling.top_p, sampling.min_p) == (0, 1.0, 0.0):
            return []  # there is no edge: every token that is not banned has mass
        (scores,) = self.scores(prefix, len(prefix), sampling)
        if sampling.temperature == 0 and _gap(scores) > 2 * noise:
            return []
        truncation = SamplingParams(sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p)
        exact = distribution(scores, truncation, prefix) > 0
        errors = np.random.default_rng(0).uniform(-noise, noise, size=(TRIES, len(scores)))
        tried = (distribution(scores + error, truncation, prefix) for error in errors)
        return [found for found in tried if ((found > 0) != exact).any()]

    def greedy(self, prompt: Sequence[int], count: int, sampling: SamplingParams = GREEDY) -> tuple[int, ...]:
        """The next `count` tokens of plain greedy decoding; penalties and bias of `sampling` apply."""
        history = list(prompt)
        for _ in range(count):
            history.append(int(self.distribution(history, replace(sampling, temperature=0.0)).argmax()))
        return tuple(history[len(prompt) :])

    def top_two_gap(self, prefix: Sequence[int], sampling: SamplingParams = GREEDY) -> float:
        """Distance of the two highest logits for the token after `prefix`; infinite for one candidate."""
        (scores,) = self.scores(prefix, len(prefix), sampling)
        return _gap(scores)


def _gap(scores: Floats) -> float:
    """Distance of the two highest of [V]."""
    second, first = np.partition(scores, -2)[-2:]
    return float(first - second)


@lru_cache(maxsize=512)
def oracle_of(spec: ModelSpec) -> Oracle:
    """The oracle of a spec, shared by all checks that ask about the same model; transforms must be hashable."""
    return Oracle(spec)
