"""What a known bookkeeping defect predicts is a function of (k, a) per round, and is told by the whole sequence."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from controls import case_named
from hypothesis import given
from hypothesis import strategies as st

from specproof.adapters.reference import DEFERRED, ENGINE
from specproof.invariants.signatures import (
    SIGNATURES,
    Signature,
    distinct,
    held_rows,
    predicted,
    refutes,
    shows,
    tallies,
)
from specproof.runner import Run, run_case

REJECTED, MIXED, ACCEPTED, EMPTY = [(4, 0)] * 3, [(4, 2), (4, 4), (4, 1)], [(4, 4)] * 3, [(4, 2), (0, 0), (4, 4)]
rounds_of_any_kind = st.lists(
    st.integers(0, 6).flatmap(lambda k: st.tuples(st.just(k), st.integers(0, k))), min_size=1, max_size=6
)


def right(rounds: Sequence[tuple[int, int]], start: int) -> tuple[int, ...]:
    """Rows of a cache that is kept as it must be."""
    return tuple(start + sum(a + 1 for _, a in rounds[:n]) for n in range(len(rounds) + 1))


@pytest.mark.parametrize(
    ("number", "rounds", "layer", "rows"),
    [
        (0, REJECTED, 0, (9, 9, 9, 9)),  # D01, trim min(rejected + 1, k): nothing is ever kept
        (0, MIXED, 0, (9, 10, 13, 13)),
        (1, MIXED, 0, (9, 12, 16, 18)),  # D02: one row short from the full acceptance on
        (1, ACCEPTED, 0, (9, 13, 17, 21)),
        (2, REJECTED, 0, (9, 13, 17, 21)),  # D04: all k rows stay
        (3, EMPTY, 0, (9, 12, 12, 18)),  # D05, the next round makes up for it
        (4, EMPTY, 0, (9, 12, 12, 17)),  # D05, none does
        (5, MIXED, 0, (9, 12, 17, 19)),  # D17: the first layer is right
        (5, MIXED, 1, (9, 14, 19, 24)),
        (6, MIXED, 0, (9, 14, 19, 24)),  # D23: all k + 1 rows stay
    ],
)
def test_a_defect_predicts_the_rows_at_every_boundary(
    number: int, rounds: list[tuple[int, int]], layer: int, rows: tuple[int, ...]
) -> None:
    assert SIGNATURES[number].sequence(rounds, 9, layer) == rows


@given(rounds_of_any_kind, st.integers(1, 20))
def test_a_defect_predicts_right_rows_unless_a_round_shows_it(rounds: list[tuple[int, int]], start: int) -> None:
    for signature in SIGNATURES:
        layers = [signature.sequence(rounds, start, layer) for layer in range(2)]
        wrong = any(rows != right(rounds, start) for rows in layers)
        assert wrong or not any(signature.shows(k, a) for k, a in rounds), signature.id


def test_no_two_defects_of_a_cache_predict_the_same_rows_for_all_kinds_of_rounds() -> None:
    rounds = [*REJECTED, *MIXED, *ACCEPTED, *EMPTY, (1, 0)]
    predictions = [(s.cache, tuple(s.sequence(rounds, 9, layer) for layer in range(2))) for s in SIGNATURES]
    assert len(set(predictions)) == len(SIGNATURES)


def with_rows(run: Run, signature: Signature) -> Run:
    """The run with the rows of a defect in place of its own."""
    name = f"{signature.cache}_offsets"
    rows = predicted(signature, run)
    assert rows is not None
    boundaries = tuple(
        replace(boundary, observation=replace(boundary.observation, **{name: layers}))
        for boundary, layers in zip(run.boundaries, rows, strict=True)
    )
    return replace(run, boundaries=boundaries)


@pytest.fixture(scope="module")
def mixed() -> Run:
    return run_case(ENGINE, case_named("mixed/greedy/k3/T0/p2"))


@pytest.mark.parametrize("signature", [s for s in SIGNATURES if s.id != "D05"], ids=lambda signature: signature.id)
def test_a_run_shows_the_defect_whose_rows_it_holds_and_refutes_others(signature: Signature, mixed: Run) -> None:
    wrong = with_rows(mixed, signature)
    assert shows(wrong, signature)
    assert not refutes(wrong, signature)
    assert [s.id for s in SIGNATURES if s.cache == signature.cache and shows(wrong, s)] == [signature.id]


def test_a_right_run_refutes_every_defect_that_it_could_have_shown(mixed: Run) -> None:
    rounds = tallies(mixed)
    assert rounds is not None
    for signature in SIGNATURES:
        assert not shows(mixed, signature)
        assert refutes(mixed, signature) == any(
            signature.sequence(rounds, 9, layer) != right(rounds, 9) for layer in range(2)
        )


def test_one_round_that_differs_is_enough_to_refute(mixed: Run) -> None:
    (never_trims,) = (s for s in SIGNATURES if s.id == "D23")
    wrong = with_rows(mixed, never_trims)
    last = wrong.boundaries[-1]
    seen = replace(last.observation, target_offsets=tuple(rows + 1 for rows in last.observation.target_offsets or ()))
    other = replace(wrong, boundaries=(*wrong.boundaries[:-1], replace(last, observation=seen)))
    assert refutes(other, never_trims)
    assert not shows(other, never_trims)


def test_a_run_that_hides_its_rounds_or_rows_neither_shows_nor_refutes(mixed: Run) -> None:
    without_rounds = replace(mixed, boundaries=())
    (first, *rest) = mixed.boundaries
    hidden = replace(first, observation=replace(first.observation, target_offsets=None, draft_offsets=None))
    without_rows = replace(mixed, boundaries=(hidden, *rest))
    assert held_rows(without_rows, "draft") is None
    for run in (without_rounds, without_rows):
        assert not any(shows(run, signature) or refutes(run, signature) for signature in SIGNATURES)


def test_a_deferred_drafter_is_no_known_defect() -> None:
    run = run_case(DEFERRED, case_named("all_accept/greedy/k3/T0/p2"))
    assert not any(shows(run, signature) for signature in SIGNATURES)


def test_two_ways_to_make_one_mistake_are_named_once() -> None:
    assert [signature.id for signature in distinct(SIGNATURES)] == ["D01", "D02", "D04", "D05", "D17", "D23"]
    assert distinct(SIGNATURES)[3] is SIGNATURES[3]
