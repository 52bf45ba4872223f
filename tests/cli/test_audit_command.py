"""`specproof audit`: exit status, messages and what it writes."""

import json
import shlex
import shutil
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import command_line
import pytest

from specproof.adapters.reference import ENGINE
from specproof.audit import CHECKS
from specproof.engine import Engine
from specproof.invariants import RUN_INVARIANTS
from specproof.laws import LAWS
from specproof.pairs import Pair, tiny, toy
from specproof.report import check_row
from specproof.results import CheckResult, Violation

QUICK = ("--quick", "--regime", "all_reject")
SHOWN = [name for name, check in RUN_INVARIANTS.items() if check.observable(ENGINE.capabilities)]
"""The invariants that the oracle can show: it has no block table."""
FORGETFUL, MUTE = "cli_engines:FORGETFUL", "cli_engines:MUTE"


run = partial(command_line.run, "audit")
refused = partial(command_line.refused, "audit")


@pytest.fixture(scope="module")
def two_engines(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, dict[str, Any], str]:
    """One audit of a right and a wrong engine: its result, its JSON and its Markdown."""
    folder = tmp_path_factory.mktemp("report")
    result = run("reference", FORGETFUL, *QUICK, "--json", folder / "a.json", "--markdown", folder / "a.md")
    return result, json.loads((folder / "a.json").read_text()), (folder / "a.md").read_text()


def test_a_right_engine_holds_everything_and_exits_0() -> None:
    result = run("reference", *QUICK)
    assert result.exit_code == 0
    assert f"holds {len(SHOWN)} checks" in result.stdout
    assert "FAILS" not in result.stdout


def test_a_wrong_engine_exits_1_with_a_witness_that_names_the_place_and_the_formula(two_engines: Any) -> None:
    result, _, _ = two_engines
    assert result.exit_code == 1
    assert "cli_engines:FORGETFUL fails draft_cache_offset" in result.stdout
    assert "regime all_reject, rule greedy, k = 4, temperature 0, prompt " in result.stdout
    assert "= prompt " in result.stdout
    assert "further violation" in result.stdout


def test_the_table_has_a_row_for_each_invariant_and_a_column_for_each_engine(two_engines: Any) -> None:
    lines = two_engines[0].stdout.splitlines()
    assert lines[0].split() == ["reference", FORGETFUL]
    rows = {line.split()[0]: line for line in lines[2 : 2 + len(RUN_INVARIANTS)]}
    assert list(rows) == list(RUN_INVARIANTS)
    assert "holds (" in rows["draft_cache_offset"]
    assert "FAILS (" in rows["draft_cache_offset"]


def test_the_command_of_a_witness_shows_the_same_violation_again(two_engines: Any) -> None:
    witness = two_engines[1]["engines"][FORGETFUL]["checks"]["draft_cache_offset"]["witness"]
    program, audit, *arguments = shlex.split(witness["reproduce"])
    assert (program, audit) == ("specproof", "audit")
    again = run(*arguments)
    assert again.exit_code == 1
    assert witness["message"] in " ".join(again.stdout.split())


def test_the_json_has_the_documented_form(two_engines: Any) -> None:
    _, found, _ = two_engines
    assert set(found) == {"engines", "seed", "settings"}
    assert list(found["engines"]) == ["reference", FORGETFUL]
    for engine in found["engines"].values():
        assert set(engine) == {"version", "checks"}
        assert list(engine["checks"]) == list(RUN_INVARIANTS)
        for check in engine["checks"].values():
            assert set(check) == {"status", "cases", "not_shown", "note", "witness"}
            assert check["status"] in {"holds", "fails", "not_observable"}
            assert (check["witness"] is not None) == (check["status"] == "fails")
    witness = found["engines"][FORGETFUL]["checks"]["draft_cache_offset"]["witness"]
    assert witness["regime"] == "all_reject"
    assert witness["further_violations"] > 0
    assert found["settings"]["quick"] is True


def test_the_markdown_has_the_table_the_witness_and_what_the_checks_mean(two_engines: Any) -> None:
    _, found, page = two_engines
    witness = found["engines"][FORGETFUL]["checks"]["draft_cache_offset"]["witness"]
    assert (
        f"| `emitted_block` | holds ({found['engines']['reference']['checks']['emitted_block']['cases']} cases)" in page
    )
    assert f"> {witness['message']}" in page
    assert witness["reproduce"] in page
    assert all(check_row(name) in page for name in RUN_INVARIANTS)


