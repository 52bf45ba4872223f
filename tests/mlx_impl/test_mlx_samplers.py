"""Opaque samplers in mlx-lm's convention: their own law is kept, and no probability is claimed that nobody knows."""

from collections import defaultdict

import numpy as np
import pytest
import scipy

mx = pytest.importorskip("mlx.core", reason="mlx is not installed; pip install 'specproof[mlx]'")

from mlx_decodes import greedy, make, rounds, run  # noqa: E402
from mlx_toys import GREEDY, SAMPLED, Choices, Wrapped, toy  # noqa: E402

from mlx_impl import Decoder, DraftModel, KeyedRandomness  # noqa: E402
from mlx_impl.acceptance import rule_for  # noqa: E402
from reference.errors import InvalidSetting, NonFiniteLogits  # noqa: E402
from reference.values import SamplingParams  # noqa: E402
from specproof.enumeration import EnumeratedRandomness  # noqa: E402

PROMPT = [1, 2]
LEVEL = 1e-4


def started(sampler, count, k=2, decoder_class=Decoder, models=("tiny-target", "tiny-draft")):
    """A decoder and a state, the sampler drawing for both models."""
    target, draft = (toy(model) if isinstance(model, str) else model for model in models)
    randomness = KeyedRandomness(0)
    decoder = decoder_class(target, sampling=sampler, randomness=randomness, num_draft_tokens=k)
    return decoder, decoder.prefill(PROMPT, DraftModel(draft, sampler, randomness), count)


def emitted(*args, **settings):
    decoder, state = started(*args, **settings)
    rounds(decoder, state)
    return state.emitted


def of_the_likelier_two(log_p):
    """What the sampler of the exact law draws from: [V] -> [V]."""
    weights = np.where(log_p > log_p.min(), np.exp(log_p - log_p.max()), 0)
    return weights / weights.sum()


def law_of_plain_decoding(count):
    """The law of `count` tokens of the tiny target under that sampler."""
    law = {(): 1.0}
    for _ in range(count):
        law = {
            (*tokens, token): mass * p
            for tokens, mass in law.items()
            for token, p in enumerate(of_the_likelier_two(logits_behind([*PROMPT, *tokens])))
        }
    return law


def logits_behind(history):
    return np.array(toy("tiny-target")(mx.array([history]))[0, -1], dtype=np.float64)


class Forgetful(Wrapped):
    """Gives the same logits at every position, so that the tokens of one long decode are independent."""

    def __init__(self, inner, logits):
        super().__init__(inner)
        self.logits = mx.array(logits)

    def change(self, logits, positions):
        return mx.broadcast_to(self.logits, logits.shape)


class AcceptsEverything(Decoder):
    """Wrong on purpose."""

    def _verify(self, state, block):
        verdict = super()._verify(state, block)
        object.__setattr__(verdict, "num_accepted", len(block))
        return verdict


@pytest.mark.parametrize("decoder_class", [Decoder, AcceptsEverything])
def test_the_law_of_an_opaque_sampler_is_that_of_plain_decoding_with_it(decoder_class):
    """By enumeration of all that it draws, for the target and for the drafter; with a control."""
    choices, law = EnumeratedRandomness(), defaultdict(float)

    def sampler(log_p):
        assert log_p.shape == (1, 3)
        return mx.array([choices.categorical(of_the_likelier_two(np.array(log_p[0], dtype=np.float64)))])

    for _ in choices.walk():
        found = emitted(sampler, 3, k=1, decoder_class=decoder_class)
        law[found] += choices.weight
    variation = sum(abs(law[tokens] - mass) for tokens, mass in law_of_plain_decoding(3).items()) / 2
    assert variation < 1e-5 if decoder_class is Decoder else variation > 0.01


@pytest.mark.parametrize("decoder_class", [Decoder, AcceptsEverything])
def test_xtc_of_mlx_lm_keeps_its_law_though_no_parameters_say_it(decoder_class):
    """A mixture: half of the time all tokens that are likelier than the least likely of those over 0.1 are left out."""
    sample_utils = pytest.importorskip("mlx_lm.sample_utils", reason="needs the extra mlx-lm")
    sampler = sample_utils.make_sampler(temp=1.0, xtc_probability=0.5, xtc_threshold=0.1)
    models = [
        Forgetful(toy(name), np.log([*p, *[1e-30] * 29]).astype(np.float32))
        for name, p in (("target", (0.6, 0.32, 0.08)), ("draft", (0.2, 0.2, 0.6)))
    ]
    mx.random.seed(11)
    found = emitted(sampler, 300, decoder_class=decoder_class, models=models)
    wanted = np.array([0.6, 0.32, 0.08]) / 2 + np.array([0.0, 0.8, 0.2]) / 2
    p_value = scipy.stats.chisquare(np.bincount(found, minlength=3), wanted * 300).pvalue
    assert (p_value > LEVEL) == (decoder_class is Decoder)


@pytest.mark.parametrize("settings", [{"temp": 0.0}, {"temp": 0.8, "top_p": 0.9, "min_p": 0.05, "top_k": 20}], ids=str)
def test_samplers_of_mlx_lm_draw_as_they_are_and_the_rounds_hold(settings):
    sample_utils = pytest.importorskip("mlx_lm.sample_utils", reason="needs the extra mlx-lm")
    mx.random.seed(2)
    decoder, state = started(sample_utils.make_sampler(**settings), 12, 3, models=("target", "draft"))
    done = rounds(decoder, state)
    assert decoder.rule.name == "sampler_match"
    assert [len(entry.emitted) - entry.num_accepted for entry in done] == [1] * len(done)
    if settings["temp"] == 0:
        assert state.emitted == greedy(toy("target"), PROMPT, 12)


