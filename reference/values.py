"""Plain values shared by the decoders: what goes into a draw, what a drafter proposes, what a round did.

No behaviour beyond validation, look-up and a logarithm. `mlx_impl` may import this module and `reference.errors`,
and nothing else of `reference`, so that the decoding logic stays written twice.
"""

import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from numbers import Real
from types import MappingProxyType
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from reference.errors import InvalidSetting

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Probabilities = NDArray[Any]
"""[V], float64 or object (Fractions)."""

Finish = Literal["stop", "length"]
"""Why a turn ended: a stop token was emitted, or `max_tokens` was reached."""


def as_count(value: Any) -> int:
    """A count or a token id as a plain int, NumPy's too; -1, which is neither, for anything else, 2.0 and "2" too."""
    try:
        return operator.index(value)
    except TypeError:
        return -1


def checked_integer(name: str, value: object, least: int, note: str = "") -> int:
    """A setting that counts, as a plain int; InvalidSetting unless it is an integer, and at least `least` >= 0."""
    if as_count(value) < least:
        raise InvalidSetting(f"{name} is {value!r}; give an integer >= {least}{note}")
    return as_count(value)


def _checked_number(name: str, value: object) -> float:
    """A setting that measures, as a float; InvalidSetting unless it is real, finite and allowed."""
    allows, wanted = _ALLOWED[name]
    try:
        number = float(value) if isinstance(value, Real) else math.nan
    except OverflowError:
        value = number = math.inf
    if not (math.isfinite(number) and allows(number)):
        raise InvalidSetting(f"{name} is {value!r}; give {wanted}")
    return number


_ALLOWED: Mapping[str, tuple[Callable[[float], bool], str]] = {
    "temperature": (lambda x: x >= 0, "a finite number >= 0 (0 decodes greedily)"),
    "top_p": (lambda x: 0 < x <= 1, "a number in (0, 1] (1 keeps all tokens)"),
    "min_p": (lambda x: 0 <= x <= 1, "a number in [0, 1] (0 keeps all tokens)"),
    "repetition_penalty": (lambda x: x > 0, "a finite number > 0 (1 changes nothing)"),
    "presence_penalty": (lambda x: True, "a finite number (0 changes nothing)"),
    "frequency_penalty": (lambda x: True, "a finite number (0 changes nothing)"),
    "logit_bias": (lambda x: True, "a finite number for every token"),
}
"""Setting -> which numbers it may be, and the same in words."""


@dataclass(frozen=True)
class SamplingParams:
    """Everything that turns logits into the distribution a token is really drawn from.

    Penalties are applied first, then the bias, temperature, top-k, top-p, min-p. Target and drafter alike.

    Raises:
        InvalidSetting: a value outside its range, or of another kind.
    """

    temperature: float = 1.0  # >= 0; 0 is a point mass on the highest logit, ties to the lowest id
    top_k: int = 0  # keep the k most probable tokens (ties to the lowest ids); 0 keeps all
    top_p: float = 1.0  # in (0, 1]; keep the fewest most probable tokens whose mass reaches top_p
    min_p: float = 0.0  # in [0, 1]; keep tokens with at least min_p times the highest probability
    repetition_penalty: float = 1.0  # > 0; divides positive logits of seen tokens, multiplies negative ones (CTRL 2019)
    presence_penalty: float = 0.0  # subtracted once from the logit of every seen token
    frequency_penalty: float = 0.0  # subtracted once per occurrence
    penalty_window: int = 0  # how many of the last tokens of history plus block count as seen; 0: all
    logit_bias: Mapping[int, float] = field(default_factory=dict)  # token id -> value added to its logit

    def __post_init__(self) -> None:
        if not isinstance(self.logit_bias, Mapping):
            raise InvalidSetting(f"logit_bias is {self.logit_bias!r}; give a mapping: token id -> number")
        tokens = [checked_integer("logit_bias", token, 0, " as token id") for token in self.logit_bias]
        values = [_checked_number("logit_bias", value) for value in self.logit_bias.values()]
        counts = {n: checked_integer(n, getattr(self, n), 0, " (0: all tokens)") for n in ("top_k", "penalty_window")}
        numbers = {n: _checked_number(n, getattr(self, n)) for n in _ALLOWED if n != "logit_bias"}
        vars(self).update(counts | numbers, logit_bias=MappingProxyType(dict(zip(tokens, values, strict=True))))

    @property
    def has_penalties(self) -> bool:
        """Whether the distribution depends on the tokens before it other than through the logits."""
        return self.repetition_penalty != 1 or self.presence_penalty != 0 or self.frequency_penalty != 0


