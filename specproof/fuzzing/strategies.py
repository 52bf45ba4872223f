"""Everything Hypothesis draws: prompts, scripts, block sizes, budgets, stop sets, sampling, and whole cases.

A strategy stays inside what an engine declares, so that one test serves all engines. The simplest value of each, to
which Hypothesis shrinks and which it tries most often, is simple to read and still shows something: one token as
prompt, k = 1, a budget of three tokens, temperature 0, a drafter that agrees, a stop token that is a proposal.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from reference.values import SamplingParams
from specproof import forcing
from specproof.engine import Capabilities, Case, DrafterKind, Fault
from specproof.oracle import oracle_of
from specproof.pairs import Pair
from specproof.regimes import REGIMES

# Away from round numbers: a sum of equal probabilities must not hit a threshold exactly, or rounding decides.
TOP_P = (0.37, 0.63, 0.91)
MIN_P = (0.03, 0.11)

Script = tuple[bool, ...]
LATE = 12
"""A budget that leaves room for several rounds, or for a stop token."""
MANY = frozenset(range(0, 32, 4))
"""Stop tokens: a quarter of all, and half of those with even numbers, which targets in forced regimes are kept to."""


def prompts(vocab_size: int, max_size: int = 8) -> st.SearchStrategy[tuple[int, ...]]:
    """A prompt of at least one token."""
    return st.lists(st.integers(0, vocab_size - 1), min_size=1, max_size=max_size).map(tuple)


def scripts() -> st.SearchStrategy[Script]:
    """Where a drafter agrees with its target, by position, repeated for ever."""
    return st.lists(st.sampled_from((True, False)), min_size=1, max_size=7).map(tuple)


def block_sizes(smallest: int = 1) -> st.SearchStrategy[int]:
    """k: 1 to 6."""
    return st.integers(smallest, 6)


def budgets() -> st.SearchStrategy[int]:
    """max_tokens: from none to a few rounds.

    The simplest is 3, prefill's token and a round with room for a proposal: in less, nothing can be seen of a round.
    """
    return _rotated(0, 12, simplest=3)


def stop_sets(vocab_size: int) -> st.SearchStrategy[frozenset[int]]:
    """Mostly small, often empty."""
    return st.frozensets(st.integers(0, vocab_size - 1), max_size=4)


@st.composite
def samplings(draw: st.DrawFn, fields: frozenset[str], vocab_size: int, temperatures: bool = True) -> SamplingParams:
    """Sampling parameters among the fields that are declared; temperature 0 in about half of them."""
    floats: Callable[..., st.SearchStrategy[float]] = st.floats
    kinds: dict[str, st.SearchStrategy[Any]] = {
        "top_k": st.integers(0, vocab_size),
        "top_p": st.sampled_from((1.0, *TOP_P)),
        "min_p": st.sampled_from((0.0, *MIN_P)),
        "repetition_penalty": st.sampled_from((1.0, 0.8, 1.5)),
        "presence_penalty": st.sampled_from((0.0, 0.6, -0.6)),
        "frequency_penalty": st.sampled_from((0.0, 0.3, -0.3)),
        "penalty_window": st.integers(0, 6),
        "logit_bias": st.dictionaries(st.integers(0, vocab_size - 1), floats(-2, 2), max_size=2),
    }
    known = sorted(fields & set(kinds))
    chosen = draw(st.lists(st.sampled_from(known), max_size=3, unique=True)) if known else []
    warm = temperatures and "temperature" in fields and draw(st.booleans())
    temperature = draw(floats(0.3, 1.5)) if warm else 0.0
    return SamplingParams(temperature=temperature, **{name: draw(kinds[name]) for name in chosen})


def drafters(capabilities: Capabilities) -> st.SearchStrategy[DrafterKind]:
    """One of the kinds of drafter that are declared."""
    return st.sampled_from(sorted(capabilities.drafters))


def regimes(capabilities: Capabilities) -> st.SearchStrategy[str]:
    """A regime that the engine can be put under.

    The simplest are those that force every round: what they show, they show for the simplest prompt. Those with many
    kinds of rounds and ends to meet are drawn more often.
    """
    forced, manifold = ("all_reject", "all_accept"), ("stop", "stop", "empty")
    names = [*forced, *(name for name in REGIMES if name not in forced), *manifold]
    return st.sampled_from([name for name in names if REGIMES[name].runnable(capabilities)])


@st.composite
def cases(draw: st.DrawFn, capabilities: Capabilities, pair: Pair) -> Case:
    """A case of any regime that the engine can be put under, with everything in it drawn."""
    pair = pair.built_as(capabilities.architecture)
    vocab_size = oracle_of(pair.target_spec()).vocab_size
    regime = draw(regimes(capabilities))
    rule = draw(st.sampled_from(sorted(capabilities.rules)))
    sampling = draw(samplings(capabilities.sampling, vocab_size, temperatures=rule != "greedy"))
    drafter = draw(drafters(capabilities))
    k = draw(block_sizes(0 if regime == "empty" else 1))
    prompt = draw(prompts(vocab_size))  # drawn in any case, or a drafter that needs none would be simpler
    case = Case(
        id=f"drawn/{regime}",
        regime=regime,
        target=pair.target_spec(),
        draft=None,
        prompt=prompt if drafter == "draft_model" else forcing.CYCLE * 2,
        rule=rule,
        sampling=sampling,
        num_draft_tokens=k,
        max_tokens=draw(budgets()),
        stop_tokens=draw(stop_sets(vocab_size)) if regime == "plain" else frozenset(),
        seed=draw(st.integers(0, 2**16)),
        drafter=drafter,
    )
    models = _models(draw, case, pair)
    return draw(_ended(replace(case, target=models.target, draft=models.draft), capabilities))


def _models(draw: st.DrawFn, case: Case, pair: Pair) -> forcing.Models:
    """The models that force the case's regime."""
    if case.drafter == "prompt_lookup":
        return forcing.lookup_mixed(pair, draw(_mostly_agreeing()))
    if case.regime == "all_accept":
        return forcing.all_accept(pair, case.rule, case.sampling)
    if case.regime == "all_reject":
        return forcing.all_reject(pair, case.sampling)
    if case.regime == "empty":
        return forcing.sometimes_empty(pair, draw(_changing()))
    if case.regime == "plain":
        return forcing.plain(pair)
    script = draw(_mostly_agreeing() if case.regime in ("stop", "close") else scripts())
    return forcing.mixed(pair, case.rule, case.sampling, script)