def test_logits_processors_of_mlx_lm_come_before_the_sampler_and_decode_as_plainly():
    sample_utils = pytest.importorskip("mlx_lm.sample_utils", reason="needs the extra mlx-lm")
    processors = sample_utils.make_logits_processors(
        logit_bias={3: 0.5}, repetition_penalty=1.4, presence_penalty=0.3, frequency_penalty=0.2
    )

    def decoded(k, processors):
        decoder = Decoder(
            toy("target"), sampling=sample_utils.make_sampler(0.0), randomness=KeyedRandomness(0), num_draft_tokens=k,
            processors=processors,
        )  # fmt: skip
        return run(decoder, DraftModel(toy("draft"), GREEDY, KeyedRandomness(0)), PROMPT, 12)

    assert decoded(3, processors) == decoded(0, processors) != decoded(3, ())


def test_no_probability_is_reported_of_a_sampler_that_shows_none():
    decoder, state = started(lambda log_p: mx.argmax(log_p, axis=-1), 6)
    done = decoder.step(state)
    assert len(done.drafted) > 0
    assert done.p == done.q == done.sum_min == done.sum_prod == done.log_probabilities == ()
    assert len(state.tokens) == 1 + len(done.emitted)
    assert {item.log_probability for item in state.tokens} == {None}
    assert state.statistics.sum_min is None


def test_a_sampler_is_shown_log_probabilities_that_no_probability_could_hold():
    """exp(-200) is 0 in float32, but a sampler of high temperature draws such a token."""
    shown = []

    def sampler(log_p):
        shown.append(log_p)
        return mx.argmin(log_p, axis=-1)

    def steep(tokens, logits):
        return mx.arange(3.0)[None] * -200

    decoder = Decoder(
        toy("tiny-target"), sampling=sampler, randomness=KeyedRandomness(0), num_draft_tokens=0, processors=[steep]
    )
    assert decoder.prefill(PROMPT, DraftModel(toy("tiny-draft"), GREEDY, KeyedRandomness(0)), 1).emitted == (2,)
    assert shown[0].tolist() == [[0.0, -200.0, -400.0]]


@pytest.mark.parametrize("token", [3, -1])
def test_a_sampler_that_draws_what_is_no_token_is_an_error(token):
    with pytest.raises(NonFiniteLogits, match=r"left the target no distribution.* a sampler that draws what is"):
        started(lambda log_p: mx.array([token]), 4)


# ---------------------------------------------------------------------------------------------------- default rule


@pytest.mark.parametrize(
    ("sampling", "name"),
    [(GREEDY, "greedy"), (SAMPLED, "rejection"), (lambda log_p: mx.argmax(log_p, axis=-1), "sampler_match")],
    ids=["temperature 0", "parameters", "sampler"],
)
def test_the_rule_goes_by_what_is_known_of_the_sampling_unless_it_is_given(sampling, name):
    decoder = Decoder(toy("target"), sampling=sampling, randomness=KeyedRandomness(0), num_draft_tokens=2)
    assert decoder.rule.name == name
    assert rule_for(sampling, "sampler_match").name == "sampler_match"


@pytest.mark.parametrize("name", ["greedy", "rejection", "block", "coupled"])
def test_rules_that_go_by_probabilities_are_refused_for_an_opaque_sampler(name):
    with pytest.raises(InvalidSetting, match=rf"rule '{name}' goes by probabilities, which an opaque sampler does not"):
        rule_for(lambda log_p: mx.argmax(log_p, axis=-1), name)


def test_a_floor_on_probabilities_is_refused_for_an_opaque_sampler():
    with pytest.raises(InvalidSetting, match=r"min_prob is 0.5, but an opaque sampler shows no probabilities; give 0"):
        DraftModel(toy("draft"), lambda log_p: mx.argmax(log_p, axis=-1), KeyedRandomness(0), min_prob=0.5)


def test_a_drafter_with_an_opaque_sampler_is_certain_of_its_draws():
    _, drafter = make("rejection", sampling=SamplingParams())
    drafter.sampling = lambda log_p: mx.argmin(log_p, axis=-1)
    block = drafter.propose([1, 2, 3], None, 2)
    assert block.probabilities.tolist() == np.eye(32)[block.tokens.tolist()].tolist()


def test_given_the_draw_that_is_true_so_that_a_target_of_known_sampling_keeps_its_law():
    choices, law = EnumeratedRandomness(), defaultdict(float)

    def sampler(log_p):
        return mx.array([choices.categorical(of_the_likelier_two(np.array(log_p[0], dtype=np.float64)))])

    known = SamplingParams(top_k=2)
    decoder = Decoder(toy("tiny-target"), sampling=known, randomness=Choices(choices), num_draft_tokens=1)
    for _ in choices.walk():
        state = decoder.prefill(PROMPT, DraftModel(toy("tiny-draft"), sampler, KeyedRandomness(0)), 3)
        rounds(decoder, state)
        law[state.emitted] += choices.weight
    assert sum(abs(law[tokens] - mass) for tokens, mass in law_of_plain_decoding(3).items()) / 2 < 1e-5
