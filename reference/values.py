"""Plain values shared by the decoders: what goes into a draw, what a drafter proposes, what a round did.

No behaviour beyond validation and look-up. `mlx_impl` may import this module and `reference.errors`,
and nothing else of `reference`, so that the decoding logic stays written twice.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from dataclasses import dataclass, field
from numbers import Real
from types import MappingProxyType
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from reference.errors import InvalidSetting, TokenOutOfRange

Finish = Literal["stop", "length"]
"""Why a turn ended: a stop token was emitted, or `max_tokens` was reached."""


@dataclass(frozen=True)
class SamplingParams:
    """Everything that turns logits into the distribution a token is really drawn from.

    Applied in this order: repetition, presence and frequency penalties, logit bias, temperature,
    top-k, top-p, min-p. One value serves target and drafter alike.

    Attributes:
        temperature: >= 0. 0 is a point mass on the highest logit, ties to the lowest id.
        top_k: keep the k most probable tokens (ties to the lowest ids); 0 keeps all.
        top_p: in (0, 1]; keep the fewest most probable tokens whose mass reaches top_p.
        min_p: in [0, 1]; keep tokens with at least min_p times the highest probability.
        repetition_penalty: > 0; positive logits of seen tokens are divided by it, negative ones
            multiplied (CTRL, Keskar et al. 2019). 1 changes nothing.
        presence_penalty: subtracted once from the logit of every seen token.
        frequency_penalty: subtracted once per occurrence.
        penalty_window: how many of the last tokens of history plus block count as seen; 0: all.
        logit_bias: token id -> value added to its logit.

    Raises:
        InvalidSetting: a value outside its range.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    penalty_window: int = 0
    logit_bias: Mapping[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty"):
            object.__setattr__(self, name, _number(name, getattr(self, name)))
        for name in ("top_k", "penalty_window"):
            object.__setattr__(self, name, _integer(name, getattr(self, name)))
        _require(isinstance(self.logit_bias, Mapping), "logit_bias", self.logit_bias, "a mapping: token id -> number")
        bias = {_integer("logit_bias", key): _number("logit_bias", value) for key, value in self.logit_bias.items()}
        object.__setattr__(self, "logit_bias", MappingProxyType(bias))
        _require(_finite(self.temperature) and self.temperature >= 0, "temperature", self.temperature,
                 "a finite number >= 0 (0 decodes greedily)")  # fmt: skip
        _require(self.top_k >= 0, "top_k", self.top_k, "an integer >= 0 (0 keeps all tokens)")
        _require(0 < self.top_p <= 1, "top_p", self.top_p, "a number in (0, 1] (1 keeps all tokens)")
        _require(0 <= self.min_p <= 1, "min_p", self.min_p, "a number in [0, 1] (0 keeps all tokens)")
        _require(_finite(self.repetition_penalty) and self.repetition_penalty > 0, "repetition_penalty",
                 self.repetition_penalty, "a finite number > 0 (1 changes nothing)")  # fmt: skip
        for name in ("presence_penalty", "frequency_penalty"):
            _require(_finite(getattr(self, name)), name, getattr(self, name), "a finite number (0 changes nothing)")
        _require(self.penalty_window >= 0, "penalty_window", self.penalty_window, "an integer >= 0 (0: all tokens)")
        for token, value in self.logit_bias.items():
            _require(token >= 0, "logit_bias", token, "keyed by token ids >= 0")
            _require(_finite(value), "logit_bias", value, "a finite number for every token")

    @property
    def has_penalties(self) -> bool:
        """Whether the distribution depends on the tokens before it other than through the logits."""
        return self.repetition_penalty != 1 or self.presence_penalty != 0 or self.frequency_penalty != 0


def _finite(value: float) -> bool:
    return math.isfinite(value)


def _integer(name: str, value: object) -> int:
    """The same value as a plain int: NumPy's integers are taken, 2.0 and "2" are not."""
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise InvalidSetting(f"{name} is {value!r}, not an integer; give an integer (for logit_bias: as key)") from None


def _number(name: str, value: object) -> float:
    """The same value, as a plain number of Python where it was another kind of real number."""
    _require(isinstance(value, Real), name, value, "a real number")
    try:
        number = float(value)  # type: ignore[arg-type]
    except OverflowError:
        raise InvalidSetting(f"{name} is beyond the range of a float; give a finite number") from None
    return value if type(value) in (int, float) else number  # type: ignore[return-value]


def _require(holds: bool, name: str, value: object, wanted: str) -> None:
    if not holds:
        raise InvalidSetting(f"{name} is {value!r}; give {wanted}")


@dataclass(frozen=True)
class DraftDistribution:
    """A distribution q over the vocabulary, stored by its support.

    Attributes:
        support: token ids with positive mass, ascending, int64 [S].
        probabilities: their mass, float64 [S] (or Fractions, dtype object), summing to 1.
        vocab_size: V, the length of the dense form.
    """

    support: NDArray[np.int64]
    probabilities: NDArray[np.float64]
    vocab_size: int

    @classmethod
    def from_dense(cls, dense: NDArray[np.float64]) -> DraftDistribution:
        """The sparse form of a dense distribution [V]."""
        support = np.flatnonzero(dense)
        return cls(support, dense[support], len(dense))

    @classmethod
    def point_mass(cls, token: int, vocab_size: int) -> DraftDistribution:
        """All mass on one token: what a deterministic drafter draws from."""
        if not 0 <= token < vocab_size:
            raise TokenOutOfRange(f"token {token} is outside the vocabulary 0..{vocab_size - 1}; check the drafter")
        return cls(np.array([token], dtype=np.int64), np.ones(1), vocab_size)

    def prob(self, token: int) -> float:
        """The mass of one token; 0 outside the support."""
        index = int(np.searchsorted(self.support, token))
        held = index < len(self.support) and self.support[index] == token
        return float(self.probabilities[index]) if held else 0.0

    def dense(self) -> NDArray[np.float64]:
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
    """One propose-verify-commit round, as it is reported.

    Attributes:
        drafted: the k proposed tokens.
        num_accepted: a, the proposals the rule accepted, 0..k, before any cut.
        emitted: the tokens the round added: `drafted[:a]` and one more, unless a stop token cut the block.
        p, q: the target's and the drafter's probability of each drafted token, length k.
        sum_min, sum_prod: sum_x min(p, q) and sum_x p q at each *tested* position, length min(a + 1, k).
        log_probabilities: log p of each emitted token, under the distribution that plain decoding draws it from.
        finish: why the turn ended with this round; None while it goes on.
    """

    drafted: tuple[int, ...]
    num_accepted: int
    emitted: tuple[int, ...]
    p: tuple[float, ...] = ()
    q: tuple[float, ...] = ()
    sum_min: tuple[float, ...] = ()
    sum_prod: tuple[float, ...] = ()
    log_probabilities: tuple[float, ...] = ()
    finish: Finish | None = None

    @property
    def num_tested(self) -> int:
        """Proposals that were decided upon: all before the first rejection, and that one."""
        return min(self.num_accepted + 1, len(self.drafted))

    @property
    def num_cut(self) -> int:
        """Tokens decided but not emitted, because a stop token came before them."""
        return self.num_accepted + 1 - len(self.emitted)


@dataclass(frozen=True)
class GeneratedToken:
    """One token as `generate` hands it out.

    Attributes:
        token: its id.
        from_draft: whether it was proposed by the drafter and accepted.
        round_index: the round that emitted it, from 0; -1 for the token drawn by prefill.
    """

    token: int
    from_draft: bool
    round_index: int
