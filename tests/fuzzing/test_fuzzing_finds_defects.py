"""Known-bad engines are found within so many cases, and what is found is small, is what it is, and can be replayed."""

from dataclasses import replace
from functools import lru_cache

import pytest
from fuzz_engines import BY_DEFECT, BY_ENDING, BY_INVARIANT

from specproof.adapters.reference import DEFERRED, EAGER, ENGINE
from specproof.engine import Engine
from specproof.fuzzing.bug_report import bug_report
from specproof.fuzzing.campaign import Campaign, Finding
from specproof.fuzzing.reproduction import Reproduction, load
from specproof.fuzzing.sources import RunSource

SEED = 0
FEW, MORE = 20, 100


@lru_cache
def first_finding(engine: Engine, most: int, seed: int = SEED) -> Finding:
    """What is found first, in at most so many single runs. The laws are left to their own tests."""
    found = next(without_laws(engine, most, seed).findings(), None)
    assert found is not None, f"nothing was found in {most} cases"
    return found


def without_laws(engine: Engine, most: int, seed: int = SEED) -> Campaign:
    """A campaign of so many single runs, and nothing else."""
    is_over = lambda efforts: efforts[engine.name].spent["case"] >= most  # noqa: E731
    return Campaign({engine.name: engine}, seed, is_over, sources=[RunSource()])


@pytest.mark.parametrize("defect", BY_DEFECT)
def test_a_bookkeeping_defect_is_found_at_once_and_named_in_the_smallest_case_that_shows_it(defect: str) -> None:
    found = first_finding(BY_DEFECT[defect], FEW)
    assert found.violation.invariant in ("target_cache_offset", "draft_cache_offset")
    assert [known.id for known in found.known] == [defect]
    assert found.shrunk
    assert len(found.case.prompt) == 1
    assert found.case.num_draft_tokens <= 2
    assert found.case.max_tokens <= 4
    assert found.case.sampling.temperature == 0


@pytest.mark.parametrize("invariant", BY_INVARIANT)
def test_a_defect_of_another_kind_is_found_and_matches_no_bookkeeping_defect(invariant: str) -> None:
    every = without_laws(BY_INVARIANT[invariant], FEW).findings()
    found = next(finding for finding in every if finding.violation.invariant == invariant)
    assert found.known == ()
    assert found.shrunk
    assert len(found.case.prompt) <= 2 or found.case.drafter == "prompt_lookup"
    assert found.case.num_draft_tokens <= 3


@pytest.mark.parametrize("ending", BY_ENDING)
def test_a_defect_of_an_ending_is_found_within_more_cases(ending: str) -> None:
    found = first_finding(BY_ENDING[ending], MORE)
    assert found.violation.invariant.endswith("_cache_offset")
    assert found.case.regime in ("abort", "close", "stop", "plain")
    assert [known.id for known in found.known] in ([], ["D52"])
    assert len(found.case.prompt) == 1


@pytest.mark.parametrize("right", [ENGINE, EAGER, DEFERRED], ids=lambda engine: engine.name)
def test_nothing_is_found_in_a_right_engine(right: Engine) -> None:
    campaign = without_laws(right, FEW)
    assert list(campaign.findings()) == []
    assert campaign.efforts[right.name].spent["case"] >= FEW
    assert not campaign.interrupted


def test_a_finding_is_replayed_from_its_file_and_holds_on_a_right_engine(tmp_path) -> None:
    wrong = BY_DEFECT["D01"]
    saved = Reproduction.of(first_finding(wrong, FEW))
    loaded = load(saved.save(tmp_path / "new" / "folder"))
    assert loaded == saved
    assert loaded.source == "https://github.com/lablup/mlxcel/issues/994"
    again = loaded.replay(wrong)
    assert again is not None
    assert again.message == loaded.message
    assert loaded.replay(ENGINE) is None


def test_equal_seeds_find_the_same() -> None:
    first = first_finding(BY_DEFECT["D04"], FEW)
    second = next(without_laws(BY_DEFECT["D04"], FEW).findings())
    assert replace(first, seconds=0.0, run=None) == replace(second, seconds=0.0, run=None)


def test_the_search_goes_on_after_a_finding_for_what_else_is_broken(monkeypatch) -> None:
    monkeypatch.setattr("specproof.fuzzing.hunt.SHRINKING_SECONDS", 0.0)
    monkeypatch.setattr("specproof.fuzzing.sources.EVIDENCE", 1)
    engine = BY_DEFECT["D23"]
    found = [finding.violation.invariant for finding in without_laws(engine, 3).findings()]
    assert found[:1] == ["target_cache_offset"]
    assert len(found) == len(set(found))


def test_the_report_reads_like_a_colleagues_and_says_everything(tmp_path) -> None:
    found = first_finding(BY_DEFECT["D04"], FEW)
    lines = [" ".join(line.split()) for line in bug_report(found, tmp_path / "it.json").splitlines()]
    assert lines[0].startswith(f"{found.engine} breaks draft_cache_offset: every drafter layer holds exactly")
    assert lines[2].startswith(
        "draft cache holds 3 rows, expected 2 = prompt 1 + emitted 2 - 1 (round 0, all_reject, k=2)"
    )
    assert "Matches" not in lines[2]
    assert "prompt 0" in lines
    assert "k = 2, rule block, temperature 0" in lines
    assert any(line.startswith("drafter: toy/target, logits through BanArgmax()") for line in lines)
    assert any(line.startswith("first bad round 0: proposed ") and "accepted 0, emitted " in line for line in lines)
    assert "rows k a expected target drafter draft by D04" in lines
    assert "after prefill 1 1 1 1" in lines
    assert "round 0 2 0 2 2 3 3" in lines
    assert any(
        line.startswith("known defect D04: rejected proposals are never trimmed from the drafter") for line in lines
    )
    assert "also broken cache_content, honest_q, exit_state" in lines
    assert lines[-1] == f"again specproof fuzz --replay {tmp_path / 'it.json'}"
