"""No check accuses an engine that is right: not in the kill table, not in a thousand random settings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from subjects import Broken, assert_holds

from reference.values import SamplingParams
from specproof import forcing
from specproof.adapters.reference import DEFERRED, EAGER, ENGINE
from specproof.defects import CATALOGUE
from specproof.defects.kill_table import examine
from specproof.defects.plan import SMALL_LAWS, cases
from specproof.engine import Case, Engine, Fault
from specproof.forcing import Models
from specproof.invariants import RUN_INVARIANTS
from specproof.pairs import tiny
from specproof.runner import run_case

RIGHT = {defect.right().name: defect.right for defect in CATALOGUE.values() if not defect.needs}
SETTINGS, SETTINGS_ON_MLX = 1000, 300


@pytest.mark.parametrize("name", RIGHT)
def test_no_check_of_the_kill_table_sees_anything_in_a_right_engine(name: str) -> None:
    """Its runs, and the laws by which a defect of it must be caught; `specproof defects` makes the others, too."""
    looked_for = {check for defect in CATALOGUE.values() if defect.right().name == name for check in defect.expected}
    laws = [law for law in SMALL_LAWS if law in looked_for]
    cells = examine(RIGHT[name], cases(RIGHT[name]().capabilities), laws)
    assert {check for check, cell in cells.items() if cell.status == "caught"} == set()
    assert [check for check, cell in cells.items() if cell.status == "silent"], "nothing was looked at"


def random_case(generator: np.random.Generator) -> Case:
    """A setting of any kind: models, rule, sampling, block size, budget, stop tokens, floor, early close, fault."""

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
    case = Case(
        id="random",
        regime="random",
        target=models.target,
        draft=models.draft,
        prompt=tuple(int(token) for token in generator.integers(3, size=generator.integers(1, 6))),
        rule=rule,
        sampling=sampling,
        num_draft_tokens=int(generator.integers(4)),
        max_tokens=int(generator.integers(10)),
        stop_tokens=frozenset(int(token) for token in generator.integers(3, size=generator.integers(2))),
        seed=int(generator.integers(2**31)),
        drafter="draft_model" if models.draft else "prompt_lookup",
        min_prob=float(one_of(0.0, 0.0, 0.4)),
        close_after=int(one_of(1, 2, 4)) if generator.random() < 0.2 else None,
    )
    return with_fault(case, generator) if generator.random() < 0.2 else case


def with_fault(case: Case, generator: np.random.Generator) -> Case:
    """An exception in a forward of either model, before or after it wrote its rows; the first may be prefill's."""
    fault = Fault(int(generator.integers(4)), "before" if generator.integers(2) else "after")
    if case.draft is not None and generator.integers(2):
        return replace(case, draft=replace(case.draft, fault=fault))
    return replace(case, target=replace(case.target, fault=fault))


def held_against_all(engines: Sequence[Engine], settings: int, seed: int) -> Counter[str]:
    """Run random settings, the engines in turn, each with its further turn; how many runs showed what."""
    generator, shown = np.random.default_rng(seed), Counter[str]()
    for number in range(settings):
        run = run_case(engines[number % len(engines)], random_case(generator))
        for name, invariant in RUN_INVARIANTS.items():
            if invariant.observable(run.capabilities) and invariant.applies(run):
                assert_holds(name, run)
                shown[name] += 1
        shown[run.ending] += 1
        shown["continued"] += run.continuation is not None
        shown["continued after an exception"] += run.injected and run.continuation is not None
    return shown


def hardly_shown(shown: Counter[str], settings: int) -> list[str]:
    """What fewer than a fiftieth of the runs showed: there, nothing is accused because nothing is looked at."""
    endings = ("length", "stop", "close", "abort", "continued", "continued after an exception")
    judged = RUN_INVARIANTS.keys() - {"block_table"}  # no engine here has pages
    return [name for name in (*judged, *endings) if shown[name] < settings / 50]


def test_no_invariant_accuses_the_oracle_in_a_thousand_random_settings() -> None:
    """The three schedules in turn."""
    shown = held_against_all((ENGINE, EAGER, DEFERRED), SETTINGS, 20)
    assert not hardly_shown(shown, SETTINGS)


def test_no_invariant_accuses_mlx_impl_in_random_settings() -> None:
    pytest.importorskip("mlx.core", reason="needs the extra mlx")
    from specproof.adapters.mlx_impl import ENGINE as MLX

    shown = held_against_all((MLX,), SETTINGS_ON_MLX, 21)
    assert not hardly_shown(shown, SETTINGS_ON_MLX)


@pytest.mark.parametrize("name", ["D01", "D51", "D58"])
def test_random_settings_would_show_a_wrong_engine(name: str) -> None:
    with pytest.raises(Broken):
        held_against_all((CATALOGUE[name].make(),), SETTINGS // 10, 20)
