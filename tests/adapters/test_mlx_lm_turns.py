"""How the adapter of `mlx_lm` ends turns, goes on with them, enumerates them, and refuses them."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("mlx_lm", reason="needs the extra mlx-lm")

from adapter_cases import PROMPT, WARM, case, law, take, target_law, tiny_case

from reference.errors import CheckpointError, InvalidSetting
from reference.values import SamplingParams
from specproof.adapters.mlx_lm import ENGINE
from specproof.engine import Fault, ModelSpec
from specproof.enumeration import EnumeratedRandomness
from specproof.errors import InjectedFault
from specproof.oracle import Oracle


def finished(case_):
    """A session that ran to its own end, and its tokens."""
    session = ENGINE.start(case_)
    return session, list(session)


# ------------------------------------------------------------------------------------------------ ends of a turn


@pytest.mark.parametrize("place", range(6))
def test_a_stop_token_is_emitted_and_ends_the_turn(place):
    turn = case("all_accept", k=3, max_tokens=20)
    _, tokens = finished(turn)
    stop = tokens[place]
    session, stopped = finished(replace(turn, stop_tokens=frozenset({stop})))
    assert stopped == tokens[: tokens.index(stop) + 1]
    assert session.boundaries[-1].round.finish == "stop"
    assert session.boundaries[-1].emitted == tuple(stopped)
    session.close()
    assert session.boundaries[-1].round.finish == "stop"


def test_closing_inside_a_round_reaches_no_boundary_and_closing_behind_it_does():
    for count, boundaries in ((1, 1), (2, 1), (3, 1), (4, 2), (5, 2), (8, 3)):
        session = ENGINE.start(case("all_accept", k=3, max_tokens=20))
        tokens = take(iter(session), count)
        session.close()
        assert len(session.boundaries) == boundaries
        assert list(session) == []
        assert session.emitted == tuple(tokens)
        if count % 4 == 0:
            assert session.boundaries[-1].emitted == tuple(tokens)
            assert session.boundaries[-1].observation.target_offsets == session.observe().target_offsets


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("name", ["target", "draft"])
@pytest.mark.parametrize("call", [0, 1, 3])
def test_a_fault_reaches_the_caller_and_the_caches_are_shown_as_they_were_left(name, call, when):
    turn = case("mixed", k=2, max_tokens=12)
    turn = replace(turn, **{name: replace(getattr(turn, name), fault=Fault(call, when))})
    session = ENGINE.start(turn)
    tokens = []
    with pytest.raises(InjectedFault, match=f"{name} forward {call}, {when} it ran"):
        tokens.extend(session)
    assert session.boundaries == () or session.boundaries[-1].emitted == session.emitted
    if call == 0 and name == "draft":
        assert session.boundaries == ()
        rows = len(PROMPT) - 1 if when == "after" else 0
        assert set(session.observe().draft_offsets) == {rows}
        assert set(session.observe().target_offsets) == {0}


# ------------------------------------------------------------------------------------------------- further turns


@pytest.mark.parametrize("added", [(), (2,), (5, 6, 2)])
def test_a_further_turn_is_fed_the_pending_token_and_the_new_ones(added):
    """From an end that leaves both caches right: a correction."""
    turn = case("all_reject", k=3, max_tokens=4)
    session, tokens = finished(turn)
    assert set(session.observe().target_offsets) == {len(PROMPT) + 3}
    following = list(ENGINE.resume(session, tokens, added, turn))
    assert following == list(Oracle(turn.target).greedy((*PROMPT, *tokens, *added), 4))


@pytest.mark.parametrize("name", ["target", "draft"])
def test_after_a_failed_prefill_a_further_turn_starts_afresh(name):
    turn = case("all_reject", k=3, max_tokens=4)
    faulty = replace(turn, **{name: replace(getattr(turn, name), fault=Fault(0, "after"))})
    session = ENGINE.start(faulty)
    with pytest.raises(InjectedFault):
        list(session)
    assert list(ENGINE.resume(session, (), (5,), turn)) == list(Oracle(turn.target).greedy((*PROMPT, 5), 4))


def test_a_further_turn_counts_its_own_forwards_for_a_fault():
    turn = case("all_reject", k=3, max_tokens=4)
    session, tokens = finished(turn)
    faulty = replace(turn, target=replace(turn.target, fault=Fault(0, "before")))
    with pytest.raises(InjectedFault, match="target forward 0"):
        list(ENGINE.resume(session, tokens, (), faulty))


def test_a_session_of_another_engine_is_refused():
    with pytest.raises(InvalidSetting, match="session is a object; give one that this engine started"):
        ENGINE.resume(object(), (), (), case())


# ----------------------------------------------------------------------------------------------------- exact law


def test_its_law_is_the_targets_and_a_warmer_target_is_told_apart():
    turn = tiny_case("sampler_match", k=1, max_tokens=2, sampling=SamplingParams(temperature=0.9, top_k=2))
    found = law(ENGINE, turn)
    assert sum(found.values()) == pytest.approx(1, abs=1e-12)

    def distance(wanted):
        return 0.5 * sum(abs(found[tokens] - wanted[tokens]) for tokens in wanted)

    assert distance(target_law(turn)) < 1e-5
    assert distance(target_law(replace(turn, sampling=SamplingParams(temperature=1.1, top_k=2)))) > 1e-2


def test_an_exact_session_cannot_be_copied_and_its_key_holds_tokens_and_caches():
    turn = case("plain", max_tokens=3)
    sessions = [ENGINE.start_exact(turn, EnumeratedRandomness()) for _ in range(2)]
    assert sessions[0].copy() is None
    assert sessions[0].key() == sessions[1].key()
    sessions[0].step()
    assert sessions[0].key() != sessions[1].key()
    sessions[1].step()
    assert sessions[0].key() == sessions[1].key()


# ------------------------------------------------------------------------------------------------------ bad input


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rule": "rejection"}, "rule is 'rejection'; mlx_lm has only sampler_match"),
        ({"sampling": WARM}, "temperature is 0.8 under rule 'greedy'.*give rule 'sampler_match'"),
        ({"min_prob": 0.5}, "min_prob is 0.5; mlx_lm always drafts its full block, give 0"),
        ({"draft": None, "drafter": "prompt_lookup"}, "mlx_lm needs a draft model, give one"),
    ],
)
def test_what_the_package_has_no_notion_of_is_refused(changes, message):
    with pytest.raises(InvalidSetting, match=message):
        ENGINE.start(replace(case(), **changes))


def test_a_folder_that_is_no_checkpoint_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match=r"mlx_lm cannot load .*; give a Hugging Face folder with config.json"):
        ENGINE.start(case(target=ModelSpec(tmp_path)))
