"""The cases that the laws run on the tiny pair: samplings, prompts, and what an engine declares of them.

Derived from `Capabilities` alone: a rule or a sampling field that an engine does not know is never asked for.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields, replace
from itertools import product

import numpy as np

from reference.acceptance import RULES
from reference.values import SamplingParams
from specproof.engine import Capabilities, Case, DrafterKind, LogitTransform
from specproof.oracle import oracle_of
from specproof.pairs import Pair
from specproof.results import Violation
from specproof.runner import error_text
from specproof.transforms import Sharpen

Tokens = tuple[int, ...]

PROMPT_LENGTH = 3
LOOKUP_PROMPT: Tokens = (0, 2, 1, 0, 2)
"""A prompt in which prompt lookup finds something to propose, whatever comes next."""

GREEDY = SamplingParams(temperature=0.0)

CONTRARY = Sharpen(-0.5)
"""Makes a drafter like best what it liked least: p and q lie far apart, so that wrong rules show in few samples."""


@dataclass(frozen=True)
class Setting:
    """What a law is checked under, beside rule and k.

    Attributes:
        label: its part of a case id.
        sampling, stop_tokens, drafter, min_prob: as in `Case`.
        draft_transform: what is done to the draft model's logits.
    """

    label: str
    sampling: SamplingParams
    stop_tokens: frozenset[int] = field(default_factory=frozenset)
    drafter: DrafterKind = "draft_model"
    min_prob: float = 0.0
    draft_transform: LogitTransform | None = None

    def runnable(self, capabilities: Capabilities) -> bool:
        """Whether the engine honours everything the setting asks for."""
        return (
            set(deviating_fields(self.sampling)) <= capabilities.sampling
            and self.drafter in capabilities.drafters
            and (capabilities.min_prob or self.min_prob == 0)
        )


def with_drafter(setting: Setting, capabilities: Capabilities) -> Setting:
    """The setting with a draft model, or with prompt lookup for an engine that drafts by nothing else."""
    return setting if "draft_model" in capabilities.drafters else replace(setting, drafter="prompt_lookup")


def contrary(setting: Setting, capabilities: Capabilities) -> Setting:
    """The setting with a contrary draft model, where the engine has one and lets it be wrapped."""
    if not capabilities.transforms or "draft_model" not in capabilities.drafters:
        return setting
    return replace(setting, label=f"{setting.label}-contrary", draft_transform=CONTRARY)


def deviating_fields(sampling: SamplingParams) -> Iterable[str]:
    """The fields that ask for more than every engine can do: it decodes greedily, or samples with nothing changed."""
    plain = GREEDY if sampling.temperature == 0 else SamplingParams()
    return [f.name for f in fields(sampling) if getattr(sampling, f.name) != getattr(plain, f.name)]


def sampling_rules(capabilities: Capabilities) -> list[str]:
    """The declared rules of an engine that samples, in the order of `RULES`; `greedy` keeps point masses only."""
    samples = "temperature" in capabilities.sampling
    return [name for name in RULES if samples and name in capabilities.rules and name != "greedy"]


def case_id(law: str, rule: str, k: int, setting: Setting) -> str:
    """Unique within a law."""
    return f"{law}/{rule}/k{k}/{setting.label}"


def law_case(law: str, pair: Pair, rule: str, k: int, setting: Setting, prompt: Tokens, max_tokens: int) -> Case:
    """A case of a law."""
    return Case(
        id=case_id(law, rule, k, setting),
        regime=law,
        target=pair.target_spec(),
        draft=pair.draft_spec(setting.draft_transform) if setting.drafter == "draft_model" else None,
        prompt=LOOKUP_PROMPT if setting.drafter == "prompt_lookup" else prompt,
        rule=rule,
        sampling=setting.sampling,
        num_draft_tokens=k,
        max_tokens=max_tokens,
        stop_tokens=setting.stop_tokens,
        drafter=setting.drafter,
        min_prob=setting.min_prob,
    )


def raised(law: str, case: Case, error: Exception) -> Violation:
    """Whatever an engine raises in a case of a law is a finding, not a failure of the harness."""
    return Violation(law, case.id, None, f"the engine raised {error_text(error)}")


def vocabulary(pair: Pair) -> int:
    """V of the pair's target."""
    return oracle_of(pair.target_spec()).vocab_size


def random_prompt(vocab_size: int, seed: int) -> Tokens:
    """A prompt of `PROMPT_LENGTH` tokens, from a stream of its own: engines are given the same seed for their draws."""
    generator = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(1,)))
    return tuple(int(token) for token in generator.integers(vocab_size, size=PROMPT_LENGTH))


def clear_prompt(pair: Pair, length: int) -> Tokens:
    """The prompt whose greedy continuation of `length` tokens is furthest from any tie, for target and drafter.

    A float32 engine may resolve a near-tie the other way, which is rounding and no defect.
    """
    target, draft = oracle_of(pair.target_spec()), oracle_of(pair.draft_spec())

    def narrowest(prompt: Tokens) -> float:
        history = prompt + target.greedy(prompt, length)
        prefixes = [history[:end] for end in range(len(prompt), len(history))]
        return min(oracle.top_two_gap(prefix) for oracle in (target, draft) for prefix in prefixes)

    return max(product(range(target.vocab_size), repeat=2), key=narrowest)