def _mostly_agreeing() -> st.SearchStrategy[Script]:
    """Half of them always: a turn that ends inside an accepted block needs one."""
    return st.just((True,)) | scripts()


def _changing() -> st.SearchStrategy[Script]:
    """Rounds with and without proposals in turn."""
    return st.tuples(scripts(), scripts()).map(lambda pair: (True, *pair[0], False, *pair[1]))


@st.composite
def _ended(draw: st.DrawFn, case: Case, capabilities: Capabilities) -> Case:
    """The case with what its regime says about how it ends, or how rounds become empty."""
    if case.regime == "empty" and capabilities.min_prob:
        return draw(_undecided(case, "temperature" in capabilities.sampling))
    if case.regime == "stop":
        budget = draw(st.sampled_from((case.max_tokens, LATE)))
        return replace(case, stop_tokens=draw(_met_stop_tokens(case)), max_tokens=budget)
    if case.regime == "close":
        return replace(case, close_after=draw(_rotated(1, max(case.max_tokens, 1), simplest=2)))
    if case.regime == "abort":
        fault = Fault(draw(_rotated(0, 12, simplest=1)), draw(st.sampled_from(("after", "before"))))
        if case.draft is not None and draw(st.booleans()):
            return replace(case, draft=replace(case.draft, fault=fault))
        return replace(case, target=replace(case.target, fault=fault))
    return case


@st.composite
def _undecided(draw: st.DrawFn, case: Case, warm: bool) -> Case:
    """The case with a drafter that proposes nothing, or, above temperature 0, nothing in some of the rounds.

    At temperature 0 the most probable token has all the mass, however undecided the logits are.
    """
    if draw(st.booleans()) or not warm or case.rule == "greedy" or case.draft is None:
        return replace(case, min_prob=1.5)
    sampling = replace(case.sampling, temperature=case.sampling.temperature or 0.8)
    return replace(case, sampling=sampling, min_prob=draw(st.sampled_from((0.05, 0.1, 0.2))), max_tokens=LATE)


def _met_stop_tokens(case: Case) -> st.SearchStrategy[frozenset[int]]:
    """One or two tokens of the target's greedy answer: at temperature 0 they are met, wherever in a block that is.

    The simplest is the one after prefill's: the first of the first block. Above temperature 0, so many tokens that one
    is met soon, or one or two of the most probable.
    """
    answer = oracle_of(case.target).greedy(case.prompt, 6, case.sampling)
    place = _rotated(0, len(answer) - 1, simplest=1)
    met = st.frozensets(place.map(lambda index: answer[index]), min_size=1, max_size=2)
    return met if case.sampling.temperature == 0 else met | st.just(MANY)


def _rotated(least: int, most: int, simplest: int) -> st.SearchStrategy[int]:
    """Integers in least .. most that shrink to `simplest`, or to the least where that is not among them."""
    size, first = most - least + 1, simplest - least if simplest <= most else 0
    return st.integers(0, size - 1).map(lambda number: least + (number + first) % size)
