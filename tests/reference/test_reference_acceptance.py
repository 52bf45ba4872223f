"""The acceptance rules: their laws on exact fractions, the defects such a law must show, and their closed forms."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_strategies import Prefix, Tree, point_masses, rational, rationals, trees

from reference import RULES, AcceptanceRule, SamplingParams, SeededRandomness, distribution
from reference.acceptance import Verdict, block_weights, expected_accepted, expected_accepted_block, residual
from reference.errors import DishonestDraft
from specproof.enumeration import EnumeratedRandomness

DISCRETE = ("greedy", "sampler_match", "rejection", "block")
JUST_UNDER_ONE = np.nextafter(1.0, 0.0)

Law = dict[Prefix, Fraction]
Draw = Callable[[np.ndarray, EnumeratedRandomness], int]


def honest(q: np.ndarray, randomness: EnumeratedRandomness) -> int:
    return randomness.categorical(q)


def one_round(rule: AcceptanceRule, tree: Tree, draw: Draw = honest) -> dict[tuple[Prefix, int], Fraction]:
    """(emitted tokens, number accepted) -> probability, by enumerating drafts and decisions of one round."""
    outcomes: dict[tuple[Prefix, int], Fraction] = defaultdict(Fraction)
    randomness = EnumeratedRandomness()
    for _ in randomness.walk():
        drafted: Prefix = ()
        for _ in range(tree.k):
            drafted = (*drafted, draw(tree.q[drafted], randomness))
        p = [tree.p[drafted[:i]] for i in range(tree.k + 1)]
        q = [tree.q[drafted[:i]] for i in range(tree.k)]
        verdict = rule.decide(p, q, drafted, randomness, 0)
        outcomes[(*drafted[: verdict.num_accepted], verdict.token), verdict.num_accepted] += randomness.weight
    return outcomes


def law(rule: AcceptanceRule, tree: Tree, draw: Draw = honest) -> Law:
    """The law of the first k + 1 tokens: one round, and what is missing after a rejection drawn from the target."""
    total: Law = defaultdict(Fraction)
    for (emitted, _), weight in one_round(rule, tree, draw).items():
        for rest in product(range(tree.vocab_size), repeat=tree.k + 1 - len(emitted)):
            total[emitted + rest] += weight * mass(tree, emitted + rest, len(emitted))
    return {tokens: weight for tokens, weight in total.items() if weight}


def target_law(tree: Tree) -> Law:
    sequences = product(range(tree.vocab_size), repeat=tree.k + 1)
    return {tokens: mass(tree, tokens) for tokens in sequences if mass(tree, tokens)}


def mass(tree: Tree, tokens: Prefix, start: int = 0) -> Fraction:
    """The target's probability of tokens[start:], given those before."""
    probability = Fraction(1)
    for i in range(start, len(tokens)):
        probability *= tree.p[tokens[:i]][tokens[i]]
    return probability


def total_variation(a: Law, b: Law) -> Fraction:
    return sum((abs(a.get(x, Fraction(0)) - b.get(x, Fraction(0))) for x in a.keys() | b.keys()), Fraction(0)) / 2


def expectation_of_accepted(rule: AcceptanceRule, tree: Tree) -> Fraction:
    return sum((weight * a for (_, a), weight in one_round(rule, tree).items()), Fraction(0))


# ------------------------------------------------------------------------------------------------ the law is p


@pytest.mark.parametrize("k", [0, 1, 2, 3])
@pytest.mark.parametrize("name", DISCRETE)
def test_the_law_of_a_rule_equals_the_targets_exactly(name: str, k: int) -> None:
    @settings(max_examples=12, deadline=None)
    @given(tree=trees(k, point_p=name == "greedy"))
    def equal(tree: Tree) -> None:
        assert law(RULES[name], tree) == target_law(tree)

    equal()