@dataclass(frozen=True)
class DraftDistribution:
    """A distribution q over the vocabulary, stored by its support."""

    support: Ints  # token ids with positive mass, ascending, [S]
    probabilities: Floats  # their mass [S], float64 or object (Fractions), summing to 1
    vocab_size: int  # V, the length of the dense form

    @classmethod
    def from_dense(cls, dense: Floats) -> Self:
        """The sparse form of a dense distribution [V]."""
        support = np.flatnonzero(dense)
        return cls(support, dense[support], len(dense))

    @classmethod
    def point_mass(cls, token: int, vocab_size: int) -> Self:
        """All mass on one token: what a deterministic drafter draws from."""
        return cls(np.array([token], dtype=np.int64), np.ones(1), vocab_size)

    def prob(self, token: int) -> float:
        """The mass of one token; 0 outside the support."""
        return float(self.probabilities[self.support == token].sum())

    def dense(self) -> Floats:
        """The dense form [V]."""
        full = np.zeros(self.vocab_size, dtype=self.probabilities.dtype)
        full[self.support] = self.probabilities
        return full


@dataclass(frozen=True)
class DraftBlock:
    """What a drafter proposes in one round: k tokens and, for each, the q it was drawn from."""

    tokens: tuple[int, ...] = ()
    distributions: tuple[DraftDistribution, ...] = ()

    def __len__(self) -> int:
        return len(self.tokens)


@dataclass(frozen=True)
class Round:
    """One propose-verify-commit round, as it is reported."""

    drafted: tuple[int, ...]  # the k proposed tokens
    num_accepted: int  # a, the proposals the rule accepted, 0..k, before any cut
    emitted: tuple[int, ...]  # what the round added: `drafted[:a]` and one more, unless a stop token cut the block
    p: tuple[float, ...] = ()  # the target's probability of each drafted token, length k
    q: tuple[float, ...] = ()  # the drafter's
    sum_min: tuple[float, ...] = ()  # sum_x min(p, q) at each *tested* position, length min(a + 1, k)
    sum_prod: tuple[float, ...] = ()  # sum_x p q at each of them
    log_probabilities: tuple[float, ...] = ()  # log p of each emitted token, by the p of plain decoding there
    finish: Finish | None = None  # why the turn ended with this round; None while it goes on

    @property
    def num_tested(self) -> int:
        """Proposals that were decided upon: all before the first rejection, and that one."""
        return min(self.num_accepted + 1, len(self.drafted))

    @property
    def num_cut(self) -> int:
        """Tokens decided but not emitted, because a stop token came before them."""
        return self.num_accepted + 1 - len(self.emitted)


def log_probability(p: float) -> float:
    """The natural logarithm; minus infinity of 0."""
    return math.log(p) if p > 0 else -math.inf


@dataclass(frozen=True)
class GeneratedToken:
    """One token as `generate` hands it out."""

    token: int
    from_draft: bool  # whether it was proposed by the drafter and accepted
    round_index: int  # the round that emitted it, from 0; -1 for the token drawn by prefill
    log_probability: float | None = None  # log p, by the p of plain decoding there; None: nobody knows p
