"""The laws: checks that look at many runs of an engine at once. What a single run shows is for `invariants`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from specproof import acceptance_rate, bad_input, exact_law, independence, output_distribution
from specproof.engine import Capabilities, Engine
from specproof.pairs import Pair
from specproof.results import CheckResult


@dataclass(frozen=True)
class Law:
    """One law.

    Attributes:
        name: its key in `LAWS`.
        statement: what holds for a right engine.
        blind_spot: what it cannot see.
        observable: whether an engine with these capabilities shows enough for it.
        enumerates: whether it walks all sequences, so that its pair must have a vocabulary of a few tokens.
        check: (engine, pair, seed, quick) -> result. `not_observable` where `observable` is False; what the engine
            raises is a violation.
    """

    name: str
    statement: str
    blind_spot: str
    observable: Callable[[Capabilities], bool]
    enumerates: bool
    check: Callable[[Engine, Pair, int, bool], CheckResult]


LAWS: Mapping[str, Law] = {
    law.name: law
    for law in (
        Law(
            exact_law.NAME,
            "the distribution over output sequences, found by enumerating every random choice, is the target's",
            "the engine's own generator; blocks longer than 3; a drafter with a wrong cache and an honest q",
            exact_law.observable,
            True,
            exact_law.check,
        ),
        Law(
            output_distribution.NAME,
            "sequences drawn with the engine's own random numbers follow the target's exact law",
            "total variations below what its note gives; differences between rare, pooled sequences; long sequences",
            output_distribution.observable,
            True,
            output_distribution.check,
        ),
        Law(
            acceptance_rate.NAME,
            "proposals that are tested are accepted as often as the rule's closed form of p and q says",
            "deviations below what its note gives; a drafter without a model",
            acceptance_rate.observable,
            False,
            acceptance_rate.check,
        ),
        Law(
            independence.NAME,
            "the output for a seed depends on nothing but the case: equal seeds give equal output, whatever else the "
            "engine decodes; uniforms of 0 and just under 1 give tokens that have mass; proposal, coin and the token "
            "after it are independent draws",
            "seeds of other processes and ranks; dependence weaker than its note gives, and between draws further "
            "apart than a round",
            independence.observable,
            True,
            independence.check,
        ),
        Law(
            bad_input.NAME,
            "what cannot be decoded is refused before a token comes out of it: bad prompts and settings, a drafter of "
            "another vocabulary, NaN logits, a context that is too short",
            "inputs that the engine does not declare; whether the message helps, but for the name of the model at "
            "fault",
            bad_input.observable,
            True,
            bad_input.check,
        ),
    )
}
"""Every law, by name."""
