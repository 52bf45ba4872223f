"""Expected failures are kept in one file whose lines must be right, and must still be needed."""

from __future__ import annotations

from pathlib import Path

import pytest
from known_failures import FILE, KnownFailure, Ledger, read

pytest_plugins = ["pytester"]

LINE = "mlx_lm exit_state close/*/after1 close/*/after2 : 1 row too many  # https://example.org/1"


def written(folder: Path, text: str) -> Path:
    path = folder / "known_failures.txt"
    path.write_text(text, encoding="utf-8")
    return path


def test_the_projects_own_file_is_well_formed() -> None:
    for line in read(FILE):
        assert "http" in line.reason, f"{line}: give a public reference"


def test_a_line_is_matched_by_engine_invariant_and_pattern(tmp_path: Path) -> None:
    (line,) = read(written(tmp_path, f"# comment\n\n{LINE}\n"))
    patterns = ("close/*/after1", "close/*/after2")
    assert line == KnownFailure("mlx_lm", "exit_state", patterns, "1 row too many", "https://example.org/1")
    assert line.is_about("mlx_lm", "exit_state", "close/greedy/k4/after2")
    assert not line.is_about("mlx_lm", "exit_state", "close/greedy/k4/after3")
    assert not line.is_about("mlx_lm", "exit_state", "stop/greedy/k4/after1")
    assert not line.is_about("mlx_lm", "cache_content", "close/greedy/k4/after1")
    assert not line.is_about("mlx_impl", "exit_state", "close/greedy/k4/after1")


def test_a_line_excuses_a_message_that_holds_its_own() -> None:
    line = KnownFailure("mlx_lm", "exit_state", ("close/*",), "target cache holds * 1 row too many", "known")
    assert line.excuses("the target cache holds 9 rows, expected 8: 1 row too many. Trim it.")
    assert not line.excuses("the target cache holds 9 rows, expected 7: 2 rows too many. Trim it.")
    assert not line.excuses("the draft cache holds 9 rows, expected 8: 1 row too many. Trim it.")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("mlx_lm exit_state close/* : too many", "is not `engine invariant pattern ... : message  # reason`; give"),
        ("mlx_lm exit_state close/*  # because", "is not `engine invariant pattern ... : message  # reason`; give"),
        (
            "mlx_lm exit_state : too many  # because",
            "is not `engine invariant pattern ... : message  # reason`; give",
        ),
        ("mlx exit_state * : x  # because", "known_failures.txt:1: no engine is named 'mlx'; give one of reference"),
        (
            "mlx_lm exit * : x  # because",
            "known_failures.txt:1: no invariant is named 'exit'; give one of target",
        ),
    ],
)
def test_a_malformed_line_is_an_error(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=r"known_failures\.txt:1") as caught:
        read(written(tmp_path, text))
    assert message in str(caught.value)


SUITE = """
    import pytest
    from dataclasses import dataclass
    from specproof.results import Violation
    from subjects import Broken

    @dataclass(frozen=True)
    class Point:
        engine: str
        path: str

    def broken(*messages):
        raise Broken("broken", tuple(Violation("exit_state", "case", None, message) for message in messages))

    @pytest.mark.invariant("exit_state")
    @pytest.mark.parametrize("point", [Point("mlx_lm", "close/greedy/k1"), Point("mlx_lm", "close/greedy/k2")])
    def test_points(point):
        {body}

    @pytest.mark.invariant("exit_state")
    @pytest.mark.parametrize("engine", ["mlx_lm", "reference"])
    def test_drawn(engine):
        assert engine == "reference", "must not run where a failure is known"
"""


def run_suite(pytester: pytest.Pytester, body: str, *arguments: str, pattern: str = "close/*") -> pytest.HookRecorder:
    """The little suite above, under a ledger of one line."""
    pytester.makeini("[pytest]\nmarkers = invariant(name): ...\n")
    pytester.makepyfile(SUITE.replace("{body}", body))
    ledger = Ledger([KnownFailure("mlx_lm", "exit_state", (pattern,), "too many", "known")])
    return pytester.inline_run("-p", "no:cacheprovider", *arguments, plugins=[ledger])


def failed(result: pytest.HookRecorder) -> list[str]:
    """The names of the tests that failed."""
    return [report.nodeid.split("::")[1] for report in result.getfailures()]


def test_a_line_is_met_by_a_violation_at_each_of_its_points(pytester: pytest.Pytester) -> None:
    result = run_suite(pytester, 'broken("1 row too many", "2 rows too many")')
    assert result.ret == pytest.ExitCode.OK


def test_a_point_that_holds_where_a_line_expects_a_violation_fails(pytester: pytest.Pytester) -> None:
    result = run_suite(pytester, 'point.path.endswith("k2") or broken("1 row too many")')
    assert failed(result) == ["test_points[point1]"]
    assert "expects of close/greedy/k2 what does not happen" in str(result.getfailures()[0].longrepr)


def test_a_pattern_that_no_point_matches_fails_the_session(pytester: pytest.Pytester) -> None:
    for pattern, status in (("close/*/k3", pytest.ExitCode.USAGE_ERROR), ("close/*", pytest.ExitCode.OK)):
        assert run_suite(pytester, 'broken("1 row too many")', pattern=pattern).ret == status


def test_a_line_is_not_judged_by_a_part_of_its_points(pytester: pytest.Pytester) -> None:
    result = run_suite(pytester, 'broken("1 row too many")', "-k", "point0", pattern="close/*/k[12]")
    assert result.ret == pytest.ExitCode.OK


@pytest.mark.parametrize("body", ['broken("1 row too few")', 'broken("1 row too many", "1 row too few")', "1 / 0",
                                  "assert False, 'too many'"])  # fmt: skip
def test_only_the_violation_that_a_line_names_is_an_expected_failure(pytester: pytest.Pytester, body: str) -> None:
    assert failed(run_suite(pytester, body)) == ["test_points[point0]", "test_points[point1]"]


def test_an_invariant_without_any_point_is_no_error(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nmarkers = invariant(name): ...\n")
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.invariant("block_table")
        @pytest.mark.parametrize("point", [])
        def test_points(point):
            raise AssertionError
        """
    )
    ledger = Ledger([KnownFailure("mlx_lm", "exit_state", ("close/*",), "too many", "known")])
    assert pytester.inline_run("-p", "no:cacheprovider", plugins=[ledger]).ret == pytest.ExitCode.OK
