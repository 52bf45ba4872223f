"""What mlx-lm's speculative decoding is publicly known to get wrong, on the same models and caches, right here.

The other side is tests/adapters/test_mlx_lm_findings.py, which shows each of them in mlx-lm itself.
"""

import pytest

mx = pytest.importorskip("mlx.core", reason="mlx is not installed; pip install 'specproof[mlx]'")
pytest.importorskip("mlx_lm", reason="mlx-lm is not installed; pip install 'specproof[mlx-lm]'")

from functools import cache  # noqa: E402

from mlx_decodes import greedy  # noqa: E402
from mlx_lm.models.cache import RotatingKVCache  # noqa: E402
from mlx_lm.utils import load_model  # noqa: E402
from mlx_toys import GREEDY, TOYS, Failing, InjectedError, Scripted  # noqa: E402

from mlx_impl import Decoder, DraftModel, KeyedRandomness  # noqa: E402
from mlx_impl.cache import make_cache  # noqa: E402
from reference.values import SamplingParams  # noqa: E402

PROMPT = [3, 1, 4, 1, 5]
COUNT = 24


@cache
def of_mlx_lm(name):
    model, _ = load_model(TOYS / name)
    return model


def decoder_of(model, k=3, **settings):
    settings = {"rule": "greedy", "sampling": GREEDY} | settings
    return Decoder(model, randomness=KeyedRandomness(0), num_draft_tokens=k, **settings)


def drafter_of(model, sampling=GREEDY, **settings):
    return DraftModel(model, sampling, KeyedRandomness(1), **settings)


def tokens(decoder, state):
    return [item.token for item in decoder.generate(state)]


def rotating(size):
    return [RotatingKVCache(max_size=size) for _ in of_mlx_lm("target").layers]


def in_a_window(model, prompt, count, size):
    """Greedy decoding one token at a time in a window, by the model alone."""
    layers, history = [RotatingKVCache(max_size=size) for _ in model.layers], list(prompt)
    logits = [model(mx.array([[token]]), cache=layers) for token in history][-1]
    while len(history) < len(prompt) + count:
        history.append(int(mx.argmax(logits[0, -1])))
        logits = model(mx.array([history[-1:]]), cache=layers)
    return history[len(prompt) :]


def test_d08_a_drafters_full_window_is_rolled_back():
    """ml-explore/mlx-lm#1109: there the offset of a drafter's window grows with every proposal, and never falls."""
    draft = Scripted(of_mlx_lm("target"), [True, False, True])
    decoder, drafter = decoder_of(of_mlx_lm("target")), drafter_of(draft, cache=rotating(8))
    state = decoder.prefill(PROMPT, drafter, COUNT)
    while state.finish is None:
        decoder.step(state)
        assert {layer.offset for layer in drafter.cache} == {len(state.history) - 1}
        assert {layer.offset for layer in state.target_cache} == {len(state.history) - 1}


@pytest.mark.parametrize("size", [6, 8, 11])
def test_d13_a_targets_window_that_fills_up_is_rolled_back(size):
    """ml-explore/mlx-lm#1423: there the output differs from plain decoding once the window is full."""
    target = of_mlx_lm("target")
    decoder = decoder_of(target)
    state = decoder.prefill(PROMPT, drafter_of(of_mlx_lm("draft")), COUNT, rotating(size))
    assert tokens(decoder, state) == in_a_window(target, PROMPT, COUNT, size)


@pytest.mark.parametrize("when", ["before", "half-way", "after"])
@pytest.mark.parametrize("failing", ["target", "draft"])
def test_d51_an_exception_in_a_round_leaves_both_caches_at_the_boundary_before_it(failing, when):
    """ml-explore/mlx-lm PR#1528: there the clean-up trims by the counts of two different rounds."""
    models = {"target": of_mlx_lm("target"), "draft": of_mlx_lm("draft")}
    models[failing] = Failing(models[failing], 4, when, InjectedError())
    decoder, drafter = decoder_of(models["target"]), drafter_of(models["draft"])
    state = decoder.prefill(PROMPT, drafter, COUNT)
    received = []
    with pytest.raises(InjectedError):
        received.extend(item.token for item in decoder.generate(state))
    held = {layer.offset for layer in (*state.target_cache, *drafter.cache)}
    assert held == {len(PROMPT) + len(state.emitted) - 1}
    assert (*received, *tokens(decoder, state)) == greedy(of_mlx_lm("target"), PROMPT, COUNT)


def test_d52_a_second_turn_on_the_returned_caches_is_a_fresh_run_wherever_the_first_one_ended():
    """There the rows left behind depend on whether the last token was a proposal, a correction or a bonus."""
    target = of_mlx_lm("target")
    for count in range(1, 13):
        decoder, drafter = decoder_of(target), drafter_of(of_mlx_lm("draft"))
        state = decoder.prefill(PROMPT, drafter, count)
        first = tokens(decoder, state)
        held = {layer.offset for layer in (*state.target_cache, *drafter.cache)}
        assert held == {len(PROMPT) + count - 1}
        following = decoder.extend(state, [7, 2], 6)
        assert tuple(tokens(decoder, following)) == greedy(target, [*PROMPT, *first, 7, 2], 6)


def test_d70_minus_one_is_no_limit():
    """There it becomes a negative number of proposals, and the first token raises."""
    decoder = decoder_of(of_mlx_lm("target"))
    iterator = decoder.generate(decoder.prefill(PROMPT, drafter_of(of_mlx_lm("draft")), -1))
    received = tuple(next(iterator).token for _ in range(COUNT))
    iterator.close()
    assert received == greedy(of_mlx_lm("target"), PROMPT, COUNT)


@pytest.mark.parametrize("k", [0, 1, 4])
def test_d95_penalties_see_the_whole_prompt_as_in_plain_decoding(k):
    """ml-explore/mlx-lm#1773: there the speculative path shows processors the last token of the prompt only."""
    penalised = SamplingParams(temperature=0.0, presence_penalty=2.0, repetition_penalty=1.3)
    target, seen = of_mlx_lm("target"), []

    def recorder(context, logits):
        seen.append(tuple(context.tolist()))
        return logits

    decoder = decoder_of(target, k, sampling=penalised, processors=[recorder])
    state = decoder.prefill(PROMPT, drafter_of(of_mlx_lm("draft"), penalised), COUNT)
    received = tokens(decoder, state)
    history = tuple(PROMPT) + tuple(received)
    assert seen[0] == tuple(PROMPT)
    assert set(seen) >= {history[:length] for length in range(len(PROMPT), len(history))}
    assert received == plain_with_penalties(target, penalised)


def plain_with_penalties(model, sampling):
    """One whole pass for each token, the penalties written out once more."""
    history = list(PROMPT)
    while len(history) < len(PROMPT) + COUNT:
        logits = model(mx.array([history]), cache=make_cache(model))[0, -1].tolist()
        for token in set(history):
            value = logits[token]
            logits[token] = value / sampling.repetition_penalty if value > 0 else value * sampling.repetition_penalty
            logits[token] -= sampling.presence_penalty
        history.append(logits.index(max(logits)))
    return history[len(PROMPT) :]