@pytest.mark.parametrize("k", [1, 2])
@pytest.mark.parametrize("name", DISCRETE[1:])
def test_the_law_is_the_targets_for_deterministic_drafts_too(name: str, k: int) -> None:
    @settings(max_examples=8, deadline=None)
    @given(tree=trees(k, point_q=True))
    def equal(tree: Tree) -> None:
        assert law(RULES[name], tree) == target_law(tree)

    equal()


def test_greedy_above_temperature_zero_is_seen_as_lossy() -> None:
    assert total_variation(law(RULES["greedy"], TWO), target_law(TWO)) > 0
    assert {name for name, rule in RULES.items() if not rule.lossless} == {"greedy"}
    assert {name for name, rule in RULES.items() if rule.acceptance_optimal} == {"greedy", "rejection", "block"}


# -------------------------------------------------------------------------------------- defects that are seen

# A pair that disagrees everywhere, with two drafts, for the controls below.
P = rational([5, 3, 2])
Q = rational([1, 3, 4])
TWO = Tree(
    2,
    {prefix: np.roll(P, sum(prefix)) for n in range(3) for prefix in product(range(3), repeat=n)},
    {prefix: np.roll(Q, sum(prefix)) for n in range(2) for prefix in product(range(3), repeat=n)},
)

# Two drafts on which a block residual without its weight is wrong. All instances of vocabulary 2 miss it.
UNIFORM = rational([1, 1, 1])
LESSON = Tree(
    2,
    {
        (): rational([3, 2, 2]),
        (0,): rational([5, 6, 1]),
        (1,): UNIFORM,
        (2,): UNIFORM,
        **dict.fromkeys(product(range(3), repeat=2), UNIFORM),
    },
    {(): rational([7, 3, 2]), (0,): rational([4, 1, 8]), (1,): UNIFORM, (2,): UNIFORM},
)


def redraw_from_p(p, q, drafted, randomness, position):  # type: ignore[no-untyped-def]
    for i, token in enumerate(drafted):
        if not randomness.bernoulli(min(p[i][token] / q[i][token], 1)):
            return Verdict(i, randomness.categorical(p[i]))
    return Verdict(len(drafted), randomness.categorical(p[-1]))


def bonus_from_q(p, q, drafted, randomness, position):  # type: ignore[no-untyped-def]
    return RULES["rejection"].decide([*p[:-1], q[-1]], q, drafted, randomness, position)


def accept_only(p, q, drafted, randomness, position):  # type: ignore[no-untyped-def]
    """Leaves the weight out of the block residual."""
    verdict = RULES["block"].decide(p, q, drafted, Undrawn(randomness), position)
    a = verdict.num_accepted
    return Verdict(a, randomness.categorical(p[a] if a == len(drafted) else residual(p[a], q[a])))


class Undrawn:
    """Coins of another source, draws left out."""

    def __init__(self, randomness: EnumeratedRandomness) -> None:
        self.bernoulli = randomness.bernoulli

    def categorical(self, probabilities: np.ndarray) -> int:
        return 0


def stop_at_first_failure(p, q, drafted, randomness, position):  # type: ignore[no-untyped-def]
    """Walks the block coins as `rejection` does, so that a later success no longer overrides a failure."""
    coins: list[bool] = []

    class Recorded(Undrawn):
        def __init__(self) -> None:
            self.bernoulli = lambda probability: coins.append(randomness.bernoulli(probability)) or coins[-1]

    RULES["block"].decide(p, q, drafted, Recorded(), position)
    a = (*coins, False).index(False)
    w = block_weights(p, q, drafted)[a]
    return Verdict(a, randomness.categorical(p[a] if a == len(drafted) else residual(p[a], q[a], w)))


@pytest.mark.parametrize("decision", [redraw_from_p, bonus_from_q, stop_at_first_failure])
def test_a_lossy_decision_is_seen(decision: Callable[..., Verdict]) -> None:
    lossy = replace(RULES["rejection"], decision=decision)
    assert total_variation(law(lossy, TWO), target_law(TWO)) > Fraction(1, 50)


