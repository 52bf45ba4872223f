"""The observed model is the inner model, but for what its spec says; readings of a cache are what is in it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("mlx.core", reason="needs the extra mlx")

import mlx.core as mx

from mlx_impl.transformer import load
from specproof.adapters.mlx_models import ObservedModel, observation, offsets, rows, state_key
from specproof.engine import Fault, ModelSpec
from specproof.errors import InjectedFault
from specproof.oracle import Oracle
from specproof.pairs import toy

FOLDER = toy().target
SPEC = ModelSpec(FOLDER)
TOKENS = (3, 1, 4, 1, 5, 9, 2, 6)


class Noted:
    """A transform that changes nothing and notes the positions it was given."""

    def __init__(self):
        self.positions = []

    def __call__(self, logits, positions):
        assert logits.dtype == np.float64
        assert logits.shape == (len(positions), 32)
        self.positions.append(positions.tolist())
        return logits


def forwards(model, cache, lengths, tokens=TOKENS):
    """Feed the tokens in pieces of these lengths; the logits of all, [T, V]."""
    pieces, start = [], 0
    for length in lengths:
        pieces.append(np.array(model(mx.array([tokens[start : start + length]]), cache=cache)[0]))
        start += length
    return np.concatenate(pieces) if pieces else np.zeros((0, 32))


@pytest.fixture(scope="module")
def inner():
    return load(FOLDER)


@pytest.mark.parametrize("lengths", [(8,), (1, 1, 6), (3, 4, 1)])
def test_without_transform_or_fault_the_logits_are_the_inner_models_bit_for_bit(inner, lengths):
    wrapped = forwards(ObservedModel(inner, "target", SPEC), inner.make_cache(), lengths)
    np.testing.assert_array_equal(wrapped, forwards(inner, inner.make_cache(), lengths))


def test_a_transform_that_changes_nothing_changes_no_bit(inner):
    wrapped = forwards(ObservedModel(inner, "target", replace(SPEC, transform=Noted())), inner.make_cache(), (3, 5))
    np.testing.assert_array_equal(wrapped, forwards(inner, inner.make_cache(), (3, 5)))


def test_a_transform_is_given_the_absolute_position_of_every_row(inner):
    noted = Noted()
    cache = inner.make_cache()
    model = ObservedModel(inner, "target", replace(SPEC, transform=noted))
    forwards(model, cache, (3, 1, 4))
    for layer in cache:
        layer.trim(2)
    forwards(model, cache, (1,))
    assert noted.positions == [[0, 1, 2], [3], [4, 5, 6, 7], [6]]


def test_a_transform_changes_the_logits_and_leaves_the_rows_alone(inner):
    spec = replace(SPEC, transform=lambda logits, positions: -logits)
    plain, changed = inner.make_cache(), inner.make_cache()
    logits = forwards(ObservedModel(inner, "target", spec), changed, (8,))
    np.testing.assert_array_equal(logits, -forwards(inner, plain, (8,)))
    assert state_key((), observation(plain, None)) == state_key((), observation(changed, None))


@pytest.mark.parametrize("call", [0, 1, 2])
@pytest.mark.parametrize(("when", "written"), [("before", 0), ("after", 2)])
def test_a_fault_is_raised_at_its_forward_only_before_or_after_the_rows_are_written(inner, call, when, written):
    model = ObservedModel(inner, "draft", replace(SPEC, fault=Fault(call, when)))
    cache = inner.make_cache()
    forwards(model, cache, (2,) * call)
    with pytest.raises(InjectedFault, match=f"injected fault: draft forward {call}, {when} it ran"):
        forwards(model, cache, (2,), TOKENS[2 * call :])
    assert offsets(cache) == (2 * call + written,) * 3
    forwards(model, cache, (1,))
    assert offsets(cache) == (2 * call + written + 1,) * 3


def test_the_listener_hears_of_every_forward_before_its_fault(inner):
    heard = []
    cache = inner.make_cache()
    spec = replace(SPEC, fault=Fault(1, "before"))
    model = ObservedModel(inner, "target", spec, lambda: heard.append(cache[0].offset))
    forwards(model, cache, (3,))
    with pytest.raises(InjectedFault):
        forwards(model, cache, (1,))
    assert heard == [0, 3]


@pytest.mark.parametrize("trimmed", [0, 3])
def test_rows_read_are_the_live_ones_and_equal_a_cache_free_pass(inner, trimmed):
    cache = inner.make_cache()
    forwards(inner, cache, (3, 1, 4))
    for layer in cache:
        layer.trim(trimmed)
    live = TOKENS[: len(TOKENS) - trimmed]
    assert offsets(cache) == (len(live),) * 3
    for seen, wanted in zip(rows(cache), Oracle(SPEC).rows(live), strict=True):
        assert seen.keys.dtype == np.float64
        np.testing.assert_allclose(seen.keys, wanted.keys, atol=1e-4)
        np.testing.assert_allclose(seen.values, wanted.values, atol=1e-4)


def test_rows_of_another_token_are_seen_to_differ(inner):
    cache = inner.make_cache()
    forwards(inner, cache, (8,))
    wanted = Oracle(SPEC).rows((*TOKENS[:-1], 7))[0].keys
    assert np.abs(rows(cache)[0].keys - wanted).max(axis=(0, 2))[-1] > 0.1


def test_a_cache_that_no_forward_reached_has_no_rows(inner):
    seen = observation(inner.make_cache(), None)
    assert seen.target_offsets == (0, 0, 0)
    assert all(layer.keys.shape[1] == layer.values.shape[1] == 0 for layer in seen.target_rows)
    assert seen.draft_offsets is None
    assert seen.draft_rows is None


def test_the_key_of_a_state_tells_apart_tokens_lengths_and_rows(inner):
    def key(tokens, fed, trimmed=0):
        cache = inner.make_cache()
        forwards(inner, cache, (len(fed),), fed)
        for layer in cache:
            layer.trim(trimmed)
        return state_key(tokens, observation(cache, cache))

    same = key((1,), (4, 5))
    assert same == key((1,), (4, 5, 6), trimmed=1)
    assert same != key((2,), (4, 5))
    assert same != key((1,), (4, 5, 6))
    assert same != key((1,), (4, 6))
