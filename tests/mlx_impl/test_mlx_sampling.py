"""The distribution drawn from on the device is the oracle's, for every sampling parameter and any number of rows."""

import numpy as np
import pytest

mx = pytest.importorskip("mlx.core", reason="mlx is not installed; pip install 'specproof[mlx]'")

from hypothesis import assume, given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from mlx_impl.sampling import check_rows, distributions, needs_context, point_masses, row_faults  # noqa: E402
from reference import sampling as oracle  # noqa: E402
from reference.errors import InvalidSetting, NonFiniteLogits  # noqa: E402
from reference.values import SamplingParams  # noqa: E402

TOLERANCE = 1e-6
VOCAB = 8

# Quarters, and penalties that are powers of two, are exact in both precisions: ties stay ties, and others stay apart.
quarters = st.integers(-24, 24).map(lambda n: n / 4)
params = st.builds(
    SamplingParams,
    temperature=st.one_of(st.just(0.0), st.just(1.0), st.floats(0.05, 3.0)),
    top_k=st.integers(0, VOCAB + 2),
    top_p=st.one_of(st.just(1.0), st.floats(0.01, 1.0)),
    min_p=st.one_of(st.just(0.0), st.floats(0.0, 1.0)),
    repetition_penalty=st.sampled_from([0.5, 1.0, 2.0]),
    presence_penalty=st.sampled_from([-0.5, 0.0, 0.25]),
    frequency_penalty=st.sampled_from([-0.25, 0.0, 0.5]),
    penalty_window=st.integers(0, 6),
    logit_bias=st.dictionaries(st.integers(0, VOCAB - 1), quarters, max_size=3),
)
blocks = st.integers(1, 4).flatmap(
    lambda rows: st.lists(st.lists(quarters, min_size=VOCAB, max_size=VOCAB), min_size=rows, max_size=rows)
)
contexts = st.lists(st.integers(0, VOCAB - 1), min_size=4, max_size=12)


def on_device(logits, params, context, processors=()):
    found = distributions(
        mx.array(np.array(logits, dtype=np.float32)), params, mx.array(context, dtype=mx.uint32), processors=processors
    )
    return np.array(found)


def context_of(context, index, num_rows):
    return context[: len(context) - num_rows + 1 + index]


def is_clear(logits, params, context) -> bool:
    """Whether no threshold of top-p or min-p lies within rounding of what it is compared with."""
    if params.temperature == 0:
        return True
    logits = oracle.with_bias(oracle.with_penalties(np.array(logits), params, context), params.logit_bias)
    p = oracle.keep_top_k(oracle.softmax(logits, params.temperature), params.top_k)
    if params.top_p < 1:
        if np.abs(np.cumsum(np.sort(p)[::-1]) - params.top_p).min() < 1e-5:
            return False
        p = oracle.keep_top_p(p, params.top_p)
    ratios = p / p.max()
    return bool(np.all((ratios == 1) | (np.abs(ratios - params.min_p) > 1e-5) | (ratios < 1e-9) & (params.min_p == 0)))


@given(logits=blocks, params=params, context=contexts)
@settings(max_examples=100, deadline=None)
def test_every_row_equals_the_oracles_distribution(logits, params, context):
    before = [context_of(context, index, len(logits)) for index in range(len(logits))]
    assume(all(is_clear(row, params, seen) for row, seen in zip(logits, before, strict=True)))
    found = on_device(logits, params, context)
    for row, seen, p in zip(logits, before, found, strict=True):
        wanted = oracle.distribution(np.array(row), params, seen)
        np.testing.assert_allclose(p, wanted, rtol=0, atol=TOLERANCE)
        assert (p[wanted == 0] == 0).all()
        assert (p[wanted > 1e-30] > 0).all()  # float32 has nothing much below


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(repetition_penalty=2.0),
        SamplingParams(presence_penalty=0.5),
        SamplingParams(frequency_penalty=0.5),
        SamplingParams(frequency_penalty=0.5, penalty_window=3),
    ],
)
def test_one_token_too_few_in_the_history_would_be_seen(params):
    """The control of the test above: the block is part of what penalties see, token by token."""
    logits, context = np.linspace(-2, 2, VOCAB), [1, 2, 3, 7]
    found = on_device([logits, logits], params, context)
    assert np.abs(found[1] - oracle.distribution(logits, params, context)).max() < TOLERANCE
    assert np.abs(found[0] - oracle.distribution(logits, params, context)).max() > 0.01
    assert np.abs(found[0] - oracle.distribution(logits, params, context[:-1])).max() < TOLERANCE


@pytest.mark.parametrize(
    ("params", "kept"),
    [
        (SamplingParams(temperature=0), [1]),
        (SamplingParams(top_k=2), [1, 2]),
        (SamplingParams(top_k=3), [1, 2, 4]),
        (SamplingParams(top_p=0.3), [1, 2]),
        (SamplingParams(top_p=0.6), [1, 2, 4]),
        (SamplingParams(min_p=1.0), [1, 2, 4]),
        (SamplingParams(top_k=4, top_p=0.99), [0, 1, 2, 4]),
    ],
)
def test_ties_go_to_the_lowest_ids(params, kept):
    found = on_device([[0.0, 1.0, 1.0, 0.0, 1.0, -1.0]], params, [0])[0]
    assert np.flatnonzero(found).tolist() == kept