def test_what_an_engine_cannot_show_is_not_observable_and_never_passed(tmp_path: Path) -> None:
    result = run(MUTE, "--quick", "--json", tmp_path / "a.json", "--check", "cache_content", "--check", "exact_law")
    assert result.exit_code == 0
    assert result.stdout.count("not observable") == 3  # two cells and the summary
    assert "shows nothing to check" in result.stdout
    (engine,) = json.loads((tmp_path / "a.json").read_text())["engines"].values()
    assert engine["checks"]["cache_content"] == {
        "status": "not_observable",
        "cases": 0,
        "not_shown": [],
        "note": "the engine cannot show what this looks at",
        "witness": None,
    }


def test_an_engine_that_shows_only_tokens_is_still_held_to_parity() -> None:
    result = run(MUTE, "--quick", "--check", "greedy_parity")
    assert result.exit_code == 1
    assert "cli_engines:MUTE fails greedy_parity" in result.stdout


def test_a_failure_of_a_peer_is_reported_but_does_not_count() -> None:
    result = run("reference", "--peer", FORGETFUL, *QUICK)
    assert result.exit_code == 0
    assert "cli_engines:FORGETFUL fails draft_cache_offset" in result.stdout
    assert "(peer) fails" in result.stdout


def test_an_engine_that_raises_fails_a_check_and_does_not_end_the_audit() -> None:
    result = run("cli_engines:RAISING", "reference", *QUICK)
    assert result.exit_code == 1
    assert "ZeroDivisionError: the block has no length" in result.stdout
    assert f"reference 0.1.0 holds {len(SHOWN)} checks" in result.stdout


def test_an_engine_that_cannot_be_looked_at_fails_a_check() -> None:
    result = run("cli_engines:MALFORMED", "--quick", "--regime", "plain")
    assert result.exit_code == 1
    assert "ZeroDivisionError" in result.stdout


def test_an_interrupted_audit_exits_130_and_writes_nothing(tmp_path: Path) -> None:
    result = run("cli_engines:INTERRUPTED", *QUICK, "--json", tmp_path / "a.json")
    assert result.exit_code == 130
    assert "interrupted; no report was written" in result.stderr
    assert not (tmp_path / "a.json").exists()


def test_laws_are_checked_on_the_tiny_pair_and_shown_again_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def check(engine: Engine, pair: Pair, seed: int, quick: bool) -> CheckResult:
        assert (engine.name, pair, quick) == ("reference", tiny(), True)
        return CheckResult.judged(3, [Violation("exact_law", "exact_law/block/k2/T1", None, f"seed {seed} is unlucky")])

    monkeypatch.setitem(LAWS, "exact_law", replace(LAWS["exact_law"], check=check))
    result = run("reference", "--quick", "--seed", 7, "--check", "exact_law")
    assert result.exit_code == 1
    assert "FAILS (1 of 3)" in result.stdout
    assert "seed 7 is unlucky" in result.stdout
    assert "specproof audit reference --check exact_law --seed 7 --quick" in result.stdout


def test_a_law_that_raises_is_a_failed_check(monkeypatch: pytest.MonkeyPatch) -> None:
    def check(engine: Engine, pair: Pair, seed: int, quick: bool) -> CheckResult:
        raise ZeroDivisionError("no samples")

    monkeypatch.setitem(LAWS, "exact_law", replace(LAWS["exact_law"], check=check))
    result = run("reference", "--check", "exact_law")
    assert result.exit_code == 1
    assert "ZeroDivisionError: no samples" in result.stdout


def test_any_pair_of_folders_can_take_the_place_of_the_toy_pair(tmp_path: Path) -> None:
    pair = ("--target", tiny().target, "--draft", tiny().draft)
    result = run(FORGETFUL, *QUICK, *pair, "--json", tmp_path / "a.json")
    found = json.loads((tmp_path / "a.json").read_text())
    assert found["settings"]["target"] == str(tiny().target)
    assert f"--target {tiny().target} --draft {tiny().draft}" in result.stdout


