"""Expected failures are kept in one file whose lines must be right, and must still be needed."""

from __future__ import annotations

from pathlib import Path

import pytest
from known_failures import FILE, KnownFailure, Ledger, read

pytest_plugins = ["pytester"]

LINE = "mlx_lm exit_state close/*  # https://example.org/1"


def written(folder: Path, text: str) -> Path:
    path = folder / "known_failures.txt"
    path.write_text(text, encoding="utf-8")
    return path


def test_the_projects_own_file_is_well_formed() -> None:
    for line in read(FILE):
        assert "http" in line.reason, f"{line}: give a public reference"


def test_a_line_is_matched_by_engine_invariant_and_pattern(tmp_path: Path) -> None:
    (line,) = read(written(tmp_path, f"# comment\n\n{LINE}\n"))
    assert line == KnownFailure("mlx_lm", "exit_state", "close/*", "https://example.org/1")
    assert line.matches("mlx_lm", "exit_state", "close/greedy/k4")
    assert not line.matches("mlx_lm", "exit_state", "stop/greedy/k4")
    assert not line.matches("mlx_impl", "exit_state", "close/greedy/k4")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("mlx_lm exit_state close/*", "is not `engine invariant pattern  # reason`; give all four"),
        ("mlx_lm exit_state  # because", "is not `engine invariant pattern  # reason`; give all four"),
        ("mlx exit_state *  # because", "known_failures.txt:1: no engine is named 'mlx'; give one of reference"),
        ("mlx_lm exit *  # because", "no invariant is named 'exit'; give one of target_cache_offset"),
    ],
)
def test_a_malformed_line_is_an_error(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=r"known_failures\.txt:1") as caught:
        read(written(tmp_path, text))
    assert message in str(caught.value)


SUITE = """
    import pytest
    from dataclasses import dataclass

    @dataclass(frozen=True)
    class Point:
        engine: str
        path: str

    @pytest.mark.invariant("exit_state")
    @pytest.mark.parametrize("point", [Point("mlx_lm", "close/greedy/k1"), Point("mlx_lm", "close/greedy/k2")])
    def test_points(point):
        assert {condition}

    @pytest.mark.invariant("exit_state")
    @pytest.mark.parametrize("engine", ["mlx_lm", "reference"])
    def test_drawn(engine):
        assert engine == "reference", "must not run where a failure is known"
"""


def run_suite(pytester: pytest.Pytester, condition: str, *arguments: str) -> tuple[Ledger, pytest.HookRecorder]:
    """The little suite above, under a ledger of one line."""
    pytester.makeini("[pytest]\nmarkers = invariant(name): ...\n")
    pytester.makepyfile(SUITE.replace("{condition}", condition))
    ledger = Ledger([KnownFailure("mlx_lm", "exit_state", "close/*", "known")])
    return ledger, pytester.inline_run("-p", "no:cacheprovider", *arguments, plugins=[ledger])


def test_a_line_is_satisfied_by_one_failure_among_its_tests(pytester: pytest.Pytester) -> None:
    ledger, result = run_suite(pytester, 'point.path.endswith("k2")')
    assert result.ret == pytest.ExitCode.OK
    assert not ledger.out_of_date()


def test_a_line_that_no_failure_needs_any_more_fails_the_session(pytester: pytest.Pytester) -> None:
    ledger, result = run_suite(pytester, "True")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert ledger.out_of_date() == ["mlx_lm exit_state close/*"]


def test_a_line_is_not_judged_by_part_of_its_tests(pytester: pytest.Pytester) -> None:
    ledger, result = run_suite(pytester, "True", "-k", "point0")
    assert result.ret == pytest.ExitCode.OK
    assert not ledger.out_of_date()


def test_only_a_violation_is_an_expected_failure(pytester: pytest.Pytester) -> None:
    _, result = run_suite(pytester, "1 / 0")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
