"""What Hypothesis draws for the laws: cases on pairs so small, or turns so short, that many runs of one can be judged.

Every strategy is for engines that its search (`law_searches`) applies to.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from hypothesis import strategies as st

from reference.values import SamplingParams
from specproof import forcing
from specproof.bad_input import PROBES
from specproof.engine import Capabilities, Case, DrafterKind, Engine, ExactEngine, ExactSession
from specproof.enumeration import EnumeratedRandomness
from specproof.exact_law import REPLAYED_TOKENS
from specproof.exact_turns import ExtendableSession, TwoTurnCase
from specproof.fuzzing.strategies import drafters, prompts, samplings
from specproof.independence import END_POINT_PAIRS, JOINT_RULES
from specproof.law_cases import CONTRARY, GREEDY, LOOKUP_PROMPT, sampling_rules
from specproof.oracle import oracle_of
from specproof.pairs import Pair, tiny, toy
from specproof.transforms import BANNED, Constant, Disjoint

RARELY = st.sampled_from((False, False, True))
TEMPERATURES = (1.0, 0.7, 1.4)
WHOLE = st.integers(1, 8)
WEIGHTS = st.sampled_from((((3, 3, 2), (1, 1, 2)),)) | st.tuples(
    st.tuples(WHOLE, WHOLE, st.integers(0, 8)), st.tuples(WHOLE, WHOLE, WHOLE)
).filter(lambda pair: any(a * sum(pair[1]) != b * sum(pair[0]) for a, b in zip(*pair, strict=True)))
"""Weights of two distributions that differ. Of the simplest, the drafter's last token is refused half of the time, and
two are left to replace it: a number that drew it, or refused it, always gives the second of the two."""


@st.composite
def sampled_cases(draw: st.DrawFn, engine: Engine, regime: str, rules: Sequence[str], blocks: Sequence[int]) -> Case:
    """A case of a few tokens above temperature 0 on the tiny pair, by any rule, drafter and sampling."""
    capabilities = engine.capabilities
    pair = tiny().built_as(capabilities.architecture)
    vocab_size = oracle_of(pair.target_spec()).vocab_size
    rule, k = draw(st.sampled_from(rules)), draw(st.sampled_from(blocks))
    sampling = draw(_warm(capabilities, vocab_size))
    drafter = draw(drafters(capabilities))
    prompt = draw(prompts(vocab_size, max_size=3))
    # A drafter that is far from its target makes a wrong rule show best, one that is near it a wrong q.
    transform = draw(st.sampled_from((CONTRARY, None))) if capabilities.transforms else None
    case = _case(pair, regime, rule, drafter, prompt, draw(st.integers(0, 2**16)))
    return replace(
        case,
        draft=None if case.draft is None else pair.draft_spec(transform),
        sampling=sampling,
        num_draft_tokens=k,
        max_tokens=k + 2 if k < 3 else 4,  # prefill's token and a whole block with its bonus, where that is affordable
        stop_tokens=draw(st.frozensets(st.integers(0, vocab_size - 1), max_size=1)),
        min_prob=draw(st.sampled_from((0.0, 0.5))) if capabilities.min_prob and case.draft is not None else 0.0,
    )


def _warm(capabilities: Capabilities, vocab_size: int) -> st.SearchStrategy[SamplingParams]:
    """Any sampling above temperature 0, every other one with nothing else changed."""
    others = st.just(SamplingParams()) | samplings(capabilities.sampling - {"temperature"}, vocab_size)
    return st.builds(lambda found, t: replace(found, temperature=t), others, st.sampled_from(TEMPERATURES))


def _case(pair: Pair, regime: str, rule: str, drafter: DrafterKind, prompt: tuple[int, ...], seed: int) -> Case:
    """A case to be completed; its prompt is one that prompt lookup finds something in, where that drafts."""
    lookup = drafter == "prompt_lookup"
    return Case(
        id=f"drawn/{regime}",
        regime=regime,
        target=pair.target_spec(),
        draft=None if lookup else pair.draft_spec(),
        prompt=forcing.CYCLE * 2 if lookup else prompt,
        rule=rule,
        sampling=SamplingParams(),
        num_draft_tokens=1,
        max_tokens=3,
        seed=seed,
        drafter=drafter,
    )


def output_cases(engine: Engine, regime: str) -> st.SearchStrategy[Case]:
    """Cases whose output is drawn, by any rule."""
    return sampled_cases(engine, regime, sampling_rules(engine.capabilities), (1, 2, 3))


def exact_rules(capabilities: Capabilities) -> list[str]:
    """The rules that sample by choices that can be enumerated: not by noise."""
    return [rule for rule in sampling_rules(capabilities) if rule != "coupled"]


@st.composite
def exact_cases(draw: st.DrawFn, engine: Engine, regime: str) -> Case:
    """Cases whose every outcome is walked: now and then over two turns, or from caches that are warm already."""
    case = draw(sampled_cases(engine, regime, exact_rules(engine.capabilities), (2, 1)))
    session = _first_session(engine, case)
    if session is not None and session.copy() is None:
        return replace(case, max_tokens=REPLAYED_TOKENS)
    if isinstance(session, ExtendableSession) and engine.capabilities.resumable and draw(RARELY):
        first = draw(st.sampled_from((2, 0)))
        added = draw(st.lists(st.integers(0, 2), min_size=1, max_size=2).map(tuple))
        return TwoTurnCase(**{**vars(case), "max_tokens": first}, added=added, second=3 - first)
    return case


def _first_session(engine: Engine, case: Case) -> ExactSession | None:
    """A session, to see what the engine offers; None where none begins, which running the case will tell."""
    assert isinstance(engine, ExactEngine), "only such engines have these cases"
    randomness = EnumeratedRandomness()
    try:
        for _ in randomness.walk():
            return engine.start_exact(case, randomness)
    except Exception:
        return None
    return None


@st.composite
def repeated_cases(draw: st.DrawFn, engine: Engine, regime: str) -> Case:
    """Longer turns, by lookup wherever it can be: what an engine keeps between turns shows there best."""
    capabilities = engine.capabilities
    pair = tiny().built_as(capabilities.architecture)
    rule = draw(st.sampled_from(sampling_rules(capabilities)))
    prompt = draw(prompts(3, max_size=5))
    drafter = draw(st.sampled_from(sorted(capabilities.drafters, reverse=True)))
    case = _case(pair, regime, rule, drafter, prompt, draw(st.integers(0, 2**16)))
    if case.draft is None:  # of many lengths: a text that is kept between turns may only take in what is longer
        prompt = draw(st.sampled_from((LOOKUP_PROMPT, forcing.CYCLE * 2))) * draw(st.sampled_from((1, 2, 4)))
    return replace(
        case,
        prompt=prompt,
        sampling=draw(_warm(capabilities, 3)),
        num_draft_tokens=draw(st.integers(1, 4)),
        max_tokens=draw(st.integers(4, 16)),
        stop_tokens=draw(st.frozensets(st.integers(0, 2), max_size=1)),
        min_prob=draw(st.sampled_from((0.0, 0.5))) if capabilities.min_prob and case.draft is not None else 0.0,
    )


@st.composite
def end_point_cases(draw: st.DrawFn, engine: Engine, regime: str) -> Case:
    """Pairs of distributions in which a choice at an end point has something to do wrong, or any pair."""
    pair = tiny().built_as(engine.capabilities.architecture)
    rule = draw(st.sampled_from(exact_rules(engine.capabilities)))
    target, draft = draw(st.sampled_from(list(END_POINT_PAIRS.values())) | st.just((Disjoint(1), CONTRARY)))
    case = _case(pair, regime, rule, "draft_model", draw(prompts(3, max_size=3)), 0)
    return replace(
        case,
        target=pair.target_spec(target),
        draft=pair.draft_spec(draft),
        sampling=SamplingParams(temperature=draw(st.sampled_from(TEMPERATURES))),
        num_draft_tokens=draw(st.integers(1, 3)),
        max_tokens=draw(st.integers(3, 6)),
    )


@st.composite
def joint_cases(draw: st.DrawFn, engine: Engine, regime: str) -> Case:
    """Two constant distributions, of whole weights, that differ; the target's may lack a token."""
    pair = tiny().built_as(engine.capabilities.architecture)
    rules = [rule for rule in JOINT_RULES if rule in engine.capabilities.rules]
    case = _case(pair, regime, draw(st.sampled_from(rules)), "draft_model", draw(prompts(3, max_size=3)), 0)
    p, q = draw(WEIGHTS)
    return replace(
        case,
        target=pair.target_spec(_constant(p)),
        draft=pair.draft_spec(_constant(q)),
        sampling=SamplingParams(temperature=draw(st.sampled_from(TEMPERATURES))),
        seed=draw(st.integers(0, 2**16)),
        max_tokens=100,
    )


