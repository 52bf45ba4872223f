"""Prompt lookup on MLX proposes what the oracle's proposes."""

import pytest

mx = pytest.importorskip("mlx.core", reason="mlx is not installed; pip install 'specproof[mlx]'")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from mlx_impl import PromptLookup  # noqa: E402
from reference import prompt_lookup as oracle  # noqa: E402
from reference.errors import (  # noqa: E402
    InvalidSetting,
    TokenOutOfRange,
)


@given(
    history=st.lists(st.integers(0, 3), max_size=14),
    budget=st.integers(-1, 5),
    sizes=st.tuples(st.integers(1, 4), st.integers(1, 4)).map(sorted),
    occurrence=st.sampled_from(["recent", "first"]),
    max_draft=st.none() | st.integers(0, 4),
)
@settings(max_examples=100, deadline=None)
def test_prompt_lookup_proposes_what_the_oracles_proposes(history, budget, sizes, occurrence, max_draft):
    options = {"min_ngram": sizes[0], "max_ngram": sizes[1], "occurrence": occurrence, "max_draft": max_draft}
    block = PromptLookup(4, **options).propose(history, None, budget)
    wanted = oracle.PromptLookup(4, **options).propose(history, None, budget)
    assert tuple(block.tokens.tolist()) == wanted.tokens
    dense = [distribution.dense().tolist() for distribution in wanted.distributions]
    assert block.probabilities.tolist() == dense


def test_options_of_prompt_lookup_matter():
    """The control of the test above."""
    history = [1, 2, 5, 1, 2, 6, 1, 2]
    found = {
        name: PromptLookup(8, **options).propose(history, None, 1).tokens.tolist()
        for name, options in {
            "recent": {},
            "first": {"occurrence": "first"},
            "four": {"min_ngram": 4, "max_ngram": 4},
        }.items()
    }
    assert found == {"recent": [6], "first": [5], "four": []}


def test_prompt_lookup_has_no_state():
    lookup = PromptLookup(8)
    assert lookup.cache is None
    assert lookup.copy() is lookup
    for call in (lookup.commit, lookup.settle, lookup.rollback):
        call([1, 2, 3])


def test_prompt_lookup_refuses_a_token_outside_the_vocabulary():
    with pytest.raises(TokenOutOfRange, match=r"history\[0\] is 9, outside the vocabulary 0\.\.7"):
        PromptLookup(8).propose([1, 9, 1], None, 1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"min_ngram": 0}, r"min_ngram is 0 and max_ngram 3; give 1 <= min_ngram <= max_ngram"),
        ({"min_ngram": 3, "max_ngram": 2}, r"min_ngram is 3 and max_ngram 2; give"),
        ({"occurrence": "last"}, r"occurrence is 'last'; give one of recent, first"),
        ({"max_draft": -1}, r"max_draft is -1; give an integer >= 0"),
    ],
)
def test_bad_options_of_prompt_lookup_are_refused(options, message):
    with pytest.raises(InvalidSetting, match=message):
        PromptLookup(8, **options)
