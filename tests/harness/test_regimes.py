"""Every regime really forces what it says, on every engine, through the models alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from subjects import SEED, Runs

from reference.values import Round
from specproof.adapters.reference import ENGINE
from specproof.engine import Capabilities, Case, Engine
from specproof.errors import UnknownRegime
from specproof.grid import Grid
from specproof.pairs import tiny, toy
from specproof.regimes import REGIMES, regime
from specproof.runner import Run
from specproof.transforms import Scripted

RunsOf = Callable[[str], list[Run]]


@pytest.fixture
def runs_of(engine: Engine, runs: Runs) -> RunsOf:
    """Runs of the quick audit's cases of a regime, with one rule, by the engine under test."""
    rules = Grid(toy(), engine.capabilities, SEED, quick=True).rules

    def run_all(name: str) -> list[Run]:
        if not (engine.capabilities.rounds and REGIMES[name].runnable(engine.capabilities)):
            pytest.skip(f"{engine.name} does not show its rounds, or cannot be put under {name}")
        cases = REGIMES[name].cases(toy(), engine.capabilities, SEED, quick=True)
        return [runs.of(engine, case) for case in cases if case.rule == rules[-1]]

    return run_all


def rounds(run: Run) -> list[Round]:
    """The rounds of a run."""
    return [boundary.round for boundary in run.boundaries if boundary.round is not None]


def blocks(run: Run) -> list[Round]:
    """Its rounds with proposals."""
    return [done for done in rounds(run) if done.drafted]


def test_all_reject_accepts_nothing(runs_of: RunsOf) -> None:
    for run in runs_of("all_reject"):
        assert blocks(run), run.case.id
        assert all(done.num_accepted == 0 for done in blocks(run)), run.case.id


def test_all_accept_accepts_everything(runs_of: RunsOf) -> None:
    for run in runs_of("all_accept"):
        assert blocks(run), run.case.id
        assert all(done.num_accepted == len(done.drafted) for done in blocks(run)), run.case.id


def test_mixed_accepts_by_its_script(runs_of: RunsOf) -> None:
    seen = set()
    for run in runs_of("mixed"):
        assert blocks(run), run.case.id
        seen |= {done.num_accepted == len(done.drafted) for done in blocks(run)}
        if run.case.sampling.temperature == 0 and run.case.draft and isinstance(run.case.draft.transform, Scripted):
            for accepted, scripted in zip(_accepted(run), _scripted(run, run.case.draft.transform.script), strict=True):
                assert accepted == scripted, run.case.id
    assert seen == {True, False}


def _accepted(run: Run) -> list[int]:
    return [done.num_accepted for done in rounds(run)]


def _scripted(run: Run, script: tuple[bool, ...]) -> list[int]:
    """How many proposals of each round the script lets agree: the one at index i is made at position i - 1."""
    found = []
    for before, boundary in zip(run.boundaries, run.boundaries[1:], strict=False):
        assert boundary.round is not None
        first = len(run.case.prompt) + len(before.emitted)
        agrees = [script[(first + i - 1) % len(script)] for i in range(len(boundary.round.drafted))]
        found.append(agrees.index(False) if False in agrees else len(agrees))
    return found


def test_empty_has_rounds_without_proposals_before_the_last(runs_of: RunsOf) -> None:
    in_between = [not done.drafted for run in runs_of("empty") for done in rounds(run)[:-1]]
    assert any(in_between)


def test_budget_ends_turns_inside_blocks(runs_of: RunsOf) -> None:
    found = runs_of("budget")
    assert all(len(run.emitted) == run.case.max_tokens for run in found)
    assert {0, 1} <= {run.case.max_tokens for run in found}
    assert any(len(rounds(run)[-1].emitted) <= run.case.num_draft_tokens for run in found if rounds(run))


def test_stop_places_a_stop_token_as_accepted_rejected_correction_and_bonus(runs_of: RunsOf) -> None:
    roles = set()
    for run in runs_of("stop"):
        for done in rounds(run):
            roles |= _roles(done, run.case)
    assert roles == {"accepted", "rejected", "correction", "bonus"}


