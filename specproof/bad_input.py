"""The check `bad_input`: what cannot be decoded is refused, by an exception, before a token comes out of it.

A defect of its own kind: nothing is wrong with the decoder, and it goes on with what it should have refused. An engine
declares in `Capabilities.refusals` which of the bad inputs it can be given. That it raises is all that is asked, and
where a model is at fault that the message says which: types of exceptions are every engine's own.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

import numpy as np

from reference.values import SamplingParams
from specproof.engine import Capabilities, Case, Engine, Floats
from specproof.law_cases import GREEDY, random_prompt, vocabulary
from specproof.pairs import Pair, toy
from specproof.results import CheckResult, Violation
from specproof.runner import OVERRUN, error_text
from specproof.transforms import Positions

NAME = "bad_input"
TOKENS = 8
SHORT_CONTEXT = 6
"""Positions of a model whose context ends within a case."""
POISONED = 5
"""Position from which on a model's logits are NaN."""


@dataclass(frozen=True)
class NotANumber:
    """Logits are NaN from `POISONED` on."""

    def __call__(self, logits: Floats, positions: Positions) -> Floats:
        """Logits [T, V] -> [T, V]."""
        return np.where(positions[:, None] >= POISONED, np.nan, logits)


@dataclass(frozen=True)
class Probe:
    """One bad input.

    Attributes:
        statement: what is wrong with it, as a clause.
        spoil: (a good case, a folder to write checkpoints to) -> the bad case.
        tokens: the most tokens that may come out before the refusal; those that do not depend on what is bad.
        named: whose fault it is, "target" or "draft": the message must name that model or its role. "": nobody's.
    """

    statement: str
    spoil: Callable[[Case, Path], Case]
    tokens: int = 0
    named: str = ""


def observable(capabilities: Capabilities) -> bool:
    """It can be given at least one of the bad inputs."""
    return bool(_probes(capabilities))


def check(engine: Engine, pair: Pair, seed: int, quick: bool) -> CheckResult:
    """Give the engine every bad input that it declares.

    Args:
        engine: the decoder under audit.
        pair: the good pair, which is spoilt in one thing at a time.
        seed: draws the prompt.
        quick: changes nothing; a probe costs less than a case.
    """
    names = _probes(engine.capabilities)
    if not names:
        return CheckResult.not_observable("the engine declares no bad input that it can be given")
    good = _good_case(engine, pair, seed)
    violations: list[Violation] = []
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            place = Path(folder) / name
            place.mkdir()
            violations += probed(engine, name, replace(PROBES[name].spoil(good, place), id=f"{NAME}/{name}"))
    return CheckResult.judged(len(names), violations, f"{len(names)} bad inputs: {', '.join(names)}")


def _probes(capabilities: Capabilities) -> list[str]:
    return [name for name in PROBES if name in capabilities.refusals and "draft_model" in capabilities.drafters]


def _good_case(engine: Engine, pair: Pair, seed: int) -> Case:
    rules, pair = engine.capabilities.rules, pair.built_as(engine.capabilities.architecture)
    return Case(
        id=NAME,
        regime=NAME,
        target=pair.target_spec(),
        draft=pair.draft_spec(),
        prompt=random_prompt(vocabulary(pair), seed),
        rule="greedy" if "greedy" in rules else min(rules),
        sampling=GREEDY,
        num_draft_tokens=2,
        max_tokens=TOKENS,
    )


def probed(engine: Engine, name: str, case: Case) -> list[Violation]:
    """What is wrong with the way one bad input was taken."""
    probe, received = PROBES[name], 0
    try:
        for _ in engine.start(case):
            received += 1
            if received > max(case.max_tokens, 0) + OVERRUN:
                break
    except Exception as error:
        told = error_text(error)
        folder = case.draft.folder if probe.named == "draft" and case.draft else case.target.folder
        if received > probe.tokens:
            return [_violation(probe, case, f"{received} tokens came out before it was refused by {told}")]
        if probe.named and not any(word in told.lower() for word in (probe.named, folder.name.lower())):
            return [_violation(probe, case, f"it was refused by {told}, which does not name the {probe.named} model")]
        return []
    return [_violation(probe, case, f"it was not refused, and {received} tokens came out")]


