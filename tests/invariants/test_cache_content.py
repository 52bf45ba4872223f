"""Every cached row equals the one that a fresh, cache-free prefill of the committed tokens gives."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from controls import broken, case_named, violations
from hypothesis import given
from hypothesis import strategies as st
from mutants import AcceptsEverything, DropsTheWrongRows, SpoilsOneRow
from strategies import cases
from subjects import assert_holds

from specproof.adapters.reference import ENGINE
from specproof.defects.draft_cache import NeverTrims, TrimsRejectedPlusOne
from specproof.defects.mutations import with_decoder, with_drafter
from specproof.defects.processors import ShowsLastTokenOnly
from specproof.defects.target_cache import KeepsRejectedRows
from specproof.engine import CacheRows, Engine
from specproof.pairs import toy
from specproof.runner import Run, run_case, run_turn


@pytest.mark.invariant("cache_content")
def test_cache_content_is_that_of_a_fresh_prefill(run: Run) -> None:
    assert_holds("cache_content", run)


@pytest.mark.invariant("cache_content")
@given(data=st.data())
def test_cache_content_holds_for_drawn_cases(engine: Engine, data: st.DataObject) -> None:
    run, _ = run_turn(engine, data.draw(cases(engine.capabilities, toy())))
    assert_holds("cache_content", run)


# ----------------------------------------------------------------------------------------------- negative controls


@pytest.mark.parametrize(
    ("mutant", "case", "message"),
    [
        (with_decoder(DropsTheWrongRows), "mixed/greedy/k4/T0/p0", "target cache, layer 0, row "),
        (with_decoder(KeepsRejectedRows), "mixed/greedy/k4/T0/p0", "target cache, layer 0, row "),
        (with_drafter(SpoilsOneRow), "mixed/greedy/k4/T0/p0", "draft cache, layer 2, row "),
        (with_drafter(NeverTrims), "mixed/greedy/k4/T0/p0", "draft cache, layer 0, row "),
    ],
)
def test_cache_content_fails_on_rows_of_other_tokens(mutant: Engine, case: str, message: str) -> None:
    found = violations("cache_content", run_case(mutant, case_named(case)))
    assert message in found[0].message
    assert "from a cache-free prefill of the committed tokens" in found[0].message


def test_cache_content_sees_what_cache_offset_does_not() -> None:
    assert "cache_content" in broken(with_decoder(DropsTheWrongRows), "mixed/greedy/k4/T0/p0")
    assert "target_cache_offset" not in broken(with_decoder(DropsTheWrongRows), "mixed/greedy/k4/T0/p0")


def test_cache_content_leaves_missing_rows_to_the_offsets() -> None:
    """After rejections alone, what the defect of mlxcel leaves in the drafter's cache is right, as far as it goes."""
    found = broken(with_drafter(TrimsRejectedPlusOne), "all_reject/greedy/k4/T0/p0")
    assert "draft_cache_offset" in found
    assert "cache_content" not in found


@pytest.mark.parametrize("mutant", [AcceptsEverything, ShowsLastTokenOnly])
def test_cache_content_is_silent_on_defects_of_other_kinds(mutant: type) -> None:
    for case in ("mixed/greedy/k4/T0/p0", "all_accept/greedy/k3/T0/p2"):
        assert "cache_content" not in broken(with_decoder(mutant), case)


def test_cache_content_tolerates_rounding_as_far_as_the_precision_goes() -> None:
    run = run_case(ENGINE, case_named("plain/greedy/k4/T0/p0"))
    rows = run.exit.target_rows
    assert rows is not None
    noisy = tuple(CacheRows(layer.keys + 1e-6, layer.values) for layer in rows)
    shaken = replace(run, exit=replace(run.exit, target_rows=noisy))
    assert "keys differ by" in violations("cache_content", shaken)[0].message
    assert not violations("cache_content", replace(shaken, capabilities=replace(run.capabilities, precision="float32")))


def test_cache_content_does_not_take_nan_for_a_number() -> None:
    run = run_case(ENGINE, case_named("plain/greedy/k4/T0/p0"))
    rows = run.exit.target_rows
    assert rows is not None
    spoilt = (CacheRows(rows[0].keys * np.nan, rows[0].values), *rows[1:])
    (found,) = violations("cache_content", replace(run, exit=replace(run.exit, target_rows=spoilt)))
    assert found.message.startswith("target cache, layer 0, row 0: keys differ by nan")
