"""What all tests share: the engines under audit (`--engine`), expected failures, and Hypothesis profiles.

`HYPOTHESIS_PROFILE` chooses one of `dev` (default), `ci` (the same examples every time) and `fuzz` (many).
"""

from __future__ import annotations

import gc
import os
from collections.abc import Generator

import known_failures
import pytest
from again import Again
from hypothesis import HealthCheck, settings
from subjects import SUBJECTS, Runs, Subjects

from reference.errors import InvalidInput
from specproof.engine import Engine

settings.register_profile(
    "dev", max_examples=8, stateful_step_count=20, deadline=None, derandomize=True, report_multiple_bugs=False
)
settings.register_profile("ci", settings.get_profile("dev"), print_blob=True)
settings.register_profile(
    "fuzz",
    settings.get_profile("default"),  # not of "dev", which keeps no failing examples
    max_examples=1000,
    stateful_step_count=50,
    deadline=None,
    derandomize=False,
    report_multiple_bugs=False,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--engine NAME`, repeatable."""
    parser.addoption(
        "--engine",
        action="append",
        default=[],
        metavar="NAME",
        help="audit this engine (repeatable; a name, or module:attribute); default: all that are installed",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Load the engines, the Hypothesis profile and the expected failures."""
    gc.disable()  # until the end of the collection: what it makes lives as long as the session
    config.addinivalue_line("markers", "invariant(name): the run invariant that this test checks")
    settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))
    try:
        config.stash[SUBJECTS] = Subjects.named(config.getoption("--engine"))
    except InvalidInput as error:
        raise pytest.UsageError(str(error)) from error
    config.pluginmanager.register(known_failures.Ledger(known_failures.read()), "known-failures")
    config.pluginmanager.register(Again(), "again")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Thousands of tests are made and none is garbage: looking for it again and again took a quarter of the time."""
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(20_000)  # runs are kept, so what tests make is seldom garbage, either
        gc.enable()


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Which engines are audited, and why others are not."""
    return config.stash[SUBJECTS].header()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """The fixture `engine` goes through all engines under audit."""
    if "engine" in metafunc.fixturenames:
        names = list(metafunc.config.stash[SUBJECTS].engines)
        metafunc.parametrize("engine", names, indirect=True, scope="session")


@pytest.fixture(scope="session")
def engine(request: pytest.FixtureRequest) -> Engine:
    """One of the engines under audit."""
    return request.config.stash[SUBJECTS].engines[request.param]


@pytest.fixture(scope="session")
def subjects(request: pytest.FixtureRequest) -> Subjects:
    """All engines under audit."""
    return request.config.stash[SUBJECTS]


@pytest.fixture(scope="session")
def runs() -> Runs:
    """Runs of the audit's cases, shared by all tests."""
    return Runs()