def _constant(weights: Sequence[int]) -> Constant:
    return Constant(tuple(math.log(weight) if weight else BANNED for weight in weights))


@st.composite
def rate_cases(draw: st.DrawFn, engine: Engine, regime: str) -> Case:
    """Turns that are long: what goes wrong with a drafter's cache mostly gets worse from round to round.

    The drafter has the target's weights in every other case: then every refusal tells of a wrong row or position.
    """
    capabilities = engine.capabilities
    pair = toy().built_as(capabilities.architecture)
    rule = draw(st.sampled_from(_rate_rules(capabilities)))
    case = _case(pair, regime, rule, "draft_model", draw(prompts(32, max_size=3)), draw(st.integers(0, 2**16)))
    kinds = [pair.target_spec(), pair.draft_spec()]
    kinds += [pair.draft_spec(CONTRARY)] if capabilities.transforms else []
    return replace(
        case,
        draft=draw(st.sampled_from(kinds)),
        sampling=GREEDY if rule == "greedy" else draw(_warm(capabilities, 32)),
        num_draft_tokens=draw(st.integers(1, 4)),
        max_tokens=draw(st.sampled_from((48, 24))),
    )


def _rate_rules(capabilities: Capabilities) -> list[str]:
    return [*sampling_rules(capabilities), *(["greedy"] if "greedy" in capabilities.rules else [])]


@st.composite
def bad_input_cases(draw: st.DrawFn, engine: Engine, regime: str) -> Case:
    """A good case that is named after the probe that will spoil it.

    The prompt has 3 or 4 tokens, which leaves what a probe calls bad behind it, and as many tokens as it allows.
    """
    capabilities = engine.capabilities
    pair = tiny().built_as(capabilities.architecture)
    name = draw(st.sampled_from([name for name in PROBES if name in capabilities.refusals]))
    rules = _rate_rules(capabilities)
    rule = draw(st.sampled_from(rules[-1:]) | st.sampled_from(rules))  # every other time greedy, where it is known
    prompt = draw(st.sampled_from(((0, 2, 1), (1, 1, 0, 2))))
    case = _case(pair, regime, rule, "draft_model", prompt, 0)
    cold = rule == "greedy" or "temperature" not in capabilities.sampling or draw(st.booleans())
    return replace(
        case,
        id=f"{regime}/{name}",
        sampling=GREEDY if cold else SamplingParams(),
        num_draft_tokens=draw(st.integers(1, 3)),
        max_tokens=8,
    )
