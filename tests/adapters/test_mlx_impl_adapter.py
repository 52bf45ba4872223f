"""The adapter of `mlx_impl` shows the decoder's rounds and caches as they are, and drives it as a user would."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("mlx.core", reason="needs the extra mlx")

import mlx.core as mx
from adapter_cases import GREEDY, PROMPT, WARM, case, law, take, target_law, tiny_case

from mlx_impl.decoder import Decoder
from mlx_impl.drafters import DraftModel
from mlx_impl.transformer import load
from reference.errors import CheckpointError, InvalidSetting
from reference.randomness import SeededRandomness
from reference.values import SamplingParams
from specproof.adapters.mlx_impl import ENGINE, HostChoices, MlxImplEngine
from specproof.engine import ExactEngine, Fault, ModelSpec, ResumableEngine
from specproof.errors import InjectedFault
from specproof.oracle import Oracle
from specproof.pairs import toy

REGIMES = ("plain", "all_reject", "mixed", "all_accept")
PENALISED = SamplingParams(temperature=0.8, presence_penalty=0.4)


def finished(case_):
    """A session that ran to its own end, and its tokens."""
    session = ENGINE.start(case_)
    return session, list(session)


def lookup_case(**changes):
    """A case that drafts by prompt lookup."""
    return replace(case(**changes), draft=None, drafter="prompt_lookup")


def test_it_is_an_engine_that_can_be_resumed_and_enumerated():
    assert isinstance(ENGINE, ResumableEngine)
    assert isinstance(ENGINE, ExactEngine)


# ------------------------------------------------------------------------------------------------------ boundaries


@pytest.mark.parametrize("rule", ["greedy", "sampler_match", "rejection", "block", "coupled"])
@pytest.mark.parametrize("regime", REGIMES)
def test_every_boundary_shows_the_round_that_led_to_it_and_caches_of_the_committed_tokens(regime, rule):
    sampling = GREEDY if rule == "greedy" else WARM
    session, tokens = finished(case(regime, rule, sampling, k=3, max_tokens=10))
    first, *later = session.boundaries
    assert (first.round, len(first.emitted)) == (None, 1)
    emitted = list(first.emitted)
    for boundary in later:
        a = boundary.round.num_accepted
        assert boundary.round.emitted[:a] == boundary.round.drafted[:a]
        assert len(boundary.round.emitted) == a + 1
        emitted += boundary.round.emitted
        assert boundary.emitted == tuple(emitted)
    assert emitted == tokens
    for boundary in session.boundaries:
        rows = len(PROMPT) + len(boundary.emitted) - 1
        assert boundary.observation.target_offsets == (rows,) * 3
        assert set(boundary.observation.draft_offsets) == {rows}


def test_a_round_is_shown_with_its_first_token():
    session = ENGINE.start(case("all_accept", k=3, max_tokens=10))
    tokens = iter(session)
    assert len(session.boundaries) == 0
    counts = []
    for _ in range(6):
        next(tokens)
        counts.append((len(session.boundaries), len(session.boundaries[-1].emitted)))
    assert counts == [(1, 1), (2, 5), (2, 5), (2, 5), (2, 5), (3, 9)]


def test_q_is_the_drafters_distribution_recomputed_without_a_cache():
    session, _ = finished(case("plain", "rejection", WARM, k=3, max_tokens=10))
    draft = Oracle(ModelSpec(toy().draft))
    for before, boundary in zip(session.boundaries, session.boundaries[1:], strict=False):
        history = (*PROMPT, *before.emitted)
        q = draft.distributions((*history, *boundary.round.drafted), len(history), WARM)
        assert len(boundary.draft_distributions) == len(boundary.round.drafted)
        for i, seen in enumerate(boundary.draft_distributions):
            np.testing.assert_allclose(seen.dense(), q[i], atol=1e-4)


def test_contexts_are_the_history_and_the_proposals_and_are_shown_only_where_there_are_penalties():
    session, _ = finished(case("plain", "rejection", PENALISED, k=2))
    assert session.boundaries[0].contexts == (PROMPT,)
    for before, boundary in zip(session.boundaries, session.boundaries[1:], strict=False):
        drafted = boundary.round.drafted
        expected = [(*PROMPT, *before.emitted, *drafted[:i]) for i in range(len(drafted) + 1)]
        assert list(boundary.contexts) == expected
    session, _ = finished(case("plain", "rejection", WARM, k=2))
    assert all(boundary.contexts is None for boundary in session.boundaries)


def test_prompt_lookup_has_no_drafter_cache_to_show():
    session, tokens = finished(lookup_case(prompt=(1, 2, 3, 1, 2, 3), max_tokens=6))
    assert len(tokens) == 6
    assert any(boundary.round.drafted for boundary in session.boundaries[1:])
    assert all(boundary.observation.draft_offsets is None for boundary in session.boundaries)


def test_a_floor_above_one_makes_every_round_empty():
    session, _ = finished(case("plain", max_tokens=4, min_prob=1.5))
    assert [boundary.round.drafted for boundary in session.boundaries[1:]] == [()] * 3


def test_a_budget_of_nothing_emits_nothing():
    session, tokens = finished(case("plain", max_tokens=0))
    assert tokens == []
    assert [boundary.emitted for boundary in session.boundaries] == [()]
    assert session.observe().target_offsets == (len(PROMPT) - 1,) * 3


def test_a_seed_fixes_the_tokens_and_another_one_changes_them():
    turn = case("plain", "rejection", WARM, max_tokens=10)
    first, again, other = (finished(replace(turn, seed=seed))[1] for seed in (1, 1, 2**32 - 1))
    assert first == again
    assert first != other


# ------------------------------------------------------------------------------------------- ends, further turns


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_after_a_close_the_caches_hold_what_the_caller_received_and_a_further_turn_goes_on(count):
    turn = case("mixed", k=3, max_tokens=10)
    session = ENGINE.start(turn)
    tokens = take(iter(session), count)
    session.close()
    session.close()
    assert list(session) == []
    assert session.observe().target_offsets == (len(PROMPT) + count - 1,) * 3
    following = list(ENGINE.resume(session, tokens, (4,), replace(turn, max_tokens=4)))
    assert following == list(Oracle(turn.target).greedy((*PROMPT, *tokens, 4), 4))


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("name", ["target", "draft"])
@pytest.mark.parametrize("call", [0, 2])
def test_a_fault_reaches_the_caller_and_a_further_turn_without_it_goes_on(name, call, when):
    turn = case("mixed", k=2, max_tokens=10)
    faulty = replace(turn, **{name: replace(getattr(turn, name), fault=Fault(call, when))})
    session = ENGINE.start(faulty)
    tokens = []
    with pytest.raises(InjectedFault, match=f"{name} forward {call}, {when} it ran"):
        tokens.extend(session)
    following = list(ENGINE.resume(session, tokens, (), replace(turn, max_tokens=4)))
    assert following == list(Oracle(turn.target).greedy((*PROMPT, *tokens), 4))


def test_a_stop_token_is_emitted_and_ends_the_turn():
    turn = case("all_accept", k=3, max_tokens=20)
    _, tokens = finished(turn)
    stop = tokens[2]
    session, stopped = finished(replace(turn, stop_tokens=frozenset({stop})))
    assert stopped == tokens[: tokens.index(stop) + 1]
    assert session.boundaries[-1].emitted == tuple(stopped)


# ------------------------------------------------------------------------------------------------------ exact law


@pytest.mark.parametrize("rule", ["sampler_match", "rejection", "block"])
def test_its_law_is_the_targets_and_a_warmer_target_is_told_apart(rule):
    turn = tiny_case(rule, k=1, max_tokens=2, sampling=SamplingParams(temperature=0.9))
    found = law(ENGINE, turn)
    assert sum(found.values()) == pytest.approx(1, abs=1e-12)

    def distance(wanted):
        return 0.5 * sum(abs(found[tokens] - wanted[tokens]) for tokens in wanted)

    assert distance(target_law(turn)) < 1e-5
    assert distance(target_law(replace(turn, sampling=SamplingParams(temperature=1.1)))) > 1e-2


def test_a_copied_exact_session_goes_its_own_way_and_keys_tell_states_apart():
    turn = case("plain", k=2, max_tokens=12)
    session = ENGINE.start_exact(turn, SeededRandomness(0))
    twin = session.copy()
    assert session.key() == twin.key()
    session.step()
    assert session.key() != twin.key()
    assert len(twin.emitted) == 1
    twin.step()
    assert session.key() == twin.key()
    assert session.emitted == twin.emitted


def test_host_choices_ask_row_by_row_and_answer_on_the_device():
    asked = []

    class Noted:
        def bernoulli(self, probability):
            asked.append(probability)
            return probability > 0.5

        def categorical(self, probabilities):
            asked.append(probabilities.tolist())
            return int(probabilities.argmax())

    choices = HostChoices(Noted())
    coins = choices.bernoulli(mx.array([0.25, 0.75]))
    tokens = choices.categorical(mx.array([[0.25, 0.75], [1.0, 0.0]]))
    assert (coins.tolist(), coins.dtype) == ([False, True], mx.bool_)
    assert (tokens.tolist(), tokens.dtype) == ([1, 0], mx.uint32)
    assert asked == [0.25, 0.75, [0.25, 0.75], [1.0, 0.0]]
    assert choices.bernoulli(mx.zeros((0,))).shape == (0,)


# ------------------------------------------------------------------------------------- wrong engines, bad input


class ForgetfulDraftModel(DraftModel):
    """Never forwards the last proposal after a full acceptance."""

    def commit(self, history):
        self.rollback(history)


def test_an_engine_made_of_a_wrong_drafter_shows_its_caches_as_they_are():
    engine = MlxImplEngine("forgetful", Decoder, ForgetfulDraftModel)
    session = engine.start(case("all_accept", k=2, max_tokens=8))
    assert len(list(session)) == 8
    second = session.boundaries[1]
    assert second.round.num_accepted == 2
    assert set(second.observation.draft_offsets) == {len(PROMPT) + len(second.emitted) - 2}


def test_a_session_of_another_engine_is_refused():
    with pytest.raises(InvalidSetting, match="session is a object; give one that this engine started"):
        ENGINE.resume(object(), (), (), case())


def test_a_folder_that_is_no_checkpoint_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match=r"has no config.json; give a Hugging Face Llama folder"):
        ENGINE.start(case(target=ModelSpec(tmp_path)))


def test_a_checkpoint_stored_in_float16_is_run_in_float32(tmp_path):
    for file in toy().target.glob("*.json"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    weights = mx.load(str(toy().target / "model.safetensors"))
    mx.save_safetensors(
        str(tmp_path / "model.safetensors"), {name: weight.astype(mx.float16) for name, weight in weights.items()}
    )
    halved = replace(lookup_case(), target=ModelSpec(tmp_path))
    session, _ = finished(halved)
    held = {layer.keys.dtype for layer in session.target_cache}
    assert held == {mx.float32}
    assert load(tmp_path).model.embed_tokens.weight.dtype == mx.float16, "or there would be nothing to see"
