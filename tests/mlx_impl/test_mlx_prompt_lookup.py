"""Prompt lookup on MLX proposes what the oracle's does, whatever became of the history; a long one costs no more."""

from collections.abc import Sequence

import numpy as np
import pytest

mx = pytest.importorskip("mlx.core", reason="mlx is not installed; pip install 'specproof[mlx]'")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from mlx_decodes import make, rounds  # noqa: E402

from mlx_impl import PromptLookup  # noqa: E402
from mlx_impl.forward import CHUNK  # noqa: E402
from mlx_impl.prompt_lookup import WINDOW, NgramIndex  # noqa: E402
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


# ------------------------------------------------------------------------------------------ the index and the history

OPTIONS = [
    {"occurrence": occurrence, "min_ngram": least, "max_ngram": most}
    for occurrence in ("recent", "first")
    for least, most in ((1, 3), (2, 2), (1, WINDOW + 2))
]


def proposed(lookup, history, budget=4):
    return tuple(lookup.propose(history, None, budget).tokens.tolist())


def wanted(options, history, budget=4):
    """By the oracle's search, which keeps nothing."""
    return oracle.PromptLookup(4, **options).propose(history, None, budget).tokens


TOKENS = st.lists(st.integers(0, 2), max_size=6)
CHANGES = st.lists(
    st.tuples(st.just("commit"), TOKENS.filter(bool))
    | st.tuples(st.just("rollback"), st.integers(0, 9))
    | st.tuples(st.sampled_from(["settle", "edit"]), st.integers(0, 30), TOKENS)
    | st.tuples(st.sampled_from(["propose", "copy", "no budget"])),
    max_size=12,
)


@given(changes=CHANGES, options=st.sampled_from(OPTIONS))
@settings(max_examples=150, deadline=None)
def test_whatever_became_of_the_history_the_index_answers_as_a_search_of_all_of_it(changes, options):
    lookup, history = PromptLookup(4, **options), [0, 1, 0]
    for name, *what in changes:
        before = list(history)
        if name == "commit":
            history = [*history, *what[0]]
        elif name == "rollback":
            history = history[: max(len(history) - what[0], 1)]
        elif name in ("settle", "edit"):  # "edit": the decoder's hooks are not told
            history = [*history[: what[0]], *what[1], *history[what[0] + len(what[1]) :]]
        elif name == "copy":
            twin, lookup = lookup, lookup.copy()
            twin.commit([*history, 3, 3, 3])
        if name in ("commit", "rollback", "settle"):
            getattr(lookup, name)(history)
        if name == "edit":
            lookup.propose(before, None, 1)  # whatever was vouched for is used up
        if name != "no budget":
            assert proposed(lookup, history) == wanted(options, history)
        else:
            assert proposed(lookup, history, 0) == ()
    assert lookup.cache is None


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("length", [CHUNK, CHUNK + 5])
def test_an_edit_anywhere_in_a_long_history_is_found_where_the_whole_is_compared(length, options):
    history = np.random.default_rng(length).integers(0, 4, length).tolist()
    lookup = PromptLookup(4, **options)
    for edited in (0, CHUNK - 1, length - 1):
        lookup.propose(history, None, 4)
        history[edited] = (history[edited] + 1) % 4
        assert proposed(lookup, history) == wanted(options, history)
        fresh = PromptLookup(4, **options)
        fresh.settle(history)
        lookup.settle(history)
        assert lookup._index._ends == fresh._index._ends


def test_a_token_put_back_in_the_index_leaves_no_trace():
    index = NgramIndex((3, 2, 1), "recent")
    for token in (1, 2, 1, 2):
        index.append(token)
    ends, answer = dict(index._ends), index.continuation()
    for token in (1, 2, 7):
        index.append(token)
    assert index.continuation() is None
    for _ in range(3):
        index.pop()
    assert (index._ends, index.continuation(), index.tokens) == (ends, answer, [1, 2, 1, 2])


