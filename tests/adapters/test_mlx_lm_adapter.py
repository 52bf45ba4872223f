"""The adapter of `mlx_lm` shows what the package does: its rounds, its caches, its contexts, and nothing of its own.

What the package gets wrong is in `test_mlx_lm_findings.py`; here the adapter is on trial.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("mlx_lm", reason="needs the extra mlx-lm")

import mlx.core as mx
from adapter_cases import GREEDY, PROMPT, WARM, case, take
from mlx_lm.generate import speculative_generate_step
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.utils import load_model

from reference.values import SamplingParams
from specproof.adapters.mlx_lm import ENGINE
from specproof.engine import ExactEngine, ModelSpec, ResumableEngine
from specproof.oracle import Oracle
from specproof.pairs import toy, trained

REGIMES = ("plain", "all_reject", "mixed", "all_accept")
SAMPLED = "sampler_match"
PENALTIES = {"repetition_penalty": 1.3, "presence_penalty": 0.4, "frequency_penalty": 0.2}


def finished(case_):
    """A session that ran to its own end, and its tokens."""
    session = ENGINE.start(case_)
    return session, list(session)


def rounds_with_start(session):
    """Every round with the tokens emitted before it, and the boundary it led to."""
    return [
        (before.emitted, after.round, after)
        for before, after in zip(session.boundaries, session.boundaries[1:], strict=False)
    ]


def test_it_is_an_engine_that_can_be_resumed_and_enumerated():
    assert isinstance(ENGINE, ResumableEngine)
    assert isinstance(ENGINE, ExactEngine)
    assert ENGINE.version.startswith("0.")


def test_a_checkpoint_stored_in_float16_is_run_in_float32():
    stored, _ = load_model(trained().draft)
    assert stored.model.embed_tokens.weight.dtype == mx.float16, "or there would be nothing to see"
    pair = case(target=ModelSpec(trained().draft), draft=ModelSpec(trained().draft), max_tokens=3)
    session, _ = finished(pair)
    assert {layer.keys.dtype for layer in session.caches.target} == {mx.float32}


def test_a_lean_session_gives_the_same_tokens_and_looks_no_forward_up(monkeypatch):
    monkeypatch.setattr("specproof.adapters.mlx_lm.MODELS.remembered", None)
    lean = list(ENGINE.start_lean(case("mixed", SAMPLED, WARM, k=3)))
    monkeypatch.undo()
    assert lean == finished(case("mixed", SAMPLED, WARM, k=3))[1]


# ---------------------------------------------------------------------------------------------------- rounds


@pytest.mark.parametrize("sampling", [GREEDY, WARM], ids=["T0", "T0.8"])
@pytest.mark.parametrize("k", [1, 4])
@pytest.mark.parametrize("regime", REGIMES)
def test_a_round_emits_its_accepted_proposals_and_one_token_more(regime, k, sampling):
    session, tokens = finished(case(regime, SAMPLED, sampling, k=k, max_tokens=10))
    rounds = [boundary.round for boundary in session.boundaries[1:]]
    assert session.boundaries[0].round is None
    assert session.boundaries[0].emitted == ()
    assert [token for done in rounds for token in done.emitted] == tokens
    for done in rounds:
        a = done.num_accepted
        assert done.emitted[:a] == done.drafted[:a]
        assert len(done.emitted) == a + 1 or (done.finish == "length" and len(done.emitted) == a == len(done.drafted))
        assert a == len(done.drafted) or len(done.emitted) == a or done.emitted[a] != done.drafted[a]
    assert [done.finish for done in rounds] == [None] * (len(rounds) - 1) + ["length"]
    assert [len(done.drafted) for done in rounds] == [min(k, 10 - len(b.emitted)) for b in session.boundaries[:-1]]


@pytest.mark.parametrize(("regime", "accepted"), [("all_reject", {0}), ("all_accept", {4}), ("mixed", {0, 1, 2})])
def test_forced_regimes_are_seen_as_what_they_are(regime, accepted):
    session, _ = finished(case(regime, k=4, max_tokens=15))
    assert {boundary.round.num_accepted for boundary in session.boundaries[1:-1]} <= accepted


@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize("k", [1, 3])
def test_caches_between_rounds_follow_the_deferred_schedule(regime, k):
    session, _ = finished(case(regime, k=k, max_tokens=9))
    for boundary in session.boundaries[:-1]:
        committed = len(PROMPT) + len(boundary.emitted) - 1
        done = boundary.round
        full = done is not None and done.num_accepted == len(done.drafted)
        assert set(boundary.observation.target_offsets) == {committed}
        assert set(boundary.observation.draft_offsets) == {committed - full}


def test_rows_at_a_boundary_are_those_of_the_committed_tokens():
    session, _ = finished(case("mixed", k=3, max_tokens=12))
    oracle = Oracle(ModelSpec(toy().target))
    for boundary in session.boundaries[:-1]:
        committed = (*PROMPT, *boundary.emitted)[:-1]
        for seen, wanted in zip(boundary.observation.target_rows, oracle.rows(committed), strict=True):
            np.testing.assert_allclose(seen.keys, wanted.keys, atol=1e-4)
            np.testing.assert_allclose(seen.values, wanted.values, atol=1e-4)


@pytest.mark.parametrize("length", [1, 2, 513, 514])
def test_prefill_is_told_from_drafting_for_prompts_of_any_length(length):
    prompt = tuple(int(token) for token in np.random.default_rng(length).integers(32, size=length))
    session, tokens = finished(case("all_accept", k=2, max_tokens=6, prompt=prompt))
    assert set(session.boundaries[0].observation.target_offsets) == {length - 1}
    assert set(session.boundaries[0].observation.draft_offsets) == {length - 1}
    assert [boundary.emitted for boundary in session.boundaries] == [(), tuple(tokens[:3]), tuple(tokens)]


def test_without_proposals_every_round_is_one_token_of_the_target():
    session, tokens = finished(case("plain", k=0, max_tokens=4))
    assert [boundary.round.drafted for boundary in session.boundaries[1:]] == [()] * 4
    assert [boundary.round.emitted for boundary in session.boundaries[1:]] == [(token,) for token in tokens]
    assert all(set(b.observation.draft_offsets) == {len(PROMPT) - 1} for b in session.boundaries)  # never fed


def test_a_budget_of_nothing_ends_in_a_round_that_emits_nothing():
    session, tokens = finished(case("plain", max_tokens=0))
    assert tokens == []
    assert session.boundaries[0].round is None
    assert session.boundaries[1].round.emitted == ()


# ------------------------------------------------------------------------------------------- nothing of its own


def bare(case_, count):
    """The same turn without adapter: tokens and, after closing, the offsets of target and drafter."""
    target, draft = (load_model(spec.folder)[0] for spec in (case_.target, case_.draft))
    caches = make_prompt_cache(target) + make_prompt_cache(draft)
    produced = speculative_generate_step(
        mx.array(case_.prompt), target, draft, num_draft_tokens=case_.num_draft_tokens, max_tokens=case_.max_tokens,
        prompt_cache=caches,
    )  # fmt: skip
    tokens = [token for token, _, _ in (next(produced) for _ in range(count))]
    if count == case_.max_tokens:
        assert next(produced, None) is None
    produced.close()
    offsets = [cache.offset for cache in caches]
    return tokens, tuple(offsets[: len(target.layers)]), tuple(offsets[len(target.layers) :])


@pytest.mark.parametrize("regime", ["plain", "all_accept"])
@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("count", [1, 3, 4])
def test_the_bare_package_gives_the_same_tokens_and_leaves_the_same_offsets(regime, k, count):
    for max_tokens in (count, 20):
        turn = case(regime, k=k, max_tokens=max_tokens)
        session = ENGINE.start(turn)
        tokens = take(iter(session), count)
        if count == max_tokens:
            assert next(iter(session), None) is None
        session.close()
        seen = session.observe()
        assert (tokens, seen.target_offsets, seen.draft_offsets) == bare(turn, count)


def test_a_seed_fixes_the_tokens_and_another_one_changes_them():
    turn = case("plain", SAMPLED, WARM, max_tokens=8)
    first, again, other = (finished(replace(turn, seed=seed))[1] for seed in (1, 1, 2))
    assert first == again
    assert first != other


# --------------------------------------------------------------------------------------- distributions, contexts


@pytest.mark.parametrize(
    "sampling",
    [
        WARM,
        replace(WARM, top_k=5),
        replace(WARM, top_p=0.9),
        replace(WARM, min_p=0.1),
    ],
    ids=["T", "top_k", "top_p", "min_p"],
)
def test_p_and_q_are_those_of_the_models_recomputed_without_a_cache(sampling):
    session, _ = finished(case("plain", SAMPLED, sampling, k=3, max_tokens=12))
    target, draft = Oracle(ModelSpec(toy().target)), Oracle(ModelSpec(toy().draft))
    for emitted, done, boundary in rounds_with_start(session):
        sequence, first = (*PROMPT, *emitted, *done.drafted), len(PROMPT) + len(emitted)
        p, q = target.distributions(sequence, first, sampling), draft.distributions(sequence, first, sampling)
        for i, seen in enumerate(boundary.draft_distributions):
            np.testing.assert_allclose(seen.dense(), q[i], atol=1e-4)
            assert done.p[i] == pytest.approx(p[i][done.drafted[i]], abs=1e-4)
            assert done.q[i] == pytest.approx(q[i][done.drafted[i]], abs=1e-4)
        for i in range(done.num_tested):
            assert done.sum_min[i] == pytest.approx(np.minimum(p[i], q[i]).sum(), abs=1e-4)
            assert done.sum_prod[i] == pytest.approx(p[i] @ q[i], abs=1e-4)


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParams(temperature=0.8, **PENALTIES),
        SamplingParams(temperature=0.8, penalty_window=3, **PENALTIES),
        SamplingParams(temperature=0.8, logit_bias={0: 1.5, 1: -1.5}, **PENALTIES),
    ],
    ids=["all", "window", "bias"],
)
def test_the_packages_own_penalties_mean_what_sampling_params_mean(sampling):
    """From a prompt of one token, where its processors see the whole history."""
    session, _ = finished(case("plain", SAMPLED, sampling, k=3, max_tokens=12, prompt=(7,)))
    draft = Oracle(ModelSpec(toy().draft))
    for emitted, done, boundary in rounds_with_start(session):
        q = draft.distributions((7, *emitted, *done.drafted), 1 + len(emitted), sampling)
        for i, seen in enumerate(boundary.draft_distributions):
            np.testing.assert_allclose(seen.dense(), q[i], atol=1e-4)
        assert done.p == ()


def test_contexts_are_what_the_targets_processors_saw_and_are_shown_only_where_there_are_processors():
    penalised = case("plain", SAMPLED, SamplingParams(temperature=0.8, presence_penalty=0.4), k=2, prompt=(7,))
    session, _ = finished(penalised)
    assert session.boundaries[0].contexts == ()
    for emitted, done, boundary in rounds_with_start(session):
        expected = [(7, *emitted, *done.drafted[:i]) for i in range(done.num_accepted + 1)]
        assert list(boundary.contexts) == expected
    session, _ = finished(case("plain", SAMPLED, WARM, k=2))
    assert all(boundary.contexts is None for boundary in session.boundaries)