@pytest.mark.parametrize("name", ["rejection", "block"])
def test_a_greedy_draft_reported_as_a_softmax_is_seen(name: str) -> None:
    def argmax(q: np.ndarray, randomness: EnumeratedRandomness) -> int:
        return int(np.argmax(q))

    assert total_variation(law(RULES[name], TWO, argmax), target_law(TWO)) > Fraction(1, 10)


def test_a_block_residual_without_its_weight_is_seen_on_the_instance_that_shows_it() -> None:
    unweighted = replace(RULES["block"], decision=accept_only)
    assert float(total_variation(law(unweighted, LESSON), target_law(LESSON))) == pytest.approx(0.0347, abs=5e-5)
    assert total_variation(law(RULES["block"], LESSON), target_law(LESSON)) == 0


def test_a_block_residual_without_its_weight_passes_every_instance_of_vocabulary_two() -> None:
    """Why that instance is kept: a smaller search space would call the defect right."""

    @settings(max_examples=20, deadline=None)
    @given(tree=trees(3))
    def equal(tree: Tree) -> None:
        assert law(replace(RULES["block"], decision=accept_only), tree) == target_law(tree)

    equal()


# ------------------------------------------------------------------------------------------ facts about block


@settings(max_examples=20, deadline=None)
@given(tree=st.integers(1, 3).flatmap(trees))
def test_given_its_first_i_drafts_a_block_is_accepted_so_far_with_probability_w_i(tree: Tree) -> None:
    reached: dict[Prefix, Fraction] = defaultdict(Fraction)  # P(d_1..d_i and tau >= i)
    for (emitted, a), weight in one_round(RULES["block"], tree).items():
        for i in range(1, a + 1):
            reached[emitted[:i]] += weight
    for prefix, probability in reached.items():
        p = [tree.p[prefix[:i]] for i in range(len(prefix))]
        q = [tree.q[prefix[:i]] for i in range(len(prefix))]
        drawn = np.prod([q[i][token] for i, token in enumerate(prefix)])
        assert probability == drawn * block_weights(p, q, prefix)[-1]


@settings(max_examples=20, deadline=None)
@given(tree=st.integers(1, 3).flatmap(trees))
def test_block_accepts_as_many_as_its_closed_form_and_never_fewer_than_rejection(tree: Tree) -> None:
    accepted = expectation_of_accepted(RULES["block"], tree)
    assert accepted == expected_accepted_block(tree.p.__getitem__, tree.q.__getitem__, tree.k)
    assert accepted >= expectation_of_accepted(RULES["rejection"], tree)


@settings(max_examples=20, deadline=None)
@given(tree=st.integers(1, 3).flatmap(lambda k: trees(k, point_q=True)))
def test_block_equals_rejection_for_one_hot_drafts(tree: Tree) -> None:
    def nonzero(rule: str) -> dict[tuple[Prefix, int], Fraction]:
        return {outcome: weight for outcome, weight in one_round(RULES[rule], tree).items() if weight}

    assert nonzero("block") == nonzero("rejection")


def test_the_example_of_the_block_paper() -> None:
    """p = (1/3, 2/3), q = (2/3, 1/3) at every place, k = 2: 10/9 and 11/9 of at most 12/9 are accepted."""
    p, q = rational([1, 2]), rational([2, 1])
    everywhere = [prefix for n in range(3) for prefix in product(range(2), repeat=n)]
    tree = Tree(2, dict.fromkeys(everywhere, p), dict.fromkeys(everywhere, q))
    assert expectation_of_accepted(RULES["rejection"], tree) == Fraction(10, 9)
    assert expected_accepted([RULES["rejection"].expected_acceptance(p, q)] * 2) == Fraction(10, 9)
    assert expectation_of_accepted(RULES["block"], tree) == Fraction(11, 9)
    assert expected_accepted_block(lambda prefix: p, lambda prefix: q, 2) == Fraction(11, 9)
    joint = [(mass(tree, x), np.prod([q[token] for token in x])) for n in (1, 2) for x in product(range(2), repeat=n)]
    assert sum(min(a, b) for a, b in joint) == Fraction(12, 9)


