"""Points: every engine x regime x rule x k that an invariant can be seen at."""

from __future__ import annotations

import pytest
from points import Point, points_of
from subjects import SUBJECTS, Runs, Subjects

from specproof.invariants import RUN_INVARIANTS
from specproof.runner import Run

POINTS = pytest.StashKey[dict[str, tuple[Point, ...]]]()
"""Where pytest's configuration keeps the points of each engine, once they are made."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """The fixture `point` goes through all points of the engines that can show the test's invariant."""
    if "point" not in metafunc.fixturenames:
        return
    marker = metafunc.definition.get_closest_marker("invariant")
    invariant = RUN_INVARIANTS[marker.args[0]]
    known = metafunc.config.stash.setdefault(POINTS, {})
    points: list[Point] = []
    for name, engine in metafunc.config.stash[SUBJECTS].engines.items():
        if invariant.observable(engine.capabilities):
            points += known[name] if name in known else known.setdefault(name, points_of(name, engine))
    metafunc.parametrize("point", points, ids=[f"{point.engine}-{point.path}" for point in points])


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All tests of one point in a row, so that they land on one worker of pytest-xdist, which makes their run once."""
    first: dict[tuple[str, str], int] = {}

    def place(numbered: tuple[int, pytest.Item]) -> int:
        number, item = numbered
        point = item.callspec.params.get("point") if hasattr(item, "callspec") else None
        return first.setdefault((point.engine, point.path), number) if isinstance(point, Point) else number

    items[:] = [item for _, item in sorted(enumerate(items), key=place)]


@pytest.fixture
def run(point: Point, subjects: Subjects, runs: Runs) -> Run:
    """The run of a point's case."""
    return runs.of(subjects.engines[point.engine], point.case)


@pytest.fixture
def continued_run(point: Point, subjects: Subjects, runs: Runs) -> Run:
    """The run of a point's case, and a further turn on the caches it left."""
    return runs.continued(subjects.engines[point.engine], point.case)
