"""Every part of every law is looked for: a wrong engine is found by it, a right one never accused."""

from dataclasses import replace
from functools import lru_cache

import pytest
from fuzz_engines import BY_LAW_PART

from specproof.adapters.reference import ENGINE
from specproof.engine import Engine
from specproof.fuzzing import hunt, sources
from specproof.fuzzing.bets import Levels
from specproof.fuzzing.bug_report import bug_report
from specproof.fuzzing.campaign import Campaign, Finding
from specproof.fuzzing.law_searches import LAW_SEARCHES
from specproof.fuzzing.reproduction import Reproduction, load
from specproof.fuzzing.sources import LawSource, RunSource
from specproof.statistics import FAMILY_LEVEL

SEED = 0
MOST = {"refusals": 30, "repetitions": 5, "end_points": 5, "exact_law": 5, "joint_law": 2, "rates": 6, "output_law": 4}
"""Cases, or bets, within which the wrong engine of a part is found."""
PARTS = list(LAW_SEARCHES)


@lru_cache
def campaign(part: str, engine: Engine, most: int) -> tuple[Campaign, list[Finding]]:
    """All that one part finds in so many cases; nothing is made smaller, which for bets takes many draws."""
    kind = LAW_SEARCHES[part].kind
    found = Campaign(
        {engine.name: engine},
        SEED,
        lambda efforts: efforts[engine.name].spent[kind] >= most,
        sources=[LawSource(LAW_SEARCHES[part])],
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hunt, "SHRINKING_SECONDS", 0.0)
        return found, list(found.findings())


def found_by(part: str) -> Finding:
    _, findings = campaign(part, BY_LAW_PART[part], MOST[part])
    assert findings, f"nothing was found in {MOST[part]} cases"
    return findings[0]


@pytest.mark.parametrize("part", PARTS)
def test_a_wrong_engine_is_found_by_each_part_and_what_it_found_can_be_replayed(part: str, tmp_path) -> None:
    found = found_by(part)
    assert found.violation.invariant == LAW_SEARCHES[part].law
    assert (found.level is not None) == LAW_SEARCHES[part].is_bet
    saved = load(Reproduction.of(found).save(tmp_path))
    assert saved == Reproduction.of(found)
    assert saved.replay(BY_LAW_PART[part]) is not None
    assert saved.replay(ENGINE) is None


@pytest.mark.parametrize("part", PARTS)
def test_its_report_gives_the_law_the_setting_and_the_command(part: str, tmp_path) -> None:
    found = found_by(part)
    lines = [" ".join(line.split()) for line in bug_report(found, tmp_path / "it.json").splitlines()]
    assert lines[0].startswith(f"{found.engine} breaks {LAW_SEARCHES[part].law}: ")
    assert lines[2] == " ".join(found.violation.message.split())
    assert f" {found.kind}, after " in lines[4]
    assert any(line.startswith(f"k = {found.case.num_draft_tokens}, rule {found.case.rule}") for line in lines)
    assert lines[-1] == f"again specproof fuzz --replay {tmp_path / 'it.json'}"


@pytest.mark.parametrize("part", PARTS)
def test_the_law_is_not_looked_for_again(part: str) -> None:
    ended, findings = campaign(part, BY_LAW_PART[part], MOST[part])
    assert len(findings) == 1
    assert ended.efforts[BY_LAW_PART[part].name].broken == {LAW_SEARCHES[part].law}


def test_a_right_engine_is_accused_by_no_source_of_a_whole_campaign(monkeypatch) -> None:
    doses = [LawSource(replace(search, cases=min(search.cases, 2 - search.is_bet))) for search in LAW_SEARCHES.values()]
    bets = sum(search.is_bet for search in LAW_SEARCHES.values())
    monkeypatch.setattr(sources, "RUNS", 5)
    whole = Campaign(
        {"right": ENGINE}, SEED, lambda efforts: efforts["right"].spent["bet"] >= bets, sources=[RunSource(), *doses]
    )
    assert list(whole.findings()) == []
    assert whole.efforts["right"].spent.keys() >= {"case", *(search.kind for search in LAW_SEARCHES.values())}


def test_the_levels_of_all_bets_without_end_sum_to_the_level_of_the_family() -> None:
    levels = Levels()
    total = sum(levels.take() for _ in range(1000))
    assert total == pytest.approx(FAMILY_LEVEL * (1 - 1 / 1001))