def test_the_engines_of_the_package_are_listed_in_the_help() -> None:
    help_text = run("--help").stdout
    assert "reference, mlx_impl, mlx_lm or module:attribute" in " ".join(help_text.replace("│", " ").split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["oracle"], "no engine is named 'oracle'; give one of reference, mlx_impl, mlx_lm, mlx_impl-llama, "),
        (["no_such_module:ENGINE"], "cannot import 'no_such_module'"),
        (["cli_engines:NOTHING"], "has no attribute 'NOTHING'"),
        (["cli_engines:NOT_AN_ENGINE"], "is a int; it needs name, version, capabilities"),
        (["reference", "--regime", "chaos"], "no regime is named 'chaos'; give one of plain,"),
        (["reference", "--check", "smell"], "no check is named 'smell'; give one of target_cache_offset,"),
        (["reference", "--case", "plain/greedy/k1/T0/p00"], "did you mean plain/greedy/k1/T0/p0"),
        (["reference", "--case", "?"], "ids are printed with every witness"),
        (["reference", "--check", "exact_law", "--regime", "plain"], "drop --regime and --case"),
        (["reference", "--target", str(toy().target)], "only one of --target and --draft is given"),
        (["reference", "--target", str(toy().target), "--draft", str(tiny().draft)], "32 tokens, the drafter 3"),
        (["reference", "--target", "no/such/folder", "--draft", str(toy().draft)], "no/such/folder"),
        (["reference", "--json", "no/such/folder/a.json"], "there is no folder no/such/folder"),
        (["reference", "--markdown", "/"], "is a folder"),
        (["reference", "--json", "same.out", "--markdown", "same.out"], "both name same.out; give two files"),
        (["reference", "--peer", "reference"], "given both as an engine and as a --peer"),
        (["reference", "--regime", "plain", "--case", "mixed/greedy/k1/T0/p0"], "drop that selection"),
        ([":ENGINE"], "lacks a module or an attribute"),
        (["exiting_module:ENGINE"], "importing 'exiting_module' raised SystemExit(0)"),
        (["cli_engines:NeedsArguments"], "it is called without arguments"),
        (["cli_engines:FALSE_CLAIMS"], "capabilities (a Capabilities)"),
        (["reference", "--seed", "-1"], "--seed"),
        (["reference", "--sead", "1"], "No such option"),
    ],
)
def test_a_wrong_call_exits_2_and_says_what_to_do(arguments: list[str], message: str) -> None:
    assert message in " ".join(refused(*arguments).replace("│", " ").split())


@pytest.mark.parametrize("subject", ["cli_engines:EXITING", "cli_engines:RAISING_AT_ONCE"])
def test_an_engine_that_exits_or_raises_fails_every_check_it_claims_and_passes_none(subject: str) -> None:
    result = run(subject, "--quick", "--regime", "plain", "--check", "greedy_parity", "--check", "target_cache_offset")
    assert result.exit_code == 1
    assert "fails 2 of 2 checks" in result.stdout


def test_a_cache_without_layers_is_a_failure_and_not_a_cache_of_the_right_length() -> None:
    result = run("cli_engines:LAYERLESS", "--quick", "--regime", "plain", "--check", "target_cache_offset")
    assert result.exit_code == 1
    assert "shows no layers at all" in " ".join(result.stdout.split())


def test_what_cannot_even_be_asked_whether_it_applies_fails_and_is_not_called_unobservable() -> None:
    result = run("cli_engines:SHAPELESS", "--quick", "--regime", "plain", "--check", "target_cache_offset")
    assert result.exit_code == 1
    assert "what the engine shows cannot be judged: AttributeError" in " ".join(result.stdout.split())


def test_tokenizers_that_number_a_token_differently_are_refused(tmp_path: Path) -> None:
    shutil.copytree(toy().draft, tmp_path / "draft")
    tokenizer = json.loads((tmp_path / "draft" / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary["t3"], vocabulary["t4"] = vocabulary["t4"], vocabulary["t3"]
    (tmp_path / "draft" / "tokenizer.json").write_text(json.dumps(tokenizer))
    message = refused("reference", "--target", toy().target, "--draft", tmp_path / "draft")
    assert "'t3' is 3 for the target, 4 for the drafter" in message


def test_a_reader_that_closes_the_pipe_does_not_change_the_exit_status() -> None:
    command = f"{shlex.quote(sys.executable)} -m specproof audit reference --quick --regime empty --check counters"
    script = f"{command} | true; exit ${{PIPESTATUS[0]}}"
    result = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert "BrokenPipe" not in result.stderr


def test_a_markdown_report_without_jinja_is_refused_before_the_audit(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    message = refused("reference", "--markdown", tmp_path / "a.md")
    assert "pip install 'specproof[report]'" in message


def test_engines_whose_packages_are_missing_are_left_out_when_none_is_named() -> None:
    arguments = ["specproof", "audit", *QUICK, "--check", "emitted_block"]
    without_mlx = f"import sys; sys.modules['mlx'] = None; sys.argv = {arguments}; import specproof.cli as c; c.main()"
    result = subprocess.run([sys.executable, "-c", without_mlx], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert "left out: engine 'mlx_impl' needs a package that is not installed" in result.stderr
    assert "pip install 'specproof[mlx-lm]'" in result.stderr
    assert result.stdout.splitlines()[0].split() == ["reference"]


def test_every_check_says_what_it_means_and_what_it_cannot_see() -> None:
    for name, check in CHECKS.items():
        assert check.name == name
        assert check.statement
        assert check.blind_spot
