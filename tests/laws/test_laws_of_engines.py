"""Every law on every engine under audit (`--engine`), with a small effort: `specproof audit` draws more."""

from __future__ import annotations

import pytest

from specproof import acceptance_rate, exact_law, output_distribution
from specproof.engine import Engine
from specproof.laws import LAWS
from specproof.output_distribution import Effort
from specproof.pairs import tiny
from specproof.results import CheckResult

SEED = 0
EFFORT = Effort(samples=80, turns=2, coupled_seeds=3)
TURNS = 2


def assert_holds(result: CheckResult) -> None:
    if result.status == "not_observable":
        pytest.skip(f"not observable: {result.note}")
    assert result.status == "holds", "\n".join(found.message for found in result.violations)
    assert result.cases > 0


def test_the_exact_law_is_the_targets(engine: Engine):
    assert_holds(exact_law.check(engine, tiny(), SEED, quick=True))


def test_the_engines_own_random_numbers_give_the_targets_distribution(engine: Engine):
    assert_holds(output_distribution.judge(engine, tiny(), SEED, EFFORT))


def test_proposals_are_accepted_as_often_as_the_closed_form_says(engine: Engine):
    assert_holds(acceptance_rate.judge(engine, tiny(), SEED, TURNS))


@pytest.mark.parametrize("name", LAWS)
def test_a_law_says_what_it_states_and_what_it_cannot_see(name: str):
    law = LAWS[name]
    assert law.name == name
    assert law.statement
    assert law.blind_spot
