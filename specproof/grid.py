"""The settings that every regime runs through: rules, samplings, block sizes, prompts, and the naming of cases.

Derived from what an engine declares: a rule or a sampling field that it does not know is never asked for.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import lru_cache
from itertools import product
from typing import Any

import numpy as np

from reference.values import SamplingParams
from specproof.engine import Capabilities, Case
from specproof.forcing import CYCLE, Models
from specproof.oracle import oracle_of
from specproof.pairs import Pair

RULE_ORDER = ("greedy", "sampler_match", "rejection", "block", "coupled")
PROMPT_LENGTHS = (1, 3, 12)
PENALTIES = {"repetition_penalty": 1.3, "presence_penalty": 0.4, "frequency_penalty": 0.2}
BLOCK_SIZES = (1, 2, 3, 4, 5, 6)
QUICK_BLOCK_SIZES = (1, 4)
VARIANT_BLOCK = 4
"""k of the cases that vary the sampling parameters."""
BASE_LABELS = ("T0", "T0.8")


@dataclass(frozen=True)
class Setting:
    """One point of the grid."""

    rule: str
    label: str
    sampling: SamplingParams
    num_draft_tokens: int
    index: int

    @property
    def name(self) -> str:
        """The part of a case id that says which setting it is."""
        return f"{self.rule}/k{self.num_draft_tokens}/{self.label}"


def samplings(declared: frozenset[str]) -> dict[str, SamplingParams]:
    """The samplings to run, by label: the two temperatures first, then one variant per declared kind of field."""
    known = {field.name for field in fields(SamplingParams)} & declared
    found = {"T0": SamplingParams(temperature=0.0)}
    if "temperature" not in known:
        return found
    found["T0.8"] = SamplingParams(temperature=0.8)
    penalties: dict[str, Any] = {name: value for name, value in PENALTIES.items() if name in known}
    variants: dict[str, dict[str, Any]] = {
        "top_k5": {"top_k": 5},
        "top_p0.9": {"top_p": 0.9},
        "min_p0.1": {"min_p": 0.1},
        "bias": {"logit_bias": {0: 1.5, 1: -1.5}},
        "penalties": penalties,
        "window": {**penalties, "penalty_window": 4},
    }
    for name, values in variants.items():
        if values and set(values) <= known and (name != "window" or penalties):
            found[f"T0.8-{name}"] = SamplingParams(temperature=0.8, **values)
    if penalties:
        found["T0-penalties"] = SamplingParams(temperature=0.0, **penalties)
    return found


@dataclass(frozen=True)
class Grid:
    """All settings of one engine and pair, and what cases are made of.

    Args:
        pair: the checkpoints.
        capabilities: what the engine declares.
        seed: draws prompts and scripts, and is part of the seed of every case.
        quick: a small representative part instead of everything.
    """

    pair: Pair
    capabilities: Capabilities
    seed: int
    quick: bool

    @property
    def vocab_size(self) -> int:
        """V of the target."""
        return oracle_of(self.pair.target_spec()).vocab_size

    @property
    def rules(self) -> tuple[str, ...]:
        """The declared rules, those known here first."""
        known = [rule for rule in RULE_ORDER if rule in self.capabilities.rules]
        return (*known, *sorted(self.capabilities.rules - set(known)))

    @property
    def block_sizes(self) -> tuple[int, ...]:
        """Every k to be run."""
        return QUICK_BLOCK_SIZES if self.quick else BLOCK_SIZES

    def base(self) -> Iterator[Setting]:
        """Every rule and k at temperature 0, and all rules but greedy at 0.8."""
        labels = [name for name in samplings(self.capabilities.sampling) if name in BASE_LABELS]
        yield from self._settings(labels)

    def thinned(self) -> Iterator[Setting]:
        """The base settings; only those of one k when quick. For regimes with many cases per setting."""
        return (s for s in self.base() if not self.quick or s.num_draft_tokens == VARIANT_BLOCK)

    def all(self) -> Iterator[Setting]:
        """The base settings, and every rule with the other sampling parameters at one k (quick: one rule)."""
        yield from self.base()
        labels = [name for name in samplings(self.capabilities.sampling) if name not in BASE_LABELS]
        for setting in self._settings(labels):
            if setting.num_draft_tokens == VARIANT_BLOCK and (not self.quick or setting.rule == self.rules[-1]):
                yield setting

    def _settings(self, labels: list[str]) -> Iterator[Setting]:
        """Every rule and block size under the samplings of these labels.

        Indices count block sizes that a quick run leaves out too, so that a case is the same in both.
        """
        available = samplings(self.capabilities.sampling)
        # The greedy rule is not lossless above temperature 0, by definition.
        pairs = [(r, label) for r in self.rules for label in labels
                 if r != "greedy" or available[label].temperature == 0]  # fmt: skip
        for index, ((rule, label), k) in enumerate(product(pairs, BLOCK_SIZES)):
            if k in self.block_sizes:
                yield Setting(rule, label, available[label], k, index)

    def prompts(self, setting: Setting) -> list[tuple[str, tuple[int, ...]]]:
        """The prompts of a setting, with their labels: two of the three in turn, or one when quick.

        A variant has one, of several tokens: what penalties should see of a prompt shows there.
        """
        first = setting.index % len(PROMPT_LENGTHS)
        if setting.label not in BASE_LABELS:
            chosen = [1 + setting.index % 2]
        else:
            chosen = [first] if self.quick else [first, (first + 1) % len(PROMPT_LENGTHS)]
        return [(f"p{number}", self.prompt(number)) for number in chosen]

    def prompt(self, number: int) -> tuple[int, ...]:
        """A random prompt; its length is one of `PROMPT_LENGTHS`."""
        return _prompt(self.seed, number, self.vocab_size)

    def script(self, number: int) -> tuple[bool, ...]:
        """A random script of agreement, with True and False in it."""
        return _script(self.seed, number)

    def case(self, regime: str, setting: Setting, labels: str, models: Models, prompt: tuple[int, ...],
             max_tokens: int, **other: Any) -> Case:  # fmt: skip
        """A case of a setting, under an id made of all that tells it from the others."""
        lookup = models.draft is None
        name = f"{regime}/{setting.name}/{labels}{'/lookup' if lookup else ''}"
        return Case(
            id=name,
            regime=regime,
            target=models.target,
            draft=models.draft,
            prompt=prompt,
            rule=setting.rule,
            sampling=setting.sampling,
            num_draft_tokens=setting.num_draft_tokens,
            max_tokens=max_tokens,
            seed=zlib.crc32(f"{self.seed}/{name}".encode()),
            drafter="prompt_lookup" if lookup else "draft_model",
            **other,
        )

    @property
    def has_draft_model(self) -> bool:
        """Whether the engine drafts with a model."""
        return "draft_model" in self.capabilities.drafters

    def has_lookup(self, setting: Setting) -> bool:
        """Whether the engine drafts by prompt lookup, and this is a setting to do so: one k will do when quick."""
        known = "prompt_lookup" in self.capabilities.drafters
        return known and (not self.quick or setting.num_draft_tokens == VARIANT_BLOCK)

    @property
    def recited_prompt(self) -> tuple[int, ...]:
        """The cycle of the reciting models, twice."""
        return CYCLE * 2


@lru_cache(maxsize=1024)
def _prompt(seed: int, number: int, vocab_size: int) -> tuple[int, ...]:
    generator = np.random.default_rng([seed, number])
    length = PROMPT_LENGTHS[number % len(PROMPT_LENGTHS)]
    return tuple(int(token) for token in generator.integers(vocab_size, size=length))


@lru_cache(maxsize=1024)
def _script(seed: int, number: int) -> tuple[bool, ...]:
    generator = np.random.default_rng([seed, number, 1])
    return (True, *(bool(bit) for bit in generator.integers(2, size=5)), False)
