"""The catalogue says what it must of every defect, and the pages that name defects agree with it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from reference.errors import InvalidSetting
from specproof.adapters.reference import ENGINE
from specproof.audit import CHECKS
from specproof.defects import CATALOGUE, KINDS, LEFT_OUT, Defect
from specproof.defects.kill_table import COLUMNS
from specproof.defects.page import catalogue_page
from specproof.invariants.signatures import SIGNATURES

ROOT = Path(__file__).parents[2]
REFERENCE = re.compile(r"[\w.-]+/[\w.-]+#\d+|no public issue")


@pytest.mark.parametrize("name", CATALOGUE)
def test_a_defect_names_where_it_is_public_its_cause_and_checks_that_exist(name: str) -> None:
    defect = CATALOGUE[name]
    assert defect.id == name
    assert defect.kind in KINDS
    assert REFERENCE.fullmatch(defect.reference)
    assert defect.cause.endswith(".")
    assert len(defect.cause) > 30
    assert defect.expected <= set(COLUMNS)
    assert defect.silent <= set(COLUMNS)


def test_the_kill_table_has_a_column_for_every_check() -> None:
    assert list(COLUMNS) == list(CHECKS)


def test_what_is_left_out_has_no_row_and_a_reason() -> None:
    assert not CATALOGUE.keys() & LEFT_OUT.keys()
    assert all(len(why) > 20 for why in LEFT_OUT.values())


def test_a_defect_that_is_made_again_on_mlx_is_known_and_needs_mlx() -> None:
    again = [defect for name, defect in CATALOGUE.items() if "-" in name]
    assert again
    for defect in again:
        known = CATALOGUE[defect.id.removesuffix("-mlx")]
        assert (defect.kind, defect.reference) == (known.kind, known.reference)
        assert (defect.needs, known.needs) == ("mlx", "")


def test_the_defects_that_messages_name_are_in_the_catalogue_with_the_same_source() -> None:
    for signature in SIGNATURES:
        repository, _, number = CATALOGUE[signature.id].reference.partition("#")
        owner_and_name, _, kind_and_number = signature.source.removeprefix("https://github.com/").rpartition("/")
        assert owner_and_name.rpartition("/")[0] == repository
        assert kind_and_number == number


def test_the_page_of_the_catalogue_is_up_to_date() -> None:
    """To write it anew: python -m specproof.defects.page > docs/defects.md."""
    assert (ROOT / "docs" / "defects.md").read_text(encoding="utf-8") == catalogue_page()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"kind": "bad luck"}, "unknown kind 'bad luck'"),
        ({"expected": frozenset()}, "expects no check to see it"),
        ({"silent": frozenset({"counters"})}, "wants counters both to see it and not to"),
    ],
)
def test_a_defect_that_contradicts_itself_is_refused(changed: dict[str, object], message: str) -> None:
    given = {
        "id": "D0", "kind": "metrics", "engine_found_in": "x", "reference": "no public issue", "cause": "Wrong.",
        "make": lambda: ENGINE, "right": lambda: ENGINE, "expected": frozenset({"counters"}),
    }  # fmt: skip
    with pytest.raises(InvalidSetting, match=message):
        Defect(**{**given, **changed})
