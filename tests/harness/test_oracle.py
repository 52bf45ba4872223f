"""The oracle answers without a cache, after the transform of its model."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from strategies import prompts

from reference.transformer import load
from reference.values import SamplingParams
from specproof.engine import Fault, ModelSpec
from specproof.oracle import Oracle
from specproof.pairs import toy
from specproof.transforms import BanArgmax, Disjoint

TARGET = ModelSpec(toy().target)
PENALISED = SamplingParams(temperature=0.8, repetition_penalty=1.3, presence_penalty=0.4)


@given(prompt=prompts(32))
def test_rows_and_logits_equal_those_of_a_forward_with_a_cache(prompt: tuple[int, ...]) -> None:
    model = load(toy().target)
    cache = model.new_cache()
    logits = model.forward(prompt, cache).logits
    oracle = Oracle(TARGET)
    assert np.allclose(oracle.logits(prompt), logits, atol=1e-12)
    for rows, layer in zip(oracle.rows(prompt), cache.layers, strict=True):
        assert np.allclose(rows.keys, layer.keys, atol=1e-12)
        assert np.allclose(rows.values, layer.values, atol=1e-12)


def test_the_transform_is_applied_and_a_fault_is_not() -> None:
    oracle = Oracle(replace(TARGET, transform=Disjoint(1), fault=Fault(0, "before")))
    assert int(oracle.logits((3, 4)).argmax(axis=-1)[0]) % 2 == 1
    assert oracle.distribution((3, 4), SamplingParams(temperature=1.0))[::2].sum() == 0


@given(prompt=prompts(32))
def test_distributions_of_a_sequence_are_those_of_its_prefixes(prompt: tuple[int, ...]) -> None:
    oracle, sequence = Oracle(TARGET), (*prompt, 5, 6)
    found = oracle.distributions(sequence, len(prompt), PENALISED)
    assert len(found) == 3
    for i, row in enumerate(found):
        assert np.allclose(row, oracle.distribution(sequence[: len(prompt) + i], PENALISED), atol=1e-12)


def test_greedy_is_the_argmax_one_token_at_a_time_and_follows_penalties() -> None:
    oracle, prompt = Oracle(TARGET), (1, 2, 3)
    history = list(prompt)
    for token in oracle.greedy(prompt, 5):
        assert token == int(oracle.logits(history)[-1].argmax())
        history.append(token)
    biased = SamplingParams(temperature=0.0, logit_bias={9: 100.0})
    assert oracle.greedy(prompt, 3, biased) == (9, 9, 9)


def test_the_gap_of_the_two_best_is_one_of_logits() -> None:
    oracle, prompt = Oracle(TARGET), (1, 2, 3)
    second, first = np.sort(oracle.logits(prompt)[-1])[-2:]
    assert oracle.top_two_gap(prompt) == pytest.approx(first - second)
    banned = Oracle(replace(TARGET, transform=BanArgmax()))
    assert banned.greedy(prompt, 1)[0] == int(np.argsort(oracle.logits(prompt)[-1])[-2])
