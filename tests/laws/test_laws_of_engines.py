"""Every law on every engine under audit (`--engine`), with a small effort: `specproof audit` draws more."""

from __future__ import annotations

from itertools import groupby

import pytest

from specproof import acceptance_rate, exact_law, output_distribution
from specproof.engine import Engine
from specproof.laws import LAWS
from specproof.output_distribution import Effort
from specproof.pairs import tiny
from specproof.results import CheckResult

SEED = 0
EFFORT = Effort(samples=60, turns=1, coupled_seeds=3)
TURNS = 1


def assert_holds(result: CheckResult) -> None:
    assert result.status == "holds", "\n".join(found.message for found in result.violations)
    assert result.cases > 0


def skip_unless_observable(name: str, engine: Engine) -> None:
    if not LAWS[name].observable(engine.capabilities):
        pytest.skip(f"{engine.name} does not show what {name} looks at")


def test_the_exact_law_is_the_targets(engine: Engine):
    """Without the case that costs most where every position of a block is drawn: a smaller and a larger block stay."""
    skip_unless_observable("exact_law", engine)
    cases = exact_law.cases(engine.capabilities, tiny(), SEED, quick=True)
    assert_holds(exact_law.judge(engine, [case for case in cases if case.id != "exact_law/sampler_match/k2/T1"]))


def test_the_engines_own_random_numbers_give_the_targets_distribution(engine: Engine):
    """Every setting once, the rules in turn."""
    skip_unless_observable("output_distribution", engine)
    cases = output_distribution.cases(engine.capabilities, tiny(), SEED)
    by_rule = [list(group) for _, group in groupby(cases, key=lambda case: case.rule)]
    rules, settings = len(by_rule), len(by_rule[0])
    chosen = [by_rule[i % rules][i % settings] for i in range(max(rules, settings))]
    assert_holds(output_distribution.judge(engine, chosen, SEED, EFFORT))


def test_proposals_are_accepted_as_often_as_the_closed_form_says(engine: Engine):
    skip_unless_observable("acceptance_rate", engine)
    cases = list(acceptance_rate.cases(engine.capabilities, tiny(), SEED))
    assert_holds(acceptance_rate.judge(engine, cases, SEED, TURNS))


@pytest.mark.parametrize("name", LAWS)
def test_a_law_says_what_it_states_and_what_it_cannot_see(name: str):
    law = LAWS[name]
    assert law.name == name
    assert law.statement
    assert law.blind_spot
