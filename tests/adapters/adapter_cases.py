"""Small cases for the adapters' tests: what they share, and nothing that asserts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from reference.values import SamplingParams
from specproof import forcing
from specproof.engine import Case, ModelSpec
from specproof.enumeration import EnumeratedRandomness
from specproof.oracle import Oracle
from specproof.pairs import tiny, toy

GREEDY = SamplingParams(temperature=0.0)
WARM = SamplingParams(temperature=0.8)
SCRIPT = (True, True, False, True, False)
PROMPT = (7, 8, 9, 10, 4)


def models(regime: str, rule: str, sampling: SamplingParams) -> forcing.Models:
    """The models of a regime, on the toy pair."""
    return {
        "plain": lambda: forcing.plain(toy()),
        "all_reject": lambda: forcing.all_reject(toy(), sampling),
        "all_accept": lambda: forcing.all_accept(toy(), rule, sampling),
        "mixed": lambda: forcing.mixed(toy(), rule, sampling, SCRIPT),
    }[regime]()


def case(regime: str = "plain", rule: str = "greedy", sampling: SamplingParams = GREEDY, k: int = 3,
         max_tokens: int = 9, prompt: Sequence[int] = PROMPT, **other: Any) -> Case:  # fmt: skip
    """A case on the toy pair."""
    pair = models(regime, rule, sampling)
    settings: dict[str, Any] = {"target": pair.target, "draft": pair.draft, **other}
    return Case(
        id=f"{regime}/{rule}/k{k}",
        regime=regime,
        prompt=tuple(prompt),
        rule=rule,
        sampling=sampling,
        num_draft_tokens=k,
        max_tokens=max_tokens,
        **settings,
    )


def tiny_case(rule: str, k: int, max_tokens: int, sampling: SamplingParams) -> Case:
    """A case on the pair of vocabulary 3."""
    pair = tiny()
    return case(
        rule=rule,
        sampling=sampling,
        k=k,
        max_tokens=max_tokens,
        prompt=(1, 2),
        target=ModelSpec(pair.target),
        draft=ModelSpec(pair.draft),
    )


def take(tokens: Iterator[int], count: int) -> list[int]:
    """The next `count` tokens."""
    return [next(tokens) for _ in range(count)]


def law(engine, case_):
    """The distribution of the emitted tokens, by replaying the turn once per outcome."""
    choices = EnumeratedRandomness()
    found = defaultdict(float)
    for _ in choices.walk():
        session = engine.start_exact(case_, choices)
        while not session.finished:
            session.step()
        found[session.emitted] += choices.weight
    return found


def target_law(case_):
    """The same by the oracle: two tokens."""
    oracle = Oracle(case_.target)
    first = oracle.distribution(case_.prompt, case_.sampling)
    return {
        (x, y): first[x] * second[y]
        for x in range(3)
        for second in [oracle.distribution((*case_.prompt, x), case_.sampling)]
        for y in range(3)
    }
