"""What `mlx_lm` shows its logits processors when it drafts, reproduced with `mlx_lm` and `mlx` alone (0.32.2).

As in `test_mlx_lm_findings`: a test that fails on a later version is good news, and goes with the defect.
"""

from __future__ import annotations

import pytest

pytest.importorskip("mlx_lm", reason="needs the extra mlx-lm")

import mlx.core as mx
from mlx_lm.generate import generate_step, speculative_generate_step
from mlx_lm.sample_utils import make_logits_processors
from mlx_lm_alone import PROMPT, greedy, load


@pytest.fixture(scope="module")
def target():
    return load("target")


@pytest.fixture(scope="module")
def drafter():
    return load("draft")


def contexts_of(produce):
    """What a processor is shown while `produce(processors)` runs."""
    seen = []

    def note(tokens, logits):
        seen.append(tokens.tolist())
        return logits

    list(produce([note]))
    return seen


def test_d95_processors_see_the_last_prompt_token_in_place_of_the_prompt(target, drafter):
    """https://github.com/ml-explore/mlx-lm/issues/1773, fixed for the plain path by pull/1777."""
    prompt = mx.array(PROMPT)
    plain = contexts_of(lambda p: generate_step(prompt, target, logits_processors=p, max_tokens=1))
    drafted = contexts_of(
        lambda p: speculative_generate_step(prompt, target, drafter, logits_processors=p, max_tokens=1)
    )
    assert plain[0] == PROMPT
    assert drafted[0] == PROMPT[-1:]


def test_d95_a_presence_penalty_changes_greedy_decoding_when_a_drafter_is_added(target, drafter):
    """https://github.com/ml-explore/mlx-lm/issues/1773. From a prompt of one token the two paths agree."""

    def decode(prompt, produce, *models):
        penalty = make_logits_processors(presence_penalty=5.0)
        return [item[0] for item in produce(mx.array(prompt), *models, max_tokens=8, logits_processors=penalty)]

    for prompt, agree in (([7, 8, 9, 10, 4], False), ([4], True)):
        plain = decode(prompt, generate_step, target)
        assert (decode(prompt, speculative_generate_step, target, drafter) == plain) == agree


def first_distribution(produce, *models, window):
    """The distribution of the first token after `PROMPT_OF_TWINS`, under a frequency penalty with that window."""
    penalty = make_logits_processors(frequency_penalty=2.0, frequency_context_size=window)
    tokens = produce(mx.array(PROMPT_OF_TWINS), *models, max_tokens=1, logits_processors=penalty)
    return mx.softmax(next(tokens)[1].reshape(-1), axis=-1)


PROMPT_OF_TWINS = [2, 1, 1]
"""Within a window of two, token 1 has come up twice: a frequency penalty counts it twice."""


@pytest.mark.parametrize(("window", "agree"), [(1, True), (2, False), (0, False)])
def test_d95_a_window_that_reaches_into_the_prompt_changes_what_the_first_token_is_drawn_from(
    target, drafter, window, agree
):
    """https://github.com/ml-explore/mlx-lm/issues/1773. A window of one holds the one prompt token that is shown."""
    plain = first_distribution(generate_step, target, window=window)
    drafted = first_distribution(speculative_generate_step, target, drafter, window=window)
    variation = 0.5 * mx.sum(mx.abs(plain - drafted)).item()
    assert (variation < 1e-5) == agree


def test_d95_the_second_token_of_a_short_window_is_drawn_from_the_right_distribution(target, drafter):
    """https://github.com/ml-explore/mlx-lm/issues/1773. The control: nothing else is wrong with a penalty window."""
    distributions = []
    for produce, models in ((generate_step, (target,)), (speculative_generate_step, (target, drafter))):
        force = make_logits_processors(logit_bias={5: 50.0})
        penalty = make_logits_processors(frequency_penalty=2.0, frequency_context_size=2)
        tokens = produce(mx.array(PROMPT_OF_TWINS), *models, max_tokens=2, logits_processors=penalty + force)
        (first, _, *_), (_, logprobs, *_) = tokens
        assert first == 5
        distributions.append(mx.softmax(logprobs.reshape(-1) - mx.where(mx.arange(32) == 5, 50.0, 0.0)))
    assert 0.5 * mx.sum(mx.abs(distributions[0] - distributions[1])).item() < 1e-4


def test_without_proposals_processors_forget_what_was_emitted(target, drafter):
    """No public thread found. With num_draft_tokens = 0 each round cuts the token that it should have kept."""
    tokens = greedy(target, PROMPT, 3)
    settings = {"num_draft_tokens": 0, "max_tokens": 3}
    seen = contexts_of(
        lambda p: speculative_generate_step(mx.array(PROMPT), target, drafter, logits_processors=p, **settings)
    )
    assert seen == [[PROMPT[-1]], [tokens[0]], [tokens[1]]]