@pytest.mark.parametrize(("top_p", "kept"), [(0.25, 1), (0.5, 2), (0.75, 3)])
def test_a_nucleus_whose_mass_is_reached_exactly_takes_no_token_more(top_p, kept):
    found = on_device(np.zeros((1, 4)), SamplingParams(top_p=top_p), [0])[0]
    assert found.tolist() == oracle.distribution(np.zeros(4), SamplingParams(top_p=top_p), [0]).astype("f4").tolist()
    assert np.flatnonzero(found).tolist() == list(range(kept))


def test_ties_across_a_large_vocabulary_go_to_the_lowest_ids():
    """Longer than any block that a device sorts at once."""
    found = on_device(np.zeros((1, 50_000)), SamplingParams(top_k=7), [0])[0]
    assert np.flatnonzero(found).tolist() == list(range(7))


@pytest.mark.parametrize("temperature", [1e-30, 1e-6])
def test_a_tiny_temperature_is_the_limit_not_a_nan(temperature):
    assert on_device([[1.0, 3.0, 2.0]], SamplingParams(temperature=temperature), [0])[0].tolist() == [0, 1, 0]


def test_bans_leave_no_mass():
    found = on_device([[5.0, 1.0, -1e9, -np.inf]], SamplingParams(), [0])[0]
    assert found[2] == found[3] == 0
    np.testing.assert_allclose(found.sum(), 1, atol=TOLERANCE)


def test_temperature_0_is_an_exact_point_mass_whatever_the_filters():
    params = SamplingParams(temperature=0, top_k=3, top_p=0.5, min_p=0.5)
    assert on_device([[1.0, 3.0, 3.0]], params, [0])[0].tolist() == [0, 1, 0]
    assert np.array(point_masses(mx.array([2, 0]), 3)).tolist() == [[0, 0, 1], [1, 0, 0]]


def test_a_context_is_needed_for_penalties_and_processors_alone():
    assert needs_context(SamplingParams(presence_penalty=1), ())
    assert needs_context(SamplingParams(), (lambda tokens, logits: logits,))
    assert not needs_context(SamplingParams(top_k=3, logit_bias={1: 2.0}, penalty_window=4), ())


def test_processors_come_first_and_see_row_by_row_what_plain_decoding_would_show_them():
    seen = []

    def ban_the_last(tokens, logits):
        seen.append(tokens.tolist())
        return mx.where(mx.arange(logits.shape[-1]) == tokens[-1], -mx.inf, logits)

    def shift(tokens, logits):
        assert logits.shape == (1, 4)
        return logits + mx.arange(4)

    params = SamplingParams(repetition_penalty=2.0)
    found = on_device(np.ones((3, 4)), params, [3, 0, 1, 2], (ban_the_last, shift))
    assert seen == [[3, 0], [3, 0, 1], [3, 0, 1, 2]]
    for row, context in zip(found, seen, strict=True):
        logits = np.arange(1.0, 5.0)
        logits[context[-1]] = -np.inf
        np.testing.assert_allclose(row, oracle.distribution(logits, params, context), atol=TOLERANCE)


def test_a_bias_outside_the_vocabulary_is_refused():
    with pytest.raises(InvalidSetting, match=r"logit_bias names token 3; give ids inside the vocabulary 0\.\.2"):
        on_device([[1.0, 2.0, 3.0]], SamplingParams(logit_bias={3: 1.0}), [0])


# ------------------------------------------------------------------------------------------------- faulty logits

SETTINGS = [SamplingParams(temperature=0), SamplingParams(), SamplingParams(top_k=2, top_p=0.5, min_p=0.1)]


@pytest.mark.parametrize("params", SETTINGS)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_rows_with_a_number_that_is_not_finite_are_flagged_and_no_others(params, value):
    logits = mx.array([[1.0, 2.0, 3.0], [1.0, value, 3.0], [0.0, 0.0, 0.0]])
    assert row_faults(logits, distributions(logits, params)).tolist() == [0, 1, 0]


@pytest.mark.parametrize("params", SETTINGS)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_rows_that_processors_spoilt_are_told_from_those_of_the_model(params, value):
    logits = mx.array([[1.0, 2.0, 3.0]])
    p = distributions(logits, params, mx.array([0]), [lambda tokens, logits: mx.full(logits.shape, value)])
    assert row_faults(logits, p).tolist() == [2]


def test_faults_are_reported_with_model_and_position():
    check_rows([0, 0], "target", 4)
    with pytest.raises(NonFiniteLogits, match=r"the target's logits at position 5 hold NaN or infinity; check"):
        check_rows([0, 1, 2], "target", 4)
    with pytest.raises(
        NonFiniteLogits, match=r"processors left the draft model no distribution at position 6; they may ban"
    ):
        check_rows([2], "draft model", 6)


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=1e-300),
        SamplingParams(temperature=1e300),
        SamplingParams(logit_bias={0: 1e300}),
        SamplingParams(logit_bias={0: -1e300}),
        SamplingParams(presence_penalty=1.0, penalty_window=10**30),
    ],
    ids=str,
)
def test_settings_beyond_float32_give_the_distribution_of_float64(params):
    logits = [[1.0, 2.0, 3.0]]
    expected = oracle.distribution(np.array(logits[0]), params, [0, 0, 1])
    np.testing.assert_allclose(on_device(logits, params, [0, 0, 1])[0], expected, atol=TOLERANCE)


def test_penalties_that_leave_no_distribution_are_flagged_and_the_message_names_settings():
    logits, params = mx.array([[-1.0, 0.0, 3.0]]), SamplingParams(presence_penalty=-1e300)
    faults = row_faults(logits, distributions(logits, params, mx.array([1]))).tolist()
    with pytest.raises(NonFiniteLogits, match=r"the sampling settings or processors left the target no distribution"):
        check_rows(faults, "target", 0)
