"""What fuzzing found once stays found: every file of fixtures/found is replayed against its engine."""

import json
from pathlib import Path

import pytest
from fuzz_engines import BY_DEFECT

from reference.errors import InvalidInput
from specproof.errors import MissingExtra
from specproof.fuzzing.reproduction import load
from specproof.registry import load_engine

FOLDER = Path(__file__).parents[2] / "fixtures" / "found"
FILES = sorted(FOLDER.glob("*.json"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_what_was_found_once_holds_now(file: Path) -> None:
    found = load(file)
    try:
        engine = load_engine(found.engine)
    except MissingExtra as missing:
        pytest.skip(str(missing))
    violation = found.replay(engine)
    assert violation is None, f"{found.engine} breaks {found.invariant} again: {violation.message}"


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_the_file_names_a_source_that_exists_and_its_engine(file: Path) -> None:
    page, _, section = load(file).source.partition("#")
    assert page.startswith("https://") or (page == "docs/design.md" and section in ("invariants", "laws"))
    assert file.name == load(file).file_name


@pytest.mark.parametrize("defect", BY_DEFECT)
def test_every_bookkeeping_defect_fails_one_of_the_files(defect: str) -> None:
    """The negative control: a file whose case shows nothing would hold for ever."""
    assert any(load(file).replay(BY_DEFECT[defect]) is not None for file in FILES)


def test_a_file_of_an_engine_that_does_not_exist_is_no_pass(tmp_path: Path) -> None:
    broken = json.loads(FILES[0].read_text()) | {"engine": "nothing"}
    (tmp_path / "a.json").write_text(json.dumps(broken))
    with pytest.raises(InvalidInput, match="no engine is named 'nothing'"):
        load_engine(load(tmp_path / "a.json").engine)
