"""The package's sampler draws from what `SamplingParams` says, as far as the adapter's docstring claims it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("mlx_lm", reason="needs the extra mlx-lm")

import mlx.core as mx
from adapter_cases import case, tiny_case
from mlx_lm.sample_utils import make_sampler

from reference.sampling import distribution
from reference.values import SamplingParams
from specproof.adapters.mlx_lm import ENGINE
from specproof.adapters.mlx_lm_sampling import sampler_of
from specproof.exact_law import measure

LOGITS = np.array([2.0, 1.1, 0.5, 0.0, -0.5, -1.0])
DRAWS = 20_000
FIVE_SIGMA = 5.0

SAMPLINGS = [
    SamplingParams(),
    SamplingParams(temperature=0.7),
    SamplingParams(temperature=1.7, top_k=3),
    SamplingParams(temperature=0.5, top_p=0.9),
    SamplingParams(temperature=1.6, min_p=0.3),
    SamplingParams(temperature=0.8, top_k=4, top_p=0.8, min_p=0.1),
    SamplingParams(top_k=6),
    SamplingParams(top_k=60),
    SamplingParams(temperature=1e-4),
    SamplingParams(temperature=0.0),
]


def frequencies(sampler, logits=LOGITS):
    """How often each token was drawn."""
    mx.random.seed(11)
    logprobs = mx.array(logits - np.log(np.exp(logits).sum()), mx.float32)
    drawn = np.array(sampler(mx.broadcast_to(logprobs, (DRAWS, len(logits)))))
    return np.bincount(drawn, minlength=len(logits)) / DRAWS


def standard_scores(found, wanted):
    """Distances in standard deviations; infinite where a token without mass was drawn."""
    spread = np.sqrt(wanted * (1 - wanted) / DRAWS)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(found == wanted, 0.0, np.abs(found - wanted) / spread)


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=repr)
def test_it_draws_from_the_distribution_of_the_sampling_parameters(sampling):
    found = frequencies(sampler_of(sampling))
    assert standard_scores(found, distribution(LOGITS, sampling, ())).max() < FIVE_SIGMA


@pytest.mark.parametrize(
    ("sampling", "agree"),
    [
        (SamplingParams(top_p=0.8), True),
        (SamplingParams(min_p=0.3), True),
        (SamplingParams(top_k=3, min_p=0.2), True),
        (SamplingParams(top_p=0.8, min_p=0.3), True),
        (SamplingParams(temperature=1.7, top_k=3), True),
        (SamplingParams(top_k=4, top_p=0.89), False),
        (SamplingParams(temperature=0.5, top_p=0.9), False),
        (SamplingParams(temperature=1.6, min_p=0.3), False),
    ],
    ids=repr,
)
def test_the_packages_own_order_of_filters_agrees_only_at_temperature_one_or_for_top_k_alone(sampling, agree):
    """No defect: it documents no order. But it is not the order of `SamplingParams`, and so not left to it."""
    own = make_sampler(temp=sampling.temperature, top_p=sampling.top_p, min_p=sampling.min_p, top_k=sampling.top_k)
    scores = standard_scores(frequencies(own), distribution(LOGITS, sampling, ()))
    assert (scores.max() < FIVE_SIGMA) == agree


def test_equal_seeds_give_equal_turns_and_other_seeds_others():
    turns = [
        tuple(ENGINE.start(case("plain", "sampler_match", SamplingParams(temperature=0.8), seed=seed)))
        for seed in (1, 1, 2, 3)
    ]
    assert turns[0] == turns[1]
    assert len(set(turns)) > 1


def test_what_was_drawn_has_mass_under_the_q_that_is_shown():
    sampling = SamplingParams(temperature=0.8, top_k=9, top_p=0.8, min_p=0.1)
    session = ENGINE.start(case("plain", "sampler_match", sampling, max_tokens=30))
    list(session)
    shown = [
        (q, token)
        for boundary in session.boundaries[1:]
        for q, token in zip(boundary.draft_distributions, boundary.round.drafted, strict=True)
    ]
    assert len(shown) > 20
    assert all(q.prob(token) > 0 for q, token in shown)


@pytest.mark.parametrize(
    ("window", "prompt", "k", "lawful"),
    [  # a window of two tells contexts inside a block of two apart; for the rest, blocks of one will do
        (0, (1,), 1, True),
        (2, (1,), 2, True),
        (0, (2, 1, 1), 1, False),
        (2, (2, 1, 1), 1, False),
    ],
)
def test_under_penalties_the_law_is_the_targets_from_a_prompt_of_one_token_only(window, prompt, k, lawful):
    """What the exact law finds of penalties, windows included, is one defect: that the prompt's head is not shown."""
    sampling = SamplingParams(
        repetition_penalty=1.3, presence_penalty=0.4, frequency_penalty=0.2, penalty_window=window
    )
    found = measure(ENGINE, replace(tiny_case("sampler_match", k, 2, sampling), prompt=prompt))
    assert (found.variation < 1e-5) == lawful