def _roles(done: Round, case: Case) -> set[str]:
    """The parts that a stop token plays in a round. A rejected one counts only if the round did not end the turn."""
    found = set()
    stopped = done.emitted[-1] in case.stop_tokens
    if stopped and len(done.emitted) <= done.num_accepted:
        found.add("accepted")
    elif stopped:
        found.add("bonus" if done.num_accepted == len(done.drafted) else "correction")
    if done.drafted[done.num_accepted :] and done.drafted[done.num_accepted] in case.stop_tokens and not stopped:
        found.add("rejected")
    return found


def test_close_happens_after_the_token_it_names(runs_of: RunsOf) -> None:
    for run in runs_of("close"):
        assert run.ending == "close", run.case.id
        assert len(run.emitted) == run.case.close_after, run.case.id


def test_abort_reaches_every_forward_of_both_models(engine: Engine, runs: Runs) -> None:
    """In the thorough setting, the first one: faults at every call from 0 on, until there are no more calls."""
    if not engine.capabilities.faults:
        pytest.skip(f"{engine.name} cannot be made to raise")
    cases = list(REGIMES["abort"].cases(toy(), engine.capabilities, SEED, quick=True))
    prefix = cases[0].id.rsplit("/", 1)[0]
    for model in ("target", "draft"):
        faults = {
            spec.fault.call: case
            for case in cases
            if case.id.rsplit("/", 1)[0] == prefix
            and (spec := getattr(case, model)).fault is not None
            and spec.fault.when == "after"
        }
        raised = {call: runs.of(engine, case).ending == "abort" for call, case in sorted(faults.items())}
        calls = [call for call, was_raised in raised.items() if was_raised]
        assert calls == list(range(len(calls))), "no call is left out"
        assert len(calls) >= 3
        assert len(calls) < len(raised), "the faults go beyond the last call"


def test_abort_is_by_the_injected_fault_and_nothing_else(runs_of: RunsOf) -> None:
    for run in runs_of("abort"):
        assert (run.ending == "abort") == run.injected, (run.case.id, run.error)


# ----------------------------------------------------------------------------------------------- the cases as such


@pytest.mark.parametrize("pair", [toy(), tiny()], ids=["toy", "tiny"])
@pytest.mark.parametrize("name", REGIMES)
def test_quick_cases_are_among_the_full_ones_and_ids_are_unique(name: str, pair: object) -> None:
    full = list(REGIMES[name].cases(pair, ENGINE.capabilities, 3, quick=False))
    quick = list(REGIMES[name].cases(pair, ENGINE.capabilities, 3, quick=True))
    by_id = {case.id: case for case in full}
    assert len(by_id) == len(full)
    assert 0 < len(quick) < len(full)
    assert all(by_id[case.id] == case for case in quick)


@pytest.mark.parametrize("name", REGIMES)
def test_full_cases_have_every_rule_and_every_k(name: str) -> None:
    cases = list(REGIMES[name].cases(toy(), ENGINE.capabilities, SEED, quick=False))
    assert {(case.rule, case.num_draft_tokens) for case in cases} >= {
        (rule, k) for rule in ENGINE.capabilities.rules for k in range(1, 7)
    }


@pytest.mark.parametrize("name", REGIMES)
def test_cases_ask_only_for_what_an_engine_declares(name: str) -> None:
    modest = Capabilities(rules=frozenset({"sampler_match"}), transforms=True, faults=True, early_close=True)
    for case in REGIMES[name].cases(toy(), modest, SEED, quick=False):
        assert case.rule == "sampler_match"
        assert case.drafter == "draft_model"
        assert case.min_prob == 0
        assert (case.sampling.top_k, case.sampling.top_p, case.sampling.has_penalties) == (0, 1.0, False)
    closed = Capabilities(rules=frozenset({"sampler_match"}))
    assert bool(list(REGIMES[name].cases(toy(), closed, SEED, quick=True))) == (name == "plain")


def test_another_seed_gives_other_prompts_and_the_same_ids() -> None:
    one, other = (list(REGIMES["plain"].cases(toy(), ENGINE.capabilities, seed, quick=True)) for seed in (1, 2))
    assert [case.id for case in one] == [case.id for case in other]
    assert [case.prompt for case in one] != [case.prompt for case in other]


def test_an_unknown_regime_is_refused_by_name() -> None:
    with pytest.raises(UnknownRegime, match=r"no regime is named 'all_accepted'; give one of plain, all_reject, "):
        regime("all_accepted")
