"""Two models work together if they number their tokens alike, whatever their padding; and no others do."""

import pytest

mx = pytest.importorskip("mlx.core", reason="mlx is not installed; pip install 'specproof[mlx]'")

import copy  # noqa: E402
from dataclasses import replace  # noqa: E402

import numpy as np  # noqa: E402
from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from mlx.utils import tree_flatten  # noqa: E402
from mlx_decodes import assert_at_boundary, greedy, make, run  # noqa: E402
from mlx_toys import GREEDY, SAMPLED, Wrapped, toy  # noqa: E402

from mlx_impl.forward import vocab_size  # noqa: E402
from mlx_impl.sampling import distributions, row_faults  # noqa: E402
from mlx_impl.transformer import Transformer  # noqa: E402
from mlx_impl.vocabulary import (  # noqa: E402
    AlignedModel,
    Alignment,
    Vocabulary,
    align,
    check_vocabularies,
    shared_ids,
)
from reference.errors import VocabularyMismatch  # noqa: E402
from reference.values import SamplingParams  # noqa: E402

PROMPT = [3, 1, 4]
TOKENS = {f"t{id}": id for id in range(6)}
SPECIAL = frozenset({4, 5})
MODEL = Vocabulary(8, TOKENS, SPECIAL)


def padded(name: str, size: int, lift: float = 0.0) -> Transformer:
    """A toy model with more rows than its tokenizer has tokens; `lift` times the rows of the first tokens."""
    plain = toy(name)
    model = Transformer(replace(plain.args, vocab_size=size), plain.tokens)
    weights = dict(tree_flatten(plain.parameters()))
    for key in ("model.embed_tokens.weight", "lm_head.weight"):
        more = size - weights[key].shape[0]
        weights[key] = mx.concatenate([weights[key], (1 + lift) * weights[key][:more]])
    model.load_weights(list(weights.items()))
    return model


def without(*tokens: str) -> dict[str, int]:
    return {token: id for token, id in TOKENS.items() if token not in tokens}


@pytest.mark.parametrize(
    ("target", "draft"),
    [
        (Vocabulary(8), Vocabulary(8)),
        (Vocabulary(8), MODEL),
        (MODEL, MODEL),
        (MODEL, replace(MODEL, size=6)),
        (MODEL, replace(MODEL, special_ids=None)),
        (MODEL, replace(MODEL, tokens=without("t5"), special_ids={4})),
        (replace(MODEL, tokens=without("t5", "t4"), special_ids=frozenset()), replace(MODEL, size=6)),
        (replace(MODEL, tokens=without("t4"), special_ids={5}), replace(MODEL, tokens=without("t5"), special_ids={4})),
    ],
)
def test_vocabularies_that_agree_are_accepted(target, draft):
    check_vocabularies(target, draft)
    check_vocabularies(draft, target)


SIZES = (
    r"the target knows 8 tokens, the drafter 7; a proposal would mean another token to the target: give a drafter with"
)


@pytest.mark.parametrize(
    ("target", "draft", "message"),
    [
        (Vocabulary(8), Vocabulary(7), SIZES + r".*, or load both with their tokenizers, which may show"),
        (MODEL, Vocabulary(7), SIZES),
        (Vocabulary(8), replace(MODEL, size=7), SIZES),
        (MODEL, replace(MODEL, size=7, tokens=without("t1")), SIZES + r".*\(token 't1' has id 1 for the target and"),
        (MODEL, replace(MODEL, tokens=without("t1")), r"token 't1' has id 1 for the target and None for the drafter"),
        (replace(MODEL, tokens=without("t1")), MODEL, r"token 't1' has id None for the target and 1 for the drafter"),
        (MODEL, replace(MODEL, tokens=TOKENS | {"t1": 2, "t2": 1}), r"token 't1' has id 1 for the target and 2 for"),
        (MODEL, replace(MODEL, tokens=without("t5") | {"<end>": 5}), r"token '<end>' has id None for the target and 5"),
        (MODEL, replace(MODEL, tokens=TOKENS | {"t5": 6}, special_ids={4, 6}), r"token 't5' has id 5 for the target a"),
        (MODEL, replace(MODEL, tokens=TOKENS | {"t6": 6}), r"token 't6' has id None for the target and 6 for"),
        (MODEL, replace(MODEL, special_ids={4}), r"id 5 is a special token for the target and text for the other"),
        (MODEL, replace(MODEL, special_ids={1, 4, 5}), r"id 1 is a special token for the drafter and text for the"),
    ],
)  # fmt: skip
def test_real_mismatches_are_refused_and_named(target, draft, message):
    with pytest.raises(VocabularyMismatch, match=message):
        check_vocabularies(target, draft)


def test_ids_are_shared_where_both_have_a_row_and_a_name_for_them():
    assert shared_ids(Vocabulary(8), Vocabulary(6)) == set(range(6))
    assert shared_ids(MODEL, replace(MODEL, size=7, tokens=without("t4"))) == {0, 1, 2, 3, 5}
    assert shared_ids(MODEL, Vocabulary(8)) == set(range(6))


