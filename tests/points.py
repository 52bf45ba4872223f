"""Points: one engine, regime, rule and k, for regimes that end turns also one kind of end, each with one case.

The full audit runs all cases. Of these, tests of single points run one for every point, and Hypothesis draws others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from subjects import SEED

from specproof.engine import Case, Engine
from specproof.grid import BASE_LABELS, BLOCK_SIZES
from specproof.pairs import toy
from specproof.regimes import FIRST_ROUND, PREFILL, REGIMES

ENDINGS = ("budget", "stop", "close", "abort")
"""The regimes in which a turn ends in many ways. In the others it ends by its budget, wherever that falls."""


@dataclass(frozen=True)
class Point:
    """One engine under one regime, with one rule and k: what tests are parametrised with.

    Attributes:
        engine: the name it was asked for by.
        path: `regime/rule/k`, then the kind of end where the regime has several, then what is special about sampling
            or drafter: what known failures are named by.
        case: the case that is run for it.
    """

    engine: str
    path: str
    case: Case = field(repr=False)


def points_of(name: str, engine: Engine) -> tuple[Point, ...]:
    """Every point of an engine."""
    found: dict[str, Case] = {}
    for regime in REGIMES.values():
        cases = list(regime.cases(toy(), engine.capabilities, SEED, quick=False))
        rules = dict.fromkeys(case.rule for case in cases)
        by_rule = [[case for case in cases if case.rule == rule] for rule in rules]
        if regime.name in ENDINGS:
            found |= _by_ending(by_rule)
        else:
            found |= {path: case for of_rule in by_rule for path, case in _by_block_size(of_rule)}
    return tuple(Point(name, path, case) for path, case in found.items())


def _by_block_size(cases: Sequence[Case]) -> Iterator[tuple[str, Case]]:
    """One case of each k, at another place of the list for every k; in `plain` also one of each variant of sampling."""
    grouped: dict[str, list[Case]] = {}
    for case in cases:
        if _label(case) in BASE_LABELS:
            grouped.setdefault(_path(case), []).append(case)
        elif case.regime == "plain":
            grouped.setdefault(f"{_path(case)}/{_label(case)}", []).append(case)
    for path, several in grouped.items():
        yield path, several[several[0].num_draft_tokens * len(several) // (max(BLOCK_SIZES) + 1)]


def _by_ending(by_rule: Sequence[Sequence[Case]]) -> dict[str, Case]:
    """Every rule with every k, and every kind of end, at temperature 0 and with a draft model; one more for each rule.

    A k goes with the kind that was taken least often so far, and what no k took is added at the end.
    """
    found: dict[str, Case] = {}
    taken: Counter[str] = Counter()
    spare: dict[str, tuple[str, Case]] = {}
    for number, cases in enumerate(by_rule):
        by_k: dict[int, list[tuple[str, Case]]] = {}
        for kind, case in _one_of_each_kind(cases, number):
            by_k.setdefault(case.num_draft_tokens, []).append((kind, case))
            spare.setdefault(kind, (f"{_path(case)}/{kind}", case))
        for several in by_k.values():
            kind, case = min(several, key=lambda pair: taken[pair[0]])
            taken[kind] += 1
            found[f"{_path(case)}/{kind}"] = case
        others = [case for case in cases if kind_of(case) and not _is_base(case)]
        if others:
            case = others[(7 * number + 3) % len(others)]
            found[f"{_path(case)}/{kind_of(case)}/{_label(case)}{'' if case.draft else '-lookup'}"] = case
    return found | dict(at for kind, at in spare.items() if kind not in taken)


def _one_of_each_kind(cases: Sequence[Case], number: int) -> Iterator[tuple[str, Case]]:
    """Every kind of end at one k, and every k with some kind of end.

    Which k goes with which kind differs between rules: `number` is that of the rule.
    """
    kinds: dict[str, dict[int, Case]] = {}
    for case in cases:
        kind = kind_of(case)
        if kind and _is_base(case):
            kinds.setdefault(kind, {})[case.num_draft_tokens] = case
    missing = set(BLOCK_SIZES)
    for place, (kind, by_k) in enumerate(kinds.items(), number):
        chosen = by_k[sorted(by_k)[place % len(by_k)]]
        missing.discard(chosen.num_draft_tokens)
        yield kind, chosen
    for k in sorted(missing):
        at_k = [(kind, by_k[k]) for kind, by_k in kinds.items() if k in by_k]
        yield at_k[(k + number) % len(at_k)]


def _is_base(case: Case) -> bool:
    """Whether a case is at temperature 0, with a draft model."""
    return case.sampling.temperature == 0 and case.draft is not None


def kind_of(case: Case) -> str | None:
    """How a case of one of the `ENDINGS` ends its turn, in one word; None for a fault in a later round."""
    k, label = case.num_draft_tokens, case.id.split("/")[4]
    if case.regime == "budget":
        named = {0: "none", 1: "1", 2: "2", k: "k", k + 1: "k+1", k + 2: "k+2", 2 * k + 2: "2k+2"}
        return f"tokens-{named[case.max_tokens]}"
    if case.regime == "stop":
        return _stop_kind(label, k)
    return label if case.regime == "close" or label.startswith("catch-up") else _fault_kind(case)


def _stop_kind(label: str, k: int) -> str:
    """The part of the stop token in its block; where it is the bonus depends on whether prefill emits a token."""
    part, _, place = label.partition("-at")
    if part != "accepted":
        return part if place else "sampled"
    return {0: "first", k: "bonus-at-k", k + 1: "bonus-at-k+1"}.get(int(place), part)


def _fault_kind(case: Case) -> str | None:
    """Model, phase, and before or after its forward, for a fault in prefill or in the first round."""
    model, spec = ("draft", case.draft) if case.draft and case.draft.fault else ("target", case.target)
    fault = spec.fault
    assert fault is not None
    if fault.call == PREFILL:
        return f"{model}-prefill-{fault.when}"
    if model == "target":
        return f"target-verify-{fault.when}" if fault.call == FIRST_ROUND else None
    return f"draft-propose-{fault.when}" if fault.call <= case.num_draft_tokens else None


def _path(case: Case) -> str:
    return f"{case.regime}/{case.rule}/k{case.num_draft_tokens}"


def _label(case: Case) -> str:
    """That of its sampling."""
    return case.id.split("/")[3]
