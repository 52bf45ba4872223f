"""The models of each regime: pairs whose rounds come out as wanted, whatever the decoder.

Only logits are changed, by transforms; caches are filled by the real models. A draft spec of None stands for
a prompt-lookup drafter, which is steered through the target instead.
"""

from __future__ import annotations

from dataclasses import dataclass

from reference.values import SamplingParams
from specproof.engine import ModelSpec
from specproof.pairs import Pair
from specproof.transforms import BanArgmax, Chain, Disjoint, Flat, Recite, Scripted

Script = tuple[bool, ...]


@dataclass(frozen=True)
class Models:
    """The two models of a case."""

    target: ModelSpec
    draft: ModelSpec | None


def plain(pair: Pair) -> Models:
    """The pair as it is."""
    return Models(pair.target_spec(), pair.draft_spec())


def all_accept(pair: Pair, rule: str, sampling: SamplingParams) -> Models:
    """The drafter has the target's weights, and a cache of its own.

    That forces every rule at temperature 0, and above it those that accept with probability min(1, p/q) or by
    shared noise. `sampler_match` draws again, so both models are made to recite.
    """
    same = pair.target_spec()
    if rule == "sampler_match" and sampling.temperature > 0:
        same = pair.target_spec(Recite(CYCLE))
    return Models(same, same)


def all_reject(pair: Pair, sampling: SamplingParams) -> Models:
    """At temperature 0 the drafter's argmax is never the target's; above it their supports are disjoint."""
    if sampling.temperature == 0 and not sampling.has_penalties:
        return Models(pair.target_spec(), pair.target_spec(BanArgmax()))
    return Models(pair.target_spec(Disjoint(0)), pair.draft_spec(Disjoint(1)))


def mixed(pair: Pair, rule: str, sampling: SamplingParams, script: Script) -> Models:
    """A drafter that agrees, or cannot be accepted, by a script over absolute positions."""
    if sampling.temperature == 0 and not sampling.has_penalties:
        return Models(pair.target_spec(), pair.target_spec(Scripted(script)))
    if rule == "sampler_match":
        other = Recite(CYCLE[1:] + CYCLE[:1])
        draft = pair.target_spec(Scripted(script, Recite(CYCLE), other))
        return Models(pair.target_spec(Recite(CYCLE)), draft)
    draft = pair.target_spec(Scripted(script, Disjoint(0), Disjoint(1)))
    return Models(pair.target_spec(Disjoint(0)), draft)


def sometimes_empty(pair: Pair, script: Script) -> Models:
    """A drafter that is undecided where the script is False: a `min_prob` above 1/V stops it there."""
    return Models(pair.target_spec(), pair.draft_spec(Scripted(script, differ=Flat())))


def lookup_accept(pair: Pair) -> Models:
    """For a prompt-lookup drafter, after a prompt that goes through the cycle twice: the target goes on reciting."""
    return Models(pair.target_spec(Recite(CYCLE)), None)


def lookup_mixed(pair: Pair, script: Script) -> Models:
    """As `lookup_accept`, but where the script is False the target says something else."""
    departs = Chain((Recite(CYCLE), BanArgmax()))
    return Models(pair.target_spec(Scripted(script, Recite(CYCLE), departs)), None)


CYCLE = (0, 1, 2)
"""What reciting models recite: short, so that it fits the smallest vocabulary."""
