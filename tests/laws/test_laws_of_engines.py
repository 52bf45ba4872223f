"""Every law on every engine under audit (`--engine`), with the effort of a quick audit."""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby

import pytest

from specproof import acceptance_rate, exact_law, output_distribution
from specproof.acceptance_rate import QUICK_TURNS
from specproof.engine import Engine
from specproof.laws import LAWS
from specproof.output_distribution import QUICK
from specproof.pairs import tiny, toy
from specproof.results import CheckResult

SEED = 0


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
    """The same effort finds every lossy control (`test_the_effort_of_a_quick_audit_finds_every_lossy_decoder`).

    `rejection` in every setting; of an engine without it, which emits nothing but plain draws of the target, one. In
    float32, where a round takes many times as long, with contrary drafters only, by which more is seen.
    """
    skip_unless_observable("output_distribution", engine)
    cases = list(output_distribution.cases(engine.capabilities, tiny(), SEED, quick=True))
    chosen = [case for case in cases if case.rule == "rejection"] or cases[:1]
    if engine.capabilities.precision == "float32":
        chosen = [case for case in chosen if case.id.endswith("-contrary")]
    assert_holds(output_distribution.judge(engine, chosen, SEED, QUICK))


def test_the_rules_whose_draws_are_no_rejections_give_the_targets_distribution_too(engine: Engine):
    """In one setting, with a quarter of the samples: how each of them decides is proved by the exact law."""
    skip_unless_observable("output_distribution", engine)
    cases = output_distribution.cases(engine.capabilities, tiny(), SEED, quick=True)
    chosen = [case for case in cases if case.rule != "rejection"]
    if "rejection" not in engine.capabilities.rules:
        pytest.skip(f"{engine.name} has one rule, which is judged in full")
    effort = replace(QUICK, samples=QUICK.samples // 4, turns=QUICK.turns // 4)
    assert_holds(output_distribution.judge(engine, chosen, SEED, effort))


def test_proposals_are_accepted_as_often_as_the_closed_form_says(engine: Engine):
    """`rejection`, or the engine's one rule, with the effort of a quick audit; all others with a third of it."""
    skip_unless_observable("acceptance_rate", engine)
    cases = acceptance_rate.cases(engine.capabilities, toy(), SEED)
    by_rule = {rule: list(group) for rule, group in groupby(cases, key=lambda case: case.rule)}
    most = "rejection" if "rejection" in by_rule else "sampler_match"
    for rule, group in by_rule.items():
        chosen, turns = (group[::2], QUICK_TURNS) if rule == most else (group[:1], QUICK_TURNS // 3)
        assert_holds(acceptance_rate.judge(engine, chosen, SEED, turns))


@pytest.mark.parametrize("name", LAWS)
def test_a_law_says_what_it_states_and_what_it_cannot_see(name: str):
    law = LAWS[name]
    assert law.name == name
    assert law.statement
    assert law.blind_spot
