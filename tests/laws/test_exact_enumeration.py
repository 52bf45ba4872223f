"""Enumeration finds the law of whatever it is given, whether states are merged, kept apart or replayed."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count, product

import pytest
from law_controls import FicklyCopiedWalk, StuckWalk, UncopiableWalk, Walk, tiny_case

from reference.errors import DecodingFault
from reference.values import SamplingParams
from specproof.adapters.reference import ENGINE, ReferenceExactSession
from specproof.engine import ExactSession, ModelSpec
from specproof.enumeration import EnumeratedRandomness
from specproof.exact import LawResult, first_difference, law, marginal, target_law, total_variation
from specproof.oracle import Oracle
from specproof.pairs import tiny

P = (0.5, 0.3, 0.2)


def law_of(make: Callable[[EnumeratedRandomness], ExactSession], length: int) -> LawResult:
    randomness = EnumeratedRandomness()
    return law(lambda: make(randomness), randomness, length)


@pytest.mark.parametrize("walk", [Walk, UncopiableWalk])
def test_independent_draws_have_the_product_law_with_and_without_copies(walk: type[Walk]):
    found = law_of(lambda choices: walk(choices, 3), 3)
    assert found.probabilities == pytest.approx(
        {(a, b, c): P[a] * P[b] * P[c] for a, b, c in product(range(3), repeat=3)}
    )
    assert found.replayed == (walk is UncopiableWalk)


def test_copies_save_the_replay_of_what_came_before():
    copied, replayed = (law_of(lambda choices, w=walk: w(choices, 3), 3) for walk in (Walk, UncopiableWalk))
    assert copied.rounds == 3 + 9 + 27
    assert copied.states == 1 + 3 + 9
    assert (replayed.rounds, replayed.states) == (3 * 27, 1)


def test_sequences_are_cut_at_the_length_asked_for():
    found = law_of(lambda choices: Walk(choices, 5), 2)
    assert {len(sequence) for sequence in found.probabilities} == {2}
    assert found.rounds == 3 + 9


def test_a_decode_that_ends_early_keeps_its_own_length():
    found = law_of(lambda choices: Walk(choices, 1), 4)
    assert found.probabilities == pytest.approx({(i,): p for i, p in enumerate(P)})


def test_a_session_that_emits_nothing_is_reported_as_stuck():
    with pytest.raises(DecodingFault, match="emitted nothing in 8 steps after 0 tokens and did not finish; let"):
        law_of(lambda choices: StuckWalk(choices, 2), 2)


def test_a_session_that_cannot_be_copied_later_on_is_refused():
    with pytest.raises(DecodingFault, match=r"the state after \(0,\) cannot be copied, but the first one could; let"):
        law_of(lambda choices: FicklyCopiedWalk(choices, 2), 2)


@pytest.mark.parametrize("rule", ["sampler_match", "rejection", "block"])
@pytest.mark.parametrize("k", [1, 2, 3])
def test_weights_of_the_decoder_sum_to_one(rule: str, k: int):
    case = tiny_case(rule, k, 4, SamplingParams(temperature=0.7, top_k=2))
    found = law_of(lambda choices: ENGINE.start_exact(case, choices), 4)
    assert sum(found.probabilities.values()) == pytest.approx(1, abs=1e-14)


class _Unmerged(ReferenceExactSession):
    """The decoder's session with a key that no other state has."""

    serial = count()

    def copy(self) -> _Unmerged:
        return _Unmerged(self._decoder, self._state.copy())

    def key(self) -> bytes:
        return str(next(self.serial)).encode()


@pytest.mark.parametrize("rule", ["sampler_match", "rejection", "block"])
def test_merging_equal_states_changes_the_work_and_not_the_law(rule: str):
    case = tiny_case(rule, 1, 5, SamplingParams(temperature=0.8, top_k=2))

    def unmerged(choices: EnumeratedRandomness) -> _Unmerged:
        session = ENGINE.start_exact(case, choices)
        return _Unmerged(session._decoder, session._state)

    merged = law_of(lambda choices: ENGINE.start_exact(case, choices), 4)
    apart = law_of(unmerged, 4)
    assert total_variation(merged.probabilities, apart.probabilities) < 1e-15
    assert merged.states < apart.states
    assert merged.rounds < apart.rounds


def test_states_with_the_same_history_and_right_caches_are_all_merged():
    """One state per history at the most: if caches differed between paths to it, there would be more."""
    case = tiny_case("sampler_match", 2, 4)
    found = law_of(lambda choices: ENGINE.start_exact(case, choices), 4)
    assert found.states <= 3 + 9 + 27


def test_target_law_is_the_product_of_the_oracles_distributions():
    oracle, sampling = Oracle(ModelSpec(tiny().target)), SamplingParams(temperature=0.7, presence_penalty=0.5)
    wanted = target_law(oracle, (0, 2), sampling, 2)
    first = oracle.distribution((0, 2), sampling)
    assert len(wanted) == 9
    assert wanted[1, 2] == pytest.approx(first[1] * oracle.distribution((0, 2, 1), sampling)[2])
    assert sum(wanted.values()) == pytest.approx(1)


def test_target_law_ends_sequences_at_a_stop_token_and_drops_impossible_ones():
    oracle = Oracle(ModelSpec(tiny().target))
    wanted = target_law(oracle, (0,), SamplingParams(top_k=2), 3, stop_tokens={1})
    assert all(1 not in sequence[:-1] for sequence in wanted)
    assert {len(sequence) for sequence in wanted} == {1, 2, 3}
    assert all(mass > 0 for mass in wanted.values())
    assert sum(wanted.values()) == pytest.approx(1)


def test_total_variation_is_half_the_sum_of_differences_and_one_for_disjoint_laws():
    assert total_variation({(0,): 0.5, (1,): 0.5}, {(0,): 0.7, (2,): 0.3}) == pytest.approx(0.5)
    assert total_variation({(0,): 1.0}, {(1,): 1.0}) == 1
    assert total_variation({(0,): 1.0}, {(0,): 1.0}) == 0


def test_first_difference_is_the_worst_sequence_of_the_shortest_length_that_differs():
    wanted = {(a, b): P[a] * P[b] for a, b in product(range(3), repeat=2)}
    found = wanted | {(0, 0): wanted[0, 0] + 0.04, (0, 1): wanted[0, 1] - 0.03, (0, 2): wanted[0, 2] - 0.01}
    difference = first_difference(found, wanted, 1e-12)
    assert difference is not None
    assert difference.sequence == (0, 0)  # the first tokens have the same law
    assert difference.found - difference.wanted == pytest.approx(0.04)
    assert first_difference(found, wanted, 0.05) is None
    assert first_difference(wanted, wanted, 0.0) is None


def test_marginals_add_up_what_they_cut_off():
    assert marginal({(0, 1): 0.25, (0, 2): 0.25, (1,): 0.5}, 1) == {(0,): 0.5, (1,): 0.5}