def _violation(probe: Probe, case: Case, problem: str) -> Violation:
    allowed = f"within {probe.tokens} tokens" if probe.tokens else "before the first token"
    return Violation(NAME, case.id, None, f"{probe.statement}: {problem}. Raise {allowed}, and say what to mend.")


# ------------------------------------------------------------------------------------------------------ the probes


def _smaller_vocabulary(case: Case, folder: Path) -> Case:
    return _with_draft(case, toy().draft)


def _other_tokens(case: Case, folder: Path) -> Case:
    def swap(tokenizer: dict[str, dict[str, dict[str, int]]]) -> None:
        numbered = tokenizer["model"]["vocab"]
        first, second = list(numbered)[:2]
        numbered[first], numbered[second] = numbered[second], numbered[first]

    return _with_draft(case, _changed(case, folder, "tokenizer.json", swap))


def _short_draft(case: Case, folder: Path) -> Case:
    return _with_draft(case, _changed(case, folder, "config.json", _shorten))


def _short_target(case: Case, folder: Path) -> Case:
    short = _changed(case, folder, "config.json", _shorten, case.target.folder)
    return replace(case, target=replace(case.target, folder=short))


def _shorten(config: dict[str, object]) -> None:
    config["max_position_embeddings"] = SHORT_CONTEXT


def _changed(case: Case, folder: Path, file: str, change: Callable[..., None], source: Path | None = None) -> Path:
    """A copy of a checkpoint (the drafter's, unless another is given) with one of its JSON files changed."""
    assert case.draft is not None, "the good case has a draft model"
    copy = folder / (source or case.draft.folder).name
    shutil.copytree(source or case.draft.folder, copy)
    content = json.loads((copy / file).read_text(encoding="utf-8"))
    change(content)
    (copy / file).write_text(json.dumps(content), encoding="utf-8")
    return copy


def _with_draft(case: Case, folder: Path) -> Case:
    assert case.draft is not None, "the good case has a draft model"
    return replace(case, draft=replace(case.draft, folder=folder))


def _outside(case: Case, folder: Path) -> Case:
    size = vocabulary(Pair(case.target.folder, case.target.folder))
    return replace(case, prompt=(*case.prompt, size))


def _poisoned_draft(case: Case, folder: Path) -> Case:
    assert case.draft is not None, "the good case has a draft model"
    return replace(case, draft=replace(case.draft, transform=NotANumber()))


PROBES: Mapping[str, Probe] = MappingProxyType(
    {
        "empty_prompt": Probe("a prompt without tokens", lambda case, _: replace(case, prompt=())),
        "token_range": Probe("a prompt with a token outside the vocabulary", _outside),
        "num_draft_tokens": Probe("num_draft_tokens = -1", lambda case, _: replace(case, num_draft_tokens=-1)),
        # Not -1, which to some engines means no limit.
        "max_tokens": Probe("max_tokens = -2", lambda case, _: replace(case, max_tokens=-2)),
        "rule": Probe("a rule of an unknown name", lambda case, _: replace(case, rule="no such rule")),
        "greedy_rule": Probe(
            "the greedy rule above temperature 0, where it does not keep the target's distribution",
            lambda case, _: replace(case, rule="greedy", sampling=SamplingParams()),
        ),
        "vocabulary_size": Probe("a drafter with another number of tokens", _smaller_vocabulary),
        "vocabulary_content": Probe("a drafter whose tokenizer gives the same ids to other tokens", _other_tokens),
        "nan_target": Probe(
            f"NaN logits of the target from position {POISONED} on",
            lambda case, _: replace(case, target=replace(case.target, transform=NotANumber())),
            tokens=POISONED - 2,
            named="target",
        ),
        "nan_draft": Probe(
            f"NaN logits of the drafter from position {POISONED} on",
            _poisoned_draft,
            tokens=POISONED - 1,
            named="draft",
        ),
        "target_context": Probe(
            f"a target made for {SHORT_CONTEXT} positions", _short_target, tokens=SHORT_CONTEXT - 2, named="target"
        ),
        "draft_context": Probe(
            f"a drafter made for {SHORT_CONTEXT} positions", _short_draft, tokens=SHORT_CONTEXT - 1, named="draft"
        ),
    }
)
"""Every bad input, by the name under which an engine declares it."""
