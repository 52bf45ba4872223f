"""No check accuses an engine that is right: not in the kill table, not in a thousand random settings."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from subjects import assert_holds

from reference.values import SamplingParams
from specproof import forcing
from specproof.adapters.reference import DEFERRED, EAGER, ENGINE
from specproof.defects import CATALOGUE
from specproof.defects.kill_table import examine
from specproof.defects.plan import SMALL_LAWS, cases
from specproof.engine import Case
from specproof.forcing import Models
from specproof.invariants import RUN_INVARIANTS
from specproof.pairs import tiny
from specproof.runner import run_turn

RIGHT = {defect.right().name: defect.right for defect in CATALOGUE.values() if not defect.needs}
SETTINGS = 1000


@pytest.mark.parametrize("name", RIGHT)
def test_no_check_of_the_kill_table_sees_anything_in_a_right_engine(name: str) -> None:
    """Its runs, and the laws by which a defect of it must be caught; `specproof defects` makes the others, too."""
    looked_for = {check for defect in CATALOGUE.values() if defect.right().name == name for check in defect.expected}
    laws = [law for law in SMALL_LAWS if law in looked_for]
    cells = examine(RIGHT[name], cases(RIGHT[name]().capabilities), laws)
    assert {check for check, cell in cells.items() if cell.status == "caught"} == set()
    assert [check for check, cell in cells.items() if cell.status == "silent"], "nothing was looked at"


def random_case(generator: np.random.Generator) -> Case:
    """A setting of any kind: models, rule, sampling, block size, budget, stop tokens, floor, early close."""

    def one_of(*choices: object) -> object:
        return choices[int(generator.integers(len(choices)))]

    temperature = float(one_of(0.0, 0.0, 0.7, 1.0, 1.4))
    sampling = SamplingParams(
        temperature=temperature,
        top_k=int(one_of(0, 0, 2)),
        top_p=float(one_of(1.0, 1.0, 0.63)),
        min_p=float(one_of(0.0, 0.0, 0.11)),
        repetition_penalty=float(one_of(1.0, 1.0, 1.5)),
        presence_penalty=float(one_of(0.0, 0.6, -0.6)),
        penalty_window=int(generator.integers(4)),
    )
    rule = str(one_of("rejection", "block", "sampler_match", "coupled", *(["greedy"] * 4 if temperature == 0 else [])))
    script = tuple(bool(bit) for bit in generator.integers(2, size=5))
    models = (
        forcing.plain(tiny()),
        forcing.all_reject(tiny(), sampling),
        forcing.mixed(tiny(), rule, sampling, script),
        forcing.sometimes_empty(tiny(), script),
        replace(forcing.plain(tiny()), draft=None),
    )[int(generator.integers(5))]
    assert isinstance(models, Models)
    return Case(
        id="random",
        regime="random",
        target=models.target,
        draft=models.draft,
        prompt=tuple(int(token) for token in generator.integers(3, size=generator.integers(1, 6))),
        rule=rule,
        sampling=sampling,
        num_draft_tokens=int(generator.integers(4)),
        max_tokens=int(generator.integers(6)),
        stop_tokens=frozenset(int(token) for token in generator.integers(3, size=generator.integers(2))),
        seed=int(generator.integers(2**31)),
        drafter="draft_model" if models.draft else "prompt_lookup",
        min_prob=float(one_of(0.0, 0.0, 0.4)),
        close_after=int(one_of(1, 2, 4)) if generator.random() < 0.2 else None,
    )


def test_no_invariant_accuses_the_oracle_in_a_thousand_random_settings() -> None:
    """The three schedules in turn, without a further turn, which the audit runs."""
    generator = np.random.default_rng(20)
    for number in range(SETTINGS):
        engine = (ENGINE, EAGER, DEFERRED)[number % 3]
        run, _ = run_turn(engine, random_case(generator))
        for name in RUN_INVARIANTS:
            assert_holds(name, run)