def test_against_the_protocol_what_is_proposed_still_follows_an_earlier_occurrence_in_this_history():
    """Tokens far back change between `commit` and `propose`: the index says they are worth copying, the history not."""
    filler = [3] * 2 * WINDOW
    history = [1, 2, 0, *filler, 1, 2]
    lookup = PromptLookup(4, min_ngram=2, max_ngram=2)
    lookup.commit(history)
    history[:3] = [0, 0, 1]
    assert proposed(lookup, history) == ()


def test_an_interrupt_as_the_index_grows_leaves_answers_as_they_should_be(monkeypatch):
    lookup = PromptLookup(4)
    lookup.settle([1, 2, 3, 1])
    append, calls = NgramIndex.append, []

    def interrupted(index, token):
        calls.append(token)
        if len(calls) == 2:
            index.tokens.append(token)  # half of it is done
            raise KeyboardInterrupt
        append(index, token)

    with monkeypatch.context() as patch:
        patch.setattr(NgramIndex, "append", interrupted)
        with pytest.raises(KeyboardInterrupt):
            lookup.commit([1, 2, 3, 1, 2, 3])
    lookup.rollback([1, 2, 3, 1])
    assert proposed(lookup, [1, 2, 3, 1]) == wanted({}, [1, 2, 3, 1]) == (2, 3, 1)


# --------------------------------------------------------------------------------------------------------------- cost


class Counted(Sequence):
    """A history that counts the tokens read of it."""

    def __init__(self, tokens):
        self.tokens, self.read = tokens, 0

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, index):
        found = self.tokens[index]
        self.read += len(found) if isinstance(index, slice) else 1
        return found


def cost_of_a_round(length, monkeypatch, hooks=True):
    """(tokens of the history read, changes of the index) by commit and propose, three tokens after `length`."""
    tokens = np.random.default_rng(0).integers(0, 4, length + 3).tolist()
    lookup, history, changes = PromptLookup(4), Counted(tokens), []
    lookup.settle(tokens[:length])
    lookup.propose(tokens[:length], None, 4)
    for name in ("append", "pop"):
        original = getattr(NgramIndex, name)
        monkeypatch.setattr(
            NgramIndex, name, lambda *args, original=original: (changes.append(args), original(*args))[1]
        )
    if hooks:
        lookup.commit(history)
    lookup.propose(history, None, 4)
    monkeypatch.undo()
    return history.read, len(changes)


def test_a_round_costs_as_much_in_a_long_history_as_in_a_short_one(monkeypatch):
    for length in (100, 1000, 10_000):
        read, changes = cost_of_a_round(length, monkeypatch)
        assert read <= 3 * WINDOW + 3 + 4, length  # three comparisons, the new tokens, the proposals
        assert changes == 3, length


def test_a_history_that_no_hook_vouched_for_is_read_as_a_whole(monkeypatch):
    """The control: what is saved above is seen by this count."""
    read, changes = cost_of_a_round(10_000, monkeypatch, hooks=False)
    assert (read >= 10_003, changes) == (True, 3)


def test_in_a_decode_no_round_reads_the_whole_history(monkeypatch):
    reads = []

    class Watched(PromptLookup):
        def propose(self, history, target_hidden, budget):
            counted = Counted(history)
            block = super().propose(counted, target_hidden, budget)
            reads.append(counted.read)
            return block

        def commit(self, history):
            counted = Counted(history)
            super().commit(counted)
            reads.append(counted.read)

    decoder, _ = make("greedy", 4)
    prompt = np.random.default_rng(1).integers(0, 32, 200).tolist()
    state = decoder.prefill(prompt, Watched(32), 30)
    accepted = [done.num_accepted for done in rounds(decoder, state)]
    assert sum(accepted) > 0
    assert max(reads) <= 2 * WINDOW + 4 < len(prompt)
    decoder.generate(state).close()
    assert state.drafter._index.tokens == state.history
