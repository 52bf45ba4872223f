"""Decoders that are wrong on purpose, and small stand-ins for engines: what the tests of the laws try them on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from reference.acceptance import Verdict, coupled, rejection
from reference.drafters import DraftModel
from reference.randomness import Randomness, SeededRandomness
from reference.values import SamplingParams
from specproof.adapters.reference import ReferenceEngine
from specproof.defects.acceptance import DrawsArgmax, redraw_from_p
from specproof.defects.mutations import with_decision
from specproof.engine import Capabilities, Case, Choices, Floats, ModelSpec
from specproof.law_cases import Setting, law_case
from specproof.oracle import oracle_of
from specproof.pairs import tiny
from specproof.transforms import Sharpen

PROMPT = (0, 2, 1)


def tiny_case(
    rule: str, k: int, tokens: int, sampling: SamplingParams | None = None, drafter: Sharpen | None = None
) -> Case:
    """A case on the tiny pair, its drafter changed by a transform."""
    setting = Setting("test", sampling or SamplingParams())
    case = law_case("test", tiny(), rule, k, setting, PROMPT, tokens)
    assert case.draft is not None
    return replace(case, draft=replace(case.draft, transform=drafter))


# ---------------------------------------------------------------------------------------------------- wrong rules


def bonus_from_q(p: Sequence[Floats], q: Sequence[Floats], drafted: Sequence[int],
                 randomness: Randomness, position: int) -> Verdict:  # fmt: skip
    """Rejection, but the token after a full acceptance comes from the drafter's last distribution."""
    return rejection([*p[:-1], q[-1]] if drafted else p, q, drafted, randomness, position)


def accept_too_often(p: Sequence[Floats], q: Sequence[Floats], drafted: Sequence[int],
                     randomness: Randomness, position: int) -> Verdict:  # fmt: skip
    """Rejection with the square root of the ratio."""
    for i, token in enumerate(drafted):
        if not randomness.bernoulli(min(p[i][token] / q[i][token], 1) ** 0.5):
            return Verdict(i, randomness.categorical(p[i]))
    return Verdict(len(drafted), randomness.categorical(p[-1]))


def noise_by_place_in_block(p: Sequence[Floats], q: Sequence[Floats], drafted: Sequence[int],
                            randomness: Randomness, position: int) -> Verdict:  # fmt: skip
    """Coupled draws whose noise is keyed by the place in the block, not in the history."""
    return coupled(p, q, drafted, randomness, 0)


# ------------------------------------------------------------------------------------------------- wrong drafters


class ColderDraft(DraftModel):
    """Draws at half the temperature of the q it reports (defects D72, D83)."""

    def _draw(self, q: Floats, position: int) -> int:
        return self.randomness.categorical(q**2 / (q**2).sum())


class ConfusedDraft(DraftModel):
    """Runs on another history: what a cache with wrong rows amounts to. Its q is honest, so the output stays right."""

    def propose(self, history: Sequence[int], target_hidden: Floats | None, budget: int):
        confused = [*(2 - np.array(history[:-1])).tolist(), history[-1]]
        self.cache.trim(self.cache.offset)
        return super().propose(confused, target_hidden, budget)


class IndependentDraft(DraftModel):
    """Ignores the noise that `coupled` wants it to share."""

    def _draw(self, q: Floats, position: int) -> int:
        return self.randomness.categorical(q)


# -------------------------------------------------------------------------------------------------- wrong engines


@dataclass(frozen=True)
class Control(ReferenceEngine):
    """The oracle with a part exchanged, declaring only what the control is about."""

    rules: frozenset[str] = frozenset({"rejection"})
    lossy: bool = False

    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, rules=self.rules, lossy=self.lossy)


RIGHT = Control(name="right")
REDRAW = Control(name="redraw", decoder_class=with_decision(redraw_from_p))
BONUS_FROM_Q = Control(name="bonus from q", decoder_class=with_decision(bonus_from_q))
TOO_OFTEN = Control(name="accepts too often", decoder_class=with_decision(accept_too_often))
ARGMAX_DRAFT = Control(name="argmax draft, softmax q", drafter_class=DrawsArgmax)
COLDER_DRAFT = Control(name="colder draft", drafter_class=ColderDraft)
CONFUSED_DRAFT = Control(name="confused draft", drafter_class=ConfusedDraft)


# ------------------------------------------------------------------------------------------------------ stand-ins


@dataclass(frozen=True)
class PlainSampler:
    """An engine that draws plainly from the oracle's p, or from what `twist` makes of p and q. Shows no rounds."""

    twist: Callable[[Floats, Floats], Floats] = lambda p, q: p
    lossy: bool = False
    rules: frozenset[str] = frozenset({"rejection"})
    name: str = "plain"
    version: str = "1"

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            rules=self.rules, sampling=frozenset({"temperature", "top_p"}), rounds=False, lossy=self.lossy
        )

    def start(self, case: Case) -> Iterator[int]:
        randomness = SeededRandomness(case.seed)
        history = case.prompt
        for _ in range(case.max_tokens):
            p, q = next_distributions(history, case.sampling.temperature, case.sampling.top_p)
            history = (*history, randomness.categorical(self.twist(p, q)))
            yield history[-1]


@lru_cache(maxsize=4096)
def next_distributions(history: tuple[int, ...], temperature: float, top_p: float) -> tuple[Floats, Floats]:
    """p and q of the tiny pair after `history`."""
    sampling = SamplingParams(temperature=temperature, top_p=top_p)
    target, draft = (oracle_of(ModelSpec(folder)) for folder in (tiny().target, tiny().draft))
    return target.distribution(history, sampling), draft.distribution(history, sampling)


def too_much_of_q(p: Floats, q: Floats) -> Floats:
    return 0.4 * p + 0.6 * q


class SameSeedAlways(PlainSampler):
    """Ignores the seed it is given (defects D91, D92)."""

    def start(self, case: Case) -> Iterator[int]:
        return super().start(replace(case, seed=0))


class IgnoresTopP(PlainSampler):
    """Applies top-p nowhere (defect D105)."""

    def start(self, case: Case) -> Iterator[int]:
        return super().start(replace(case, sampling=replace(case.sampling, top_p=1.0)))


class FailsLate(PlainSampler):
    """Raises in some of its turns."""

    def start(self, case: Case) -> Iterator[int]:
        if case.seed % 7 == 3:
            raise RuntimeError("out of pages")
        return super().start(case)


@dataclass
class Walk:
    """A decode without models: every step draws one token, then the turn ends at `length`. An `ExactSession`."""

    choices: Choices
    length: int
    probabilities: tuple[float, ...] = (0.5, 0.3, 0.2)
    emitted: tuple[int, ...] = ()

    @property
    def finished(self) -> bool:
        return len(self.emitted) >= self.length

    def step(self) -> None:
        self.emitted = (*self.emitted, self.choices.categorical(np.array(self.probabilities)))

    def copy(self) -> Walk | None:
        return replace(self)

    def key(self) -> bytes:
        return b""


class UncopiableWalk(Walk):
    """One that has to be replayed."""

    def copy(self) -> None:
        return None


class FicklyCopiedWalk(Walk):
    """One that can be copied at first only."""

    def copy(self) -> Walk | None:
        return None if self.emitted else super().copy()


class StuckWalk(Walk):
    """One that never emits."""

    def step(self) -> None:
        pass
