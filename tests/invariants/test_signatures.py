"""What a known bookkeeping defect predicts is a function of (k, a) per round, and is told by the whole sequence."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from controls import case_named, violations
from hypothesis import given
from hypothesis import strategies as st

from specproof.adapters.reference import DEFERRED, EAGER, ENGINE
from specproof.adapters.reference_parts import BATCH, WINDOWED
from specproof.defects import CATALOGUE
from specproof.defects.plan import cases
from specproof.engine import Engine
from specproof.invariants.signatures import (
    ENDS_BY_ITS_LAST_TOKEN,
    SIGNATURES,
    Signature,
    Tally,
    distinct,
    held_rows,
    predicted,
    refutes,
    shows,
    tallies,
)
from specproof.runner import Run, observed_run, run_case

Rounds = list[tuple[int, int]]
REJECTED, MIXED, ACCEPTED, EMPTY = [(4, 0)] * 3, [(4, 2), (4, 4), (4, 1)], [(4, 4)] * 3, [(4, 2), (0, 0), (4, 4)]
BY_ID = {(s.id, sum(t.id == s.id for t in SIGNATURES[:i])): s for i, s in enumerate(SIGNATURES)}
"""By id and a number, of those that have one id."""
NAMES = tuple(signature.id for signature in distinct(SIGNATURES))


def tallied(rounds: Sequence[tuple[int, int]]) -> list[Tally]:
    """Rounds of (k, a) inside a turn."""
    return [Tally(k, a, accepted=a, most=k) for k, a in rounds]


@st.composite
def rounds_of_any_kind(draw: st.DrawFn) -> list[Tally]:
    """A turn: no block is longer than k, and only the last one may be cut."""
    most = draw(st.integers(0, 6))
    sizes = draw(st.lists(st.integers(0, most), min_size=1, max_size=6))
    rounds = [Tally(k, a, a, most) for k in sizes for a in [draw(st.integers(0, k))]]
    finish = draw(st.sampled_from((None, "length", "stop")))
    kept = draw(st.integers(0, rounds[-1].a)) if finish == "stop" else rounds[-1].a
    return [*rounds[:-1], rounds[-1]._replace(a=kept, finish=finish)]


def right(rounds: Sequence[Tally], start: int) -> tuple[int, ...]:
    """Rows of a cache that is kept as it must be."""
    return tuple(start + sum(done.a + 1 for done in rounds[:n]) for n in range(len(rounds) + 1))


@pytest.mark.parametrize(
    ("signature", "rounds", "layer", "rows"),
    [
        (("D01", 0), REJECTED, 0, (9, 9, 9, 9)),  # trim min(rejected + 1, k): nothing is ever kept
        (("D01", 0), MIXED, 0, (9, 10, 13, 13)),
        (("D02", 0), MIXED, 0, (9, 12, 16, 18)),  # one row short from the full acceptance on
        (("D02", 0), ACCEPTED, 0, (9, 13, 17, 21)),
        (("D04", 0), REJECTED, 0, (9, 13, 17, 21)),  # all k rows stay
        (("D05", 0), EMPTY, 0, (9, 12, 12, 18)),  # the next round makes up for it
        (("D05", 1), EMPTY, 0, (9, 12, 12, 17)),  # none does
        (("D08", 0), MIXED, 0, (9, 13, 18, 22)),  # all k rows stay, and a full acceptance adds one
        (("D13", 0), MIXED, 0, (9, 14, 19, 24)),
        (("D17", 0), MIXED, 0, (9, 12, 17, 19)),  # the first layer is right
        (("D17", 0), MIXED, 1, (9, 14, 19, 24)),
        (("D20", 0), MIXED, 0, (9, 14, 19, 24)),
        (("D20", 0), MIXED, 1, (9, 12, 17, 19)),  # every second layer is right
        (("D23", 0), MIXED, 0, (9, 14, 19, 24)),  # all k + 1 rows stay
        (("D24", 0), MIXED, 0, (9, 14, 19, 24)),
    ],
)
def test_a_defect_predicts_the_rows_at_every_boundary(
    signature: tuple[str, int], rounds: Rounds, layer: int, rows: tuple[int, ...]
) -> None:
    assert BY_ID[signature].sequence(tallied(rounds), 9, layer) == rows


def test_a_defect_that_begins_late_predicts_right_rows_before() -> None:
    assert BY_ID["D08", 0].sequence(tallied(MIXED), 9, 0, begins=2) == (9, 12, 17, 21)
    assert BY_ID["D13", 0].sequence(tallied(MIXED), 9, 0, begins=1) == (9, 12, 17, 22)


@pytest.mark.parametrize(
    ("name", "last", "rows"),
    [
        ("D53", Tally(4, 1, accepted=1, most=4, finish="stop"), 10),  # right: 11
        ("D53", Tally(4, 1, accepted=1, most=4, finish="length"), 11),
        ("D54", Tally(4, 1, accepted=3, most=4, finish="stop"), 13),  # the stop token and one behind it stay
        ("D54", Tally(4, 1, accepted=1, most=4, finish="length"), 11),
        ("D137", Tally(2, 1, accepted=1, most=4, finish="length"), 9),  # cut by 4 - 2
        ("D137", Tally(0, 0, accepted=0, most=12, finish="length"), 0),  # there are no more
        ("D137", Tally(2, 1, accepted=1, most=4), 11),
    ],
)
def test_a_defect_of_ends_predicts_the_rows_of_the_last_boundary(name: str, last: Tally, rows: int) -> None:
    assert BY_ID[name, 0].sequence([last], 9, 0) == (9, rows)


@given(rounds_of_any_kind(), st.integers(1, 20))
def test_a_defect_predicts_right_rows_unless_a_round_shows_it(rounds: list[Tally], start: int) -> None:
    for signature in SIGNATURES:
        layers = [signature.sequence(rounds, start, layer) for layer in range(2)]
        wrong = any(rows != right(rounds, start) for rows in layers)
        assert wrong or not any(map(signature.shows, rounds)), signature.id


def test_no_two_defects_of_a_cache_predict_the_same_rows_for_all_kinds_of_rounds() -> None:
    """But D13 and D24, which are D23: the one where it begins at once, the other but for what a close leaves."""
    rounds = [*tallied([*REJECTED, *MIXED, *ACCEPTED, *EMPTY, (1, 0)]), Tally(3, 0, accepted=2, most=6, finish="stop")]
    told = [s for s in SIGNATURES if s.id not in ("D13", "D24", "D51")]
    predictions = [(s.cache, tuple(s.sequence(rounds, 9, layer) for layer in range(2))) for s in told]
    assert len(set(predictions)) == len(told)


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


@pytest.mark.parametrize("name", ["D01", "D02", "D04", "D17", "D23", "D24", "D137"])
def test_a_run_shows_the_defect_whose_rows_it_holds_and_refutes_others(name: str, mixed: Run) -> None:
    signature = BY_ID[name, 0]
    wrong = with_rows(mixed, signature)
    assert shows(wrong, signature)
    assert not refutes(wrong, signature)
    # This turn is neither closed nor broken off.
    twins = ["D23", "D24"] if name in ("D23", "D24") else [name]
    assert [s.id for s in SIGNATURES if s.cache == signature.cache and shows(wrong, s)] == twins


def test_a_right_run_refutes_every_defect_that_it_could_have_shown(mixed: Run) -> None:
    rounds = tallies(mixed)
    assert rounds is not None
    for signature in SIGNATURES:
        assert not shows(mixed, signature)
        wrong = any(signature.sequence(rounds, 9, layer) != right(rounds, 9) for layer in range(2))
        assert refutes(mixed, signature) == (wrong and not signature.of_windows)


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
    assert len(NAMES) == len(set(NAMES)) == len(SIGNATURES) - 1
    assert NAMES.count("D05") == 1
    assert next(found for found in distinct(SIGNATURES) if found.id == "D05") is BY_ID["D05", 0]


# ---------------------------------------------------------------------------------------------------- the catalogue

UNPREDICTED = {"D46", "D94"}
"""Those that the module's docstring gives a reason for."""


