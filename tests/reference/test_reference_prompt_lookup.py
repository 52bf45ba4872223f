"""Prompt lookup: which occurrence, which n, and a point mass for every proposal."""

from __future__ import annotations

import pytest

from reference import PromptLookup, Transformer
from reference.errors import InvalidSetting, VocabularyMismatch
from reference.values import DraftBlock

#          0  1  2  3  4  5  6  7  8  9 10
HISTORY = [1, 2, 3, 4, 9, 2, 3, 5, 1, 2, 3]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"max_ngram": 3, "min_ngram": 1}, (4, 9, 2)),  # 1 2 3 is at 0 only
        ({"max_ngram": 4, "min_ngram": 1}, (4, 9, 2)),  # nothing has 4, so 3
        ({"max_ngram": 2, "min_ngram": 2}, (5, 1, 2)),  # 2 3 is at 5 most recently
        ({"max_ngram": 2, "min_ngram": 2, "occurrence": "first"}, (4, 9, 2)),
        ({"max_ngram": 1, "min_ngram": 1}, (5, 1, 2)),
        ({"max_ngram": 4, "min_ngram": 4}, ()),
        ({"max_ngram": 2, "min_ngram": 2, "max_draft": 2}, (5, 1)),
        ({"max_draft": 0}, ()),
    ],
)
def test_settings_choose_the_occurrence(settings: dict[str, object], expected: tuple[int, ...]) -> None:
    block = PromptLookup(10, **settings).propose(HISTORY, None, 3)
    assert block.tokens == expected
    assert all(
        q.prob(token) == 1 and q.dense().sum() == 1 for token, q in zip(block.tokens, block.distributions, strict=True)
    )


def test_proposals_end_with_the_history_and_with_the_budget() -> None:
    lookup = PromptLookup(10, max_ngram=1, min_ngram=1)
    assert lookup.propose([7, 7, 7], None, 9).tokens == (7,)
    assert PromptLookup(10, max_ngram=1, occurrence="first").propose([7, 8, 7], None, 9).tokens == (8, 7)
    assert lookup.propose([7, 7, 7], None, 0) == DraftBlock()


@pytest.mark.parametrize("history", [[], [1], [1, 2]])
def test_histories_without_an_earlier_occurrence_give_nothing(history: list[int]) -> None:
    assert PromptLookup(10).propose(history, None, 4) == DraftBlock()


def test_it_has_no_state(target: Transformer) -> None:
    lookup = PromptLookup(32)
    lookup.commit(HISTORY)
    lookup.settle(HISTORY)
    lookup.rollback(HISTORY)
    lookup.check_vocabulary(target)
    assert lookup.cache is None
    assert lookup.copy().propose(HISTORY, None, 3) == lookup.propose(HISTORY, None, 3)


def test_bad_settings_are_refused(target: Transformer) -> None:
    with pytest.raises(InvalidSetting, match="min_ngram is 0; give an integer >= 1"):
        PromptLookup(10, min_ngram=0)
    with pytest.raises(InvalidSetting, match="min_ngram is 4, max_ngram 3"):
        PromptLookup(10, min_ngram=4)
    with pytest.raises(InvalidSetting, match="occurrence is 'last'; give one of recent, first"):
        PromptLookup(10, occurrence="last")
    for value in (2.0, "2", float("nan")):
        for name in ("max_ngram", "min_ngram", "max_draft"):
            with pytest.raises(InvalidSetting, match=rf"{name} is {value!r}; give an integer"):
                PromptLookup(10, **{name: value})
    with pytest.raises(InvalidSetting, match="max_draft is -1"):
        PromptLookup(10, max_draft=-1)
    with pytest.raises(VocabularyMismatch, match="the target has 32 tokens, the drafter 10"):
        PromptLookup(10).check_vocabulary(target)
