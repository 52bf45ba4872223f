"""What a wheel would hold: every package of the repository, and the toy checkpoints."""

import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
SETUPTOOLS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]


def test_every_package_folder_is_listed() -> None:
    tops = ("reference", "mlx_impl", "specproof")
    folders = {file.parent for top in tops for file in (ROOT / top).rglob("__init__.py")}
    names = {".".join(folder.relative_to(ROOT).parts) for folder in folders}
    assert names | {"specproof.fixtures"} == set(SETUPTOOLS["packages"])


def test_every_fixture_matches_a_pattern_of_the_package_data() -> None:
    folder = ROOT / SETUPTOOLS["package-dir"]["specproof.fixtures"]
    patterns = SETUPTOOLS["package-data"]["specproof.fixtures"]
    packaged = {file for pattern in patterns for file in folder.glob(pattern) if file.is_file()}
    kept = {file for file in folder.rglob("*") if file.suffix in {".json", ".safetensors"}}
    assert kept
    assert kept == packaged