# ------------------------------------------------------------------------------------------------ closed forms


@pytest.mark.parametrize("name", DISCRETE)
def test_acceptance_at_a_position_equals_its_closed_form(name: str) -> None:
    @settings(max_examples=25, deadline=None)
    @given(data=st.data(), vocab_size=st.integers(2, 4))
    def equal(data: st.DataObject, vocab_size: int) -> None:
        p = data.draw(point_masses(vocab_size) if name == "greedy" else rationals(vocab_size))
        q = data.draw(rationals(vocab_size))
        tree = Tree(1, {(): p, **{(x,): p for x in range(vocab_size)}}, {(): q})
        assert expectation_of_accepted(RULES[name], tree) == RULES[name].expected_acceptance(p, q)

    equal()


def test_the_numbers_of_a_pair_of_logits() -> None:
    sampling = SamplingParams(temperature=0.7)
    p = distribution(np.array([2, 1, 0.5, 0, -0.5, -1]), sampling, [])
    q = distribution(np.array([1.4, 1.3, 0.2, 0.6, -0.3, -0.8]), sampling, [])
    per_position = {name: RULES[name].expected_acceptance(p, q) for name in ("rejection", "block", "sampler_match")}
    assert per_position["rejection"] == per_position["block"] == pytest.approx(0.7053, abs=5e-5)
    assert per_position["sampler_match"] == pytest.approx(0.3438, abs=5e-5)
    assert expected_accepted([per_position["rejection"]] * 4) == pytest.approx(1.8012, abs=5e-5)
    assert expected_accepted([per_position["sampler_match"]] * 4) == pytest.approx(0.5166, abs=5e-5)
    assert per_position["sampler_match"] < RULES["coupled"].expected_acceptance(p, q) < per_position["rejection"]
    assert expected_accepted_block(lambda prefix: p, lambda prefix: q, 4) > 1.8012


def test_coupled_acceptance_agrees_with_its_closed_form() -> None:
    p, q = np.array([0.5, 0.3, 0.2, 0.0]), np.array([0.2, 0.3, 0.1, 0.4])
    randomness, n, accepted = SeededRandomness(3), 2500, 0
    for position in range(n):
        drafted = randomness.coupled_categorical(q, position)
        accepted += RULES["coupled"].decide([p, p], [q], [drafted], randomness, position).num_accepted
    expected = RULES["coupled"].expected_acceptance(p, q)
    sigma = (n * expected * (1 - expected)) ** 0.5
    assert abs(accepted - n * expected) < 4 * sigma
    independent = RULES["sampler_match"].expected_acceptance(p, q)
    assert abs(accepted - n * independent) > 4 * sigma, "noise that is not shared would be accepted this often"


@settings(max_examples=30, deadline=None)
@given(p=rationals(3))
def test_equal_distributions_are_always_accepted_by_the_rules_that_can(p: np.ndarray) -> None:
    for name in ("rejection", "block", "coupled"):
        assert RULES[name].expected_acceptance(p, p) == 1


# -------------------------------------------------------------------------------------------------- edge rules


@pytest.mark.parametrize("name", ["rejection", "block"])
def test_the_lowest_coin_does_not_accept_a_token_without_mass(name: str) -> None:
    p, q = np.array([0.0, 1.0]), np.array([0.5, 0.5])
    verdict = RULES[name].decide([p, p], [q], [0], SeededRandomness(0, lambda: 0.0), 0)
    assert verdict == Verdict(0, 1)


