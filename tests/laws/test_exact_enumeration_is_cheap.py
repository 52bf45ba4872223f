"""The enumeration does each piece of work once: states are merged, repeated forwards are looked up, and it says so."""

from __future__ import annotations

import runpy
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from reference.transformer import load
from reference.values import SamplingParams
from specproof.adapters.reference import ENGINE
from specproof.adapters.reference_sessions import RememberedModel, observe
from specproof.architectures import ARCHITECTURES, load_model
from specproof.exact_law import TOLERANCE, judge, measure
from specproof.law_cases import Setting, law_case
from specproof.pairs import Pair, tiny

MAKE_TOY = Path(__file__).parents[2] / "fixtures" / "make_toy.py"


@pytest.fixture(scope="module")
def pair_of_four(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """The tiny pair with one token more."""
    make = runpy.run_path(str(MAKE_TOY))
    root, shape = tmp_path_factory.mktemp("four"), replace(make["SHAPES"]["tiny-"], vocab_size=4)
    weights = make["draw_weights"](shape, 5)
    make["write_checkpoint"](root / "target", shape, weights, shape.num_layers)
    make["write_checkpoint"](root / "draft", shape, make["drafter_weights"](weights), 1)
    return Pair(root / "target", root / "draft")


def test_five_tokens_of_a_vocabulary_of_four_in_blocks_of_three_are_enumerated_from_merged_states(pair_of_four: Pair):
    case = law_case("test", pair_of_four, "rejection", 3, Setting("T1", SamplingParams()), (0, 2, 1), 5)
    found = measure(ENGINE, case)
    assert len(found.wanted) == 4**5
    assert found.variation <= TOLERANCE["float64"]
    assert found.result.states <= 4 + 4**2 + 4**3 + 4**4  # one a history; there are 3798 rounds
    assert found.result.rounds < 4000
    assert not found.result.replayed


def test_the_note_tells_rounds_and_states():
    case = law_case("test", tiny(), "rejection", 1, Setting("T1", SamplingParams()), (0, 2, 1), 3)
    found = measure(ENGINE, case).result
    assert judge(ENGINE, [case]).note.startswith(f"1 laws from {found.rounds} rounds out of {found.states} states; ")


class Counting:
    """A model that counts its forwards by what they were given."""

    def __init__(self) -> None:
        self.model = load(tiny().target)
        self.name, self.vocab_size, self.new_cache = self.model.name, self.model.vocab_size, self.model.new_cache
        self.forwards: Counter = Counter()

    def forward(self, tokens, cache):
        self.forwards[tuple(tokens), cache.offset] += 1
        return self.model.forward(tokens, cache)


def test_a_repeated_forward_is_looked_up_and_leaves_the_same_rows():
    counting = Counting()
    remembered = RememberedModel(counting)
    caches = [counting.new_cache() for _ in range(2)]
    for cache in caches:
        remembered.forward([0, 2], cache)
        last = remembered.forward([1], cache)
    assert counting.forwards == {((0, 2), 0): 1, ((1,), 2): 1}
    expected = counting.new_cache()
    counting.model.forward([0, 2], expected)
    assert np.array_equal(last.logits, counting.model.forward([1], expected).logits)
    for cache in caches:
        for mine, theirs in zip(cache.layers, expected.layers, strict=True):
            assert np.array_equal(mine.keys, theirs.keys)
            assert np.array_equal(mine.values, theirs.values)


def test_wrong_rows_are_forwarded_as_they_are():
    """What is looked up is what the cache holds, not the history that it should hold."""
    counting = Counting()
    remembered = RememberedModel(counting)
    right, wrong = counting.new_cache(), counting.new_cache()
    remembered.forward([0, 2], right)
    remembered.forward([2, 2], wrong)
    assert not np.allclose(remembered.forward([1], right).logits, remembered.forward([1], wrong).logits)
    assert counting.forwards[(1,), 2] == 2


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_forward_that_is_looked_up_leaves_what_one_that_is_run_leaves_in_every_architecture(name):
    model = load_model(tiny().target, ARCHITECTURES[name])
    remembered = RememberedModel(model)

    def after_a_rollback(runs):
        cache = model.new_cache()
        runs.forward([0, 2, 1, 1, 0, 2], cache)
        cache.trim_to(4)
        return [runs.forward(tokens, cache).logits for tokens in ([1, 2], [0])], cache

    after_a_rollback(remembered)
    for looked_up, run in zip(*(after_a_rollback(runs)[0] for runs in (remembered, model)), strict=True):
        assert np.array_equal(looked_up, run)
    mine, theirs = (observe(after_a_rollback(runs)[1], None) for runs in (remembered, model))
    for held, wanted in zip(mine.target_rows, theirs.target_rows, strict=True):
        assert np.array_equal(held.keys, wanted.keys)
        assert np.array_equal(held.values, wanted.values)
        assert held.first == wanted.first


def test_caches_of_another_type_are_never_looked_up():
    counting = Counting()
    remembered = RememberedModel(counting)
    for _ in range(2):
        cache = counting.new_cache()
        cache.__class__ = type("Other", (type(cache),), {})
        remembered.forward([0, 2], cache)
    assert counting.forwards == {((0, 2), 0): 2}
