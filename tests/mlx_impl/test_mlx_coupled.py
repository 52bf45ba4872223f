"""The coupled rule on the device: what is emitted is a function of the seed and the target, whoever drafts."""

import functools
from dataclasses import replace

import pytest

mx = pytest.importorskip("mlx.core", reason="mlx is not installed; pip install 'specproof[mlx]'")

from mlx_decodes import lookup, make, rounds, run  # noqa: E402
from mlx_toys import SAMPLED, pair, toy  # noqa: E402

from mlx_impl import Decoder, DraftModel, KeyedRandomness  # noqa: E402
from mlx_impl.sampling import distributions  # noqa: E402

PROMPT = [3, 1, 4]
COUNT = 14
SEED = 5


def sampled_by_noise(model, sampling, seed, count):
    """Cache-free sampling: at each position the draw that the noise of that position makes."""
    history, randomness = list(PROMPT), KeyedRandomness(seed)
    for _ in range(count):
        p = distributions(model(mx.array([history]))[0, -1:], sampling)
        history.append(randomness.coupled_categorical(p, len(history)).item())
    return tuple(history[len(PROMPT) :])


@functools.cache
def plain(temperature=SAMPLED.temperature):
    return sampled_by_noise(toy("target"), replace(SAMPLED, temperature=temperature), SEED, COUNT)


def drafters(randomness, sampling):
    """Drafters of every kind, by name."""
    own = toy("target")
    return {
        "draft model": DraftModel(toy("draft"), sampling, randomness, draw=randomness.coupled_categorical),
        "the target itself": DraftModel(own, sampling, randomness, draw=randomness.coupled_categorical),
        "draws of its own": DraftModel(own, sampling, randomness),
        "prompt lookup": lookup(),
    }


def output(name, k, randomness, sampling=SAMPLED):
    settings = {"rule": "coupled", "sampling": sampling, "randomness": randomness, "num_draft_tokens": k}
    return run(Decoder(toy("target"), **settings), drafters(randomness, sampling)[name], PROMPT, COUNT)


@pytest.mark.parametrize("temperature", [0.3, 1.0, 1.7])
@pytest.mark.parametrize("k", [0, 1, 4])
@pytest.mark.parametrize("name", ["draft model", "the target itself", "draws of its own", "prompt lookup"])
def test_coupled_output_equals_plain_sampling_for_every_drafter_k_and_temperature(name, k, temperature):
    sampling = replace(SAMPLED, temperature=temperature)
    assert output(name, k, KeyedRandomness(SEED), sampling) == plain(temperature)


def test_another_temperature_gives_another_output():
    assert plain(0.3) != plain(1.7)


def test_another_seed_gives_another_output():
    assert output("draft model", 3, KeyedRandomness(SEED + 1)) != plain()


class OneKeyForEachCall(KeyedRandomness):
    def coupled_categorical(self, probabilities, position):
        return self.categorical(probabilities)


def test_noise_by_call_in_place_of_position_makes_the_output_depend_on_k():
    """The control."""
    outputs = {output("draft model", k, OneKeyForEachCall(SEED)) for k in (0, 1, 4)}
    assert len(outputs) > 1


def test_coupled_output_goes_on_unchanged_after_a_close():
    decoder, drafter = make("coupled", 4, seed=SEED)
    state = decoder.prefill(PROMPT, drafter, COUNT)
    iterator = decoder.generate(state)
    received = [next(iterator).token for _ in range(3)]
    iterator.close()
    assert (*received, *(item.token for item in decoder.generate(state))) == plain()


def test_a_copied_drafter_draws_by_the_same_noise():
    decoder, drafter = make("coupled", 4, *pair("all_accept"), seed=SEED)
    state = decoder.prefill(PROMPT, drafter, COUNT).copy()
    assert all(done.num_accepted == len(done.drafted) for done in rounds(decoder, state))


@pytest.mark.parametrize(("shares", "rejects"), [(True, False), (False, True)])
def test_a_drafter_like_the_target_is_never_rejected_if_and_only_if_it_shares_the_noise(shares, rejects):
    decoder, drafter = make("coupled", 4, *pair("all_accept"), seed=SEED)
    if not shares:
        drafter.draw = None
    found = rounds(decoder, decoder.prefill(PROMPT, drafter, COUNT))
    assert any(done.num_accepted < len(done.drafted) for done in found) == rejects