@pytest.mark.parametrize("name", ["rejection", "block"])
def test_the_highest_coin_accepts_what_is_certain(name: str) -> None:
    p, q = np.array([0.6, 0.4]), np.array([0.5, 0.5])
    verdict = RULES[name].decide([p, p], [q], [0], SeededRandomness(0, lambda: JUST_UNDER_ONE), 0)
    assert verdict.num_accepted == 1


def test_a_residual_without_mass_gives_way_to_p() -> None:
    p = np.array([0.25, 0.75])
    np.testing.assert_array_equal(residual(p, p), p)
    np.testing.assert_array_equal(residual(p, np.array([0.5, 0.9]), 0.5), p)
    # Rounding makes a ratio just under 1 of two distributions that are the same for every residual.
    q = np.array([np.nextafter(0.25, 1), 0.75])
    verdict = RULES["rejection"].decide([p, p], [q], [0], SeededRandomness(0, lambda: JUST_UNDER_ONE), 0)
    assert verdict == Verdict(0, 1)


def test_a_residual_that_is_tiny_beside_one_still_has_its_coin() -> None:
    """With w = 1 the coin is s / s = 1; adding the 1 to s first would lose a tiny s, and divide by zero."""
    p, q = np.array([0.25, 0.75]), np.array([np.nextafter(0.25, 0), 0.75])
    coins = []

    class Watching(SeededRandomness):
        def bernoulli(self, probability: float) -> bool:
            coins.append(probability)
            return super().bernoulli(probability)

    RULES["block"].decide([p, p, p], [q, q], [0, 0], Watching(0, lambda: 0.5), 0)
    assert coins == [1, 1]


def test_the_coin_that_rejected_is_not_used_for_the_draw_after_it() -> None:
    p, q = np.array([0.1, 0.5, 0.4]), np.array([0.8, 0.1, 0.1])
    for u, token in ((0.0, 1), (0.99, 2)):
        uniforms = iter([0.9, u])
        verdict = RULES["rejection"].decide([p, p], [q], [0], SeededRandomness(0, lambda: next(uniforms)), 0)  # noqa: B023
        assert verdict == Verdict(0, token)
        assert next(uniforms, None) is None


def test_every_block_coin_is_thrown_and_the_last_success_wins() -> None:
    p = [np.array([0.5, 0.5])] * 3
    q = [np.array([0.9, 0.1]), np.array([0.5, 0.5])]
    uniforms = iter([0.99, 0.0, 0.0])  # the first coin fails, the second comes up, then the bonus
    verdict = RULES["block"].decide(p, q, [0, 0], SeededRandomness(0, lambda: next(uniforms)), 0)
    assert verdict == Verdict(2, 0)


@pytest.mark.parametrize("name", RULES)
def test_a_draft_without_mass_under_its_own_q_is_refused(name: str) -> None:
    p, q = np.array([0.5, 0.5]), np.array([1.0, 0.0])
    with pytest.raises(DishonestDraft, match="draft 1 of the block is token 1, which has no mass under the q reported"):
        RULES[name].decide([p, p, p], [q, q], [0, 1], SeededRandomness(0), 0)


@pytest.mark.parametrize("name", RULES)
def test_a_round_without_drafts_is_a_plain_draw(name: str) -> None:
    p = np.array([0.0, 1.0])
    assert RULES[name].decide([p], [], [], SeededRandomness(0), 7) == Verdict(0, 1)


def test_coupled_emits_the_targets_own_draws_whatever_is_drafted() -> None:
    p = [np.array([0.4, 0.3, 0.3])] * 4
    plain = [SeededRandomness(23).coupled_categorical(p[0], position) for position in range(20, 24)]
    assert plain == [0, 1, 0, 2], "neighbours differ, or noise of a wrong position would not be seen"
    for drafted in product(range(3), repeat=3):
        verdict = RULES["coupled"].decide(p, [np.full(3, 1 / 3)] * 3, drafted, SeededRandomness(23), 20)
        emitted = [*drafted[: verdict.num_accepted], verdict.token]
        assert emitted == plain[: len(emitted)]