def named_by(run: Run) -> list[str]:
    """What each message about offsets says of known defects."""
    found = [*violations("target_cache_offset", run), *violations("draft_cache_offset", run)]
    return [violation.message.partition(" Matches ")[2] for violation in found]


def test_every_defect_that_leaves_a_wrong_number_of_rows_has_a_prediction_or_a_reason() -> None:
    offsets = {"target_cache_offset", "draft_cache_offset"}
    wanted = {name for name, found in CATALOGUE.items() if found.expected & offsets and not found.needs}
    assert {*NAMES, ENDS_BY_ITS_LAST_TOKEN.id} == wanted - UNPREDICTED


@pytest.mark.parametrize("name", [*NAMES, ENDS_BY_ITS_LAST_TOKEN.id, "D46"])
def test_a_defect_of_the_catalogue_is_named_in_the_messages_about_its_own_runs(name: str) -> None:
    defect, engine = CATALOGUE[name], CATALOGUE[name].make()
    said = {"D46": "D24"}.get(name, name)
    runs = (observed_run(engine, case) for case in cases(defect.right().capabilities))
    assert any(f"{said}: " in message for run in runs for message in named_by(run))


def test_a_defect_that_no_trace_can_predict_is_not_named() -> None:
    engine = CATALOGUE["D94"].make()
    found = [named_by(observed_run(engine, case)) for case in cases(ENGINE.capabilities)]
    assert any(found)
    assert not any(name for messages in found for name in messages)


@pytest.mark.parametrize("right_engine", [ENGINE, EAGER, DEFERRED, WINDOWED, BATCH], ids=lambda found: found.name)
def test_no_run_of_a_right_engine_shows_a_known_defect(right_engine: Engine) -> None:
    for case in cases(right_engine.capabilities):
        run = observed_run(right_engine, case)
        assert not [signature.id for signature in SIGNATURES if shows(run, signature)], case.id


@pytest.mark.parametrize(
    ("case", "after_trims_that_do_nothing", "after_no_trims"),
    [
        ("mixed/greedy/k4/T0/p0", {"D23", "D24"}, {"D23", "D24"}),
        ("close/greedy/k4/T0/after2", {"D24"}, {"D23"}),
        ("abort/greedy/k4/T0/target2-after", {"D24"}, {"D23"}),
    ],
)
def test_a_close_or_an_exception_tells_trims_that_do_nothing_from_no_trims(
    case: str, after_trims_that_do_nothing: set[str], after_no_trims: set[str]
) -> None:
    for name, wanted in (("D24", after_trims_that_do_nothing), ("D23", after_no_trims)):
        run = run_case(CATALOGUE[name].make(), case_named(case))
        assert {signature.id for signature in SIGNATURES if shows(run, signature)} == wanted


def test_a_window_that_fills_up_is_told_from_trims_that_never_work_by_a_trim_that_did() -> None:
    engine = CATALOGUE["D13"].make()
    every = (case for case in cases(WINDOWED.capabilities) if case.regime == "all_reject")
    case = replace(next(every), num_draft_tokens=1, prompt=(7,), max_tokens=6, close_after=None)
    run = run_case(engine, case)
    assert [signature.id for signature in SIGNATURES if shows(run, signature)] == ["D13"]
    llama = replace(run, case=replace(case, target=replace(case.target, architecture="llama")))
    assert not any(shows(llama, signature) for signature in SIGNATURES)
