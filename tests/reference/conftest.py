"""The toy models, read once."""

from __future__ import annotations

from pathlib import Path

import pytest

from reference import Transformer, load

TOY = Path(__file__).parents[2] / "fixtures" / "toy"


@pytest.fixture(scope="session")
def toy_folder() -> Path:
    return TOY


@pytest.fixture(scope="session")
def target() -> Transformer:
    return load(TOY / "target")


@pytest.fixture(scope="session")
def draft() -> Transformer:
    return load(TOY / "draft")


@pytest.fixture(scope="session")
def tiny_target() -> Transformer:
    return load(TOY / "tiny-target")


@pytest.fixture(scope="session")
def tiny_draft() -> Transformer:
    return load(TOY / "tiny-draft")