@given(
    st.integers(1, 12),
    st.sets(st.integers(0, 11), min_size=1),
    st.lists(st.floats(-50, 50, width=32), min_size=12, max_size=12),
    st.sampled_from([0.0, 0.1, 1.0, 50.0]),
)
def test_q_is_renormalised_on_the_shared_ids_and_nothing_elsewhere(size, shared, row, temperature):
    shared = {id for id in shared if id < size} or {0}
    logits = mx.array([row])  # [1, 12]
    placed = Alignment.on(shared, size).logits(logits)  # [1, size]
    assert placed.shape == (1, size)
    sampling = SamplingParams(temperature=temperature)
    q = np.array(distributions(placed, sampling))[0]
    assert row_faults(placed, mx.array(q)[None]).tolist() == [0]
    ids = sorted(shared)
    assert np.allclose(q[ids], np.array(distributions(logits[:, mx.array(ids)], sampling))[0], atol=1e-6)
    assert not np.any(np.delete(q, ids))
    assert q.sum() == pytest.approx(1, abs=1e-5)


def test_filters_see_the_shared_ids_only():
    logits = mx.array([[1.0, 2.0, 9.0, 3.0]])
    placed, sampling = Alignment.on([0, 1, 3], 5).logits(logits), SamplingParams(temperature=1, top_k=1)
    assert distributions(placed, sampling).tolist() == [[0, 0, 0, 1, 0]]
    # masked after the filter, there would be nothing left:
    assert distributions(logits, sampling).tolist() == [[0, 0, 1, 0]]


def test_what_the_drafter_does_not_know_reads_as_what_it_does():
    assert Alignment.on([2, 3, 5], 8).readable.tolist() == [2, 2, 2, 3, 2, 5, 2, 2]


def test_a_model_of_the_targets_vocabulary_is_left_as_it_is():
    target = toy("target")
    assert align(toy("draft"), target) is toy("draft")
    bare = Wrapped(toy("draft"))
    assert align(bare, target) is bare


def test_a_wrapped_model_is_unwrapped_for_another_target():
    draft, wide, wider = toy("draft"), padded("target", 40), padded("target", 48)
    aligned = align(draft, wide)
    assert (type(aligned), vocab_size(aligned), aligned.layers) == (AlignedModel, 40, draft.layers)
    assert aligned.args.head_dim == draft.args.head_dim
    assert align(aligned, wide) is aligned
    again = align(copy.copy(aligned), wider)
    assert (again.inner, vocab_size(again)) == (draft, 48)
    assert align(again, toy("target")) is draft


@pytest.mark.parametrize("sizes", [(32, 40), (40, 32), (48, 40), (40, 48)])
@pytest.mark.parametrize("rule", ["greedy", "rejection"])
def test_padded_models_decode_as_the_target_alone_would(sizes, rule):
    target, draft = padded("target", sizes[0]), padded("draft", sizes[1], lift=2.0)
    decoder, drafter = make(rule, 3, target, draft, sampling=GREEDY)
    assert run(decoder, drafter, PROMPT, 12) == greedy(target, PROMPT, 12)


@pytest.mark.parametrize("sizes", [(32, 40), (40, 32), (48, 40)])
def test_honest_q_of_a_padded_drafter_lies_on_the_shared_ids(sizes):
    target, draft = padded("target", sizes[0], lift=1.0), padded("draft", sizes[1], lift=2.0)
    decoder, drafter = make("rejection", 3, target, draft, sampling=SAMPLED)
    state = decoder.prefill(PROMPT, drafter, 16)
    narrow = toy("draft")
    seen = set()
    while state.finish is None:
        history = list(state.history)
        decoder.step(state)
        assert_at_boundary(state)
        seen |= set(state.history)
        q = np.array(state.block.probabilities)  # [k, V]
        if not len(q):
            continue
        assert q.shape[1] == sizes[0]
        assert not np.any(q[:, 32:])
        readable = [id if id < 32 else 0 for id in history]
        logits = narrow(mx.array([readable]))[0, -1:]
        assert np.allclose(q[0, :32], np.array(distributions(logits, SAMPLED))[0], atol=1e-5)
    assert (max(seen) >= 32) == (sizes[0] > 32)  # the target's padding has mass here, and the drafter reads over it


def test_a_padded_drafter_without_a_tokenizer_is_refused_and_left_as_it_was():
    decoder, drafter = make("greedy", 3, padded("target", 40), Wrapped(toy("draft")))
    before = drafter.model
    with pytest.raises(VocabularyMismatch, match="the target knows 40 tokens, the drafter 32; a proposal would mean"):
        decoder.prefill(PROMPT, drafter, 4)
    assert (drafter.model, drafter.vocab_size) == (before, 32)


def test_a_copied_drafter_is_aligned_too():
    decoder, drafter = make("greedy", 3, padded("target", 40), toy("draft"))
    state = decoder.prefill(PROMPT, drafter, 12)
    twin = state.copy()
    for one in (state, twin):
        assert tuple(item.token for item in decoder.generate(one)) == greedy(padded("target", 40), PROMPT, 12)
