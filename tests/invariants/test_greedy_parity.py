"""At temperature 0 the output equals cache-free greedy decoding, token for token."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from controls import broken, case_named, violations
from hypothesis import given
from hypothesis import strategies as st
from mutants import AcceptsEverything, DropsTheWrongRows, SpoilsOneRow
from numpy.typing import NDArray
from strategies import cases
from subjects import assert_holds

from specproof.adapters.reference import ENGINE
from specproof.defects.draft_cache import NeverTrims, TrimsRejectedPlusOne
from specproof.defects.mutations import with_decoder, with_drafter
from specproof.defects.processors import ShowsLastTokenOnly
from specproof.defects.target_cache import KeepsRejectedRows
from specproof.engine import Engine
from specproof.invariants import RUN_INVARIANTS
from specproof.pairs import toy
from specproof.runner import Run, run_case, run_turn


@pytest.mark.invariant("greedy_parity")
def test_greedy_parity_with_cache_free_decoding(run: Run) -> None:
    assert_holds("greedy_parity", run)


@pytest.mark.invariant("greedy_parity")
@given(data=st.data())
def test_greedy_parity_holds_for_drawn_cases(engine: Engine, data: st.DataObject) -> None:
    run, _ = run_turn(engine, data.draw(cases(engine.capabilities, toy())))
    assert_holds("greedy_parity", run)


# ----------------------------------------------------------------------------------------------- negative controls


@pytest.mark.parametrize(
    ("mutant", "case"),
    [
        (AcceptsEverything, "mixed/greedy/k4/T0/p0"),
        (KeepsRejectedRows, "all_reject/greedy/k4/T0/p0"),
        (DropsTheWrongRows, "all_reject/greedy/k4/T0/p0"),
        (ShowsLastTokenOnly, "plain/rejection/k4/T0-penalties/p2"),
    ],
)
def test_greedy_parity_fails_on_tokens_that_are_not_the_targets(mutant: type, case: str) -> None:
    found = violations("greedy_parity", run_case(with_decoder(mutant), case_named(case)))
    assert "cache-free greedy decoding gives" in found[0].message
    assert "gap of the two best" in found[0].message


@pytest.mark.parametrize("mutant", [TrimsRejectedPlusOne, NeverTrims, SpoilsOneRow])
def test_greedy_parity_is_blind_to_a_ruined_drafter(mutant: type) -> None:
    for case in ("mixed/greedy/k4/T0/p0", "all_accept/greedy/k3/T0/p2"):
        assert "greedy_parity" not in broken(with_drafter(mutant), case)


@dataclass(frozen=True)
class TwoBest:
    """Makes tokens 3 and 5 the best everywhere, 3 above 5 by `gap`."""

    gap: float

    def __call__(self, logits: NDArray[np.float64], positions: NDArray[np.int64]) -> NDArray[np.float64]:
        changed = logits.copy()
        changed[:, 3], changed[:, 5] = 50.0, 50.0 - self.gap
        return changed


@pytest.mark.parametrize(("gap", "counted"), [(2e-4, False), (2e-2, True)])
def test_greedy_parity_forgives_a_float32_engine_a_tie_and_nothing_more(gap: float, counted: bool) -> None:
    case = case_named("plain/greedy/k4/T0/p0")
    run = run_case(ENGINE, replace(case, target=replace(case.target, transform=TwoBest(gap))))
    assert set(run.emitted) == {3}
    turned = replace(run, emitted=(3, 5, 3), capabilities=replace(run.capabilities, precision="float32"))
    found = violations("greedy_parity", turned)
    assert bool(found) == counted
    assert (
        not counted
        or "token 1 is 5, cache-free greedy decoding gives 3, whose logit is 0.02 higher" in found[0].message
    )
    assert violations("greedy_parity", replace(turned, capabilities=ENGINE.capabilities)), "float64 has no such excuse"


def test_greedy_parity_counts_a_bad_token_even_where_the_two_best_are_tied() -> None:
    case = case_named("plain/greedy/k4/T0/p0")
    run = run_case(ENGINE, replace(case, target=replace(case.target, transform=TwoBest(1e-5))))
    far = replace(run, emitted=(3, 7, 3), capabilities=replace(run.capabilities, precision="float32"))
    (found,) = violations("greedy_parity", far)
    assert found.numbers["index"] == 1


def test_greedy_parity_judges_each_token_on_the_prefix_that_was_emitted() -> None:
    run = run_case(ENGINE, case_named("plain/greedy/k4/T0/p0"))
    wrong = (run.emitted[0] + 1) % 32
    prefix = (*run.case.prompt, wrong)
    tail = run.target.greedy(prefix, 3)
    (found,) = violations("greedy_parity", replace(run, emitted=(wrong, *tail)))
    assert found.numbers["index"] == 0


def test_greedy_parity_says_nothing_above_temperature_0_or_of_a_lossy_engine() -> None:
    warm = run_case(with_decoder(AcceptsEverything), case_named("mixed/rejection/k4/T0.8/p0"))
    assert not RUN_INVARIANTS["greedy_parity"].applies(warm)
    assert not violations("greedy_parity", warm)
    assert not RUN_INVARIANTS["greedy_parity"].observable(replace(ENGINE.capabilities, lossy=True))
