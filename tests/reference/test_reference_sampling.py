"""From logits to the distribution: every parameter by a case computed by hand, and laws that hold for all."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reference import SamplingParams, Transformer, distribution, load
from reference.errors import DecodingFault, InvalidSetting, NonFiniteLogits
from reference.sampling import keep_min_p, keep_top_k, keep_top_p, next_distribution

HALVES = np.array([0.5, 0.25, 0.125, 0.125])
LOGITS = np.log(HALVES)


def assert_distribution(actual: np.ndarray, expected: Sequence[float]) -> None:
    np.testing.assert_allclose(actual, expected, atol=1e-12)


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        (SamplingParams(), HALVES),
        (SamplingParams(temperature=0.5), [16 / 22, 4 / 22, 1 / 22, 1 / 22]),
        (SamplingParams(temperature=0), [1, 0, 0, 0]),
        (SamplingParams(top_k=1), [1, 0, 0, 0]),
        (SamplingParams(top_k=3), [4 / 7, 2 / 7, 1 / 7, 0]),
        (SamplingParams(top_k=9), HALVES),
        (SamplingParams(top_p=0.4), [1, 0, 0, 0]),
        (SamplingParams(top_p=0.5), [1, 0, 0, 0]),
        (SamplingParams(top_p=0.51), [2 / 3, 1 / 3, 0, 0]),
        (SamplingParams(top_p=0.76), [4 / 7, 2 / 7, 1 / 7, 0]),
        (SamplingParams(min_p=0.5), [2 / 3, 1 / 3, 0, 0]),
        (SamplingParams(min_p=1), [1, 0, 0, 0]),
        (SamplingParams(logit_bias={3: np.log(4)}), [4 / 11, 2 / 11, 1 / 11, 4 / 11]),
    ],
)
def test_each_parameter_alone_gives_the_distribution_computed_by_hand(
    params: SamplingParams, expected: Sequence[float]
) -> None:
    assert_distribution(distribution(LOGITS, params, [0]), expected)


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        (SamplingParams(repetition_penalty=2), [1.0, -2.0, 3.0, 0.5]),
        (SamplingParams(presence_penalty=0.3), [1.7, -1.3, 3.0, 0.7]),
        (SamplingParams(frequency_penalty=0.3), [1.4, -1.3, 3.0, 0.7]),
        (SamplingParams(frequency_penalty=0.3, penalty_window=2), [1.7, -1.0, 3.0, 0.7]),
        (SamplingParams(presence_penalty=-1, penalty_window=1), [2.0, -1.0, 3.0, 2.0]),
        (SamplingParams(repetition_penalty=2, presence_penalty=1, frequency_penalty=0.5), [-1.0, -3.5, 3.0, -1.0]),
    ],
)
def test_each_penalty_moves_the_logits_computed_by_hand(params: SamplingParams, expected: Sequence[float]) -> None:
    logits, context = np.array([2.0, -1.0, 3.0, 1.0]), [1, 0, 0, 3]
    assert_distribution(distribution(logits, params, context), distribution(np.array(expected), SamplingParams(), []))


def test_the_order_is_penalties_bias_temperature_top_k_top_p_min_p() -> None:
    """Swapping any two neighbours would change one of these."""
    # Repetition halves 2 before the bias adds 1: 2, not 1.5. Temperature scales their sum.
    params = SamplingParams(repetition_penalty=2, logit_bias={0: 1.0}, temperature=2)
    assert_distribution(distribution(np.array([2.0, 0.0]), params, [0]), np.exp([1, 0]) / np.exp([1, 0]).sum())
    # Temperature 0.5 makes 16 : 4 : 1 : 1, whose first token alone has 0.7 of the mass; before it, it would not.
    assert_distribution(distribution(LOGITS, SamplingParams(temperature=0.5, top_p=0.7), []), [1, 0, 0, 0])
    # Top-k leaves 2/3 : 1/3, so that the first token reaches 0.6; before top-k it would not.
    assert_distribution(distribution(LOGITS, SamplingParams(top_k=2, top_p=0.6), []), [1, 0, 0, 0])
    # Top-p and min-p commute, since min-p is relative to the highest probability.
    assert_distribution(distribution(LOGITS, SamplingParams(top_p=0.9, min_p=0.3), []), [2 / 3, 1 / 3, 0, 0])


def test_ties_go_to_the_lowest_ids() -> None:
    tied = np.array([1.0, 2.0, 2.0, 2.0])
    assert_distribution(distribution(tied, SamplingParams(temperature=0), []), [0, 1, 0, 0])
    assert_distribution(distribution(tied, SamplingParams(top_k=2), []), [0, 0.5, 0.5, 0])
    assert_distribution(distribution(tied, SamplingParams(top_p=0.5), []), [0, 0.5, 0.5, 0])
    assert_distribution(keep_min_p(np.array([0.4, 0.2, 0.4]), 1), [0.5, 0, 0.5])


@pytest.mark.parametrize("temperature", [5e-324, 1e-300, 1e-8])
def test_no_temperature_is_too_small(temperature: float) -> None:
    assert_distribution(distribution(LOGITS, SamplingParams(temperature=temperature), []), [1, 0, 0, 0])


logit_arrays = st.lists(st.sampled_from([-3.0, -1.0, 0.0, 0.5, 1.0, 2.5]), min_size=1, max_size=7).map(np.array)
params = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0, 0.3, 1, 2]),
    top_k=st.integers(0, 8),
    top_p=st.sampled_from([0.05, 0.5, 0.9, 1]),
    min_p=st.sampled_from([0, 0.2, 1]),
    repetition_penalty=st.sampled_from([0.5, 1, 1.7]),
    presence_penalty=st.sampled_from([-1, 0, 0.5]),
    frequency_penalty=st.sampled_from([-1, 0, 0.5]),
    penalty_window=st.integers(0, 4),
)


@settings(max_examples=150, deadline=None)
@given(logits=logit_arrays, params=params, data=st.data())
def test_every_setting_gives_a_distribution(logits: np.ndarray, params: SamplingParams, data: st.DataObject) -> None:
    context = data.draw(st.lists(st.integers(0, len(logits) - 1), max_size=6))
    before = logits.copy()
    p = distribution(logits, params, context)
    assert p.shape == logits.shape
    assert (p >= 0).all()
    assert p.sum() == pytest.approx(1, abs=1e-12)
    np.testing.assert_array_equal(logits, before)
    if params.temperature == 0:
        assert sorted(p)[:-1] == [0] * (len(p) - 1)


@settings(max_examples=80, deadline=None)
@given(weights=st.lists(st.integers(0, 5), min_size=1, max_size=7).filter(any), k=st.integers(1, 8))
def test_filters_keep_what_they_promise_and_the_ratios_of_it(weights: list[int], k: int) -> None:
    p = np.array(weights) / sum(weights)
    ranked = sorted(range(len(p)), key=lambda token: (-p[token], token))
    support = {token for token in ranked[:k] if p[token] > 0}
    for kept, expected in (
        (keep_top_k(p, k), support),
        (keep_min_p(p, 0.4), {t for t in ranked if p[t] > 0 and p[t] >= 0.4 * p.max()}),
        (keep_top_p(p, 0.7), {t for i, t in enumerate(ranked) if p[ranked[:i]].sum() < 0.7 - 1e-12 and p[t] > 0}),
    ):
        assert set(np.flatnonzero(kept)) == expected
        np.testing.assert_allclose(kept[list(expected)] * p[list(expected)].sum(), p[list(expected)], atol=1e-12)


@settings(max_examples=30, deadline=None)
@given(logits=logit_arrays, shift=st.sampled_from([-1e4, -1.0, 0.5, 1e4]))
def test_a_constant_added_to_all_logits_changes_nothing(logits: np.ndarray, shift: float) -> None:
    np.testing.assert_allclose(
        distribution(logits + shift, SamplingParams(), []), distribution(logits, SamplingParams(), []), atol=1e-9
    )


def test_a_bias_outside_the_vocabulary_is_refused() -> None:
    with pytest.raises(InvalidSetting, match=r"logit_bias names token 4; give ids inside the vocabulary 0\.\.3"):
        distribution(LOGITS, SamplingParams(logit_bias={4: 1.0}), [])


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("temperature", -0.1, "temperature is -0.1; give a finite number >= 0"),
        ("temperature", float("nan"), "temperature is nan"),
        ("temperature", float("inf"), "temperature is inf"),
        ("top_p", 0.0, r"top_p is 0.0; give a number in \(0, 1\]"),
        ("top_p", 1.1, "top_p is 1.1"),
        ("top_p", -0.5, "top_p is -0.5"),
        ("top_k", -1, "top_k is -1"),
        ("min_p", 1.5, "min_p is 1.5"),
        ("repetition_penalty", 0.0, "repetition_penalty is 0.0"),
        ("presence_penalty", float("nan"), "presence_penalty is nan"),
        ("penalty_window", -1, "penalty_window is -1"),
        ("logit_bias", {-1: 1.0}, "logit_bias is -1"),
        ("logit_bias", {0: float("inf")}, "logit_bias is inf"),
    ],
)
def test_settings_outside_their_range_are_refused(field: str, value: object, message: str) -> None:
    with pytest.raises(InvalidSetting, match=message):
        SamplingParams(**{field: value})


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_logits_that_are_not_finite_name_model_position_and_token(bad: float) -> None:
    logits = np.array([0.0, 0.0, bad, 0.0])
    with pytest.raises(
        NonFiniteLogits, match=rf"toy gave the logit {bad} for token 2 at position 1; .* check the model"
    ):
        next_distribution(logits, [7, 8], SamplingParams(), (), "toy")


def test_processors_see_the_context_and_may_ban_tokens() -> None:
    seen = []

    def ban_zero(context: Sequence[int], logits: np.ndarray) -> np.ndarray:
        seen.append(tuple(context))
        return np.where(np.arange(len(logits)) == 0, -np.inf, logits)

    params = SamplingParams(repetition_penalty=2, presence_penalty=1)
    p = next_distribution(LOGITS, [3, 0], params, (ban_zero,), "toy")
    assert seen == [(3, 0)]
    assert p[0] == 0
    assert p.sum() == pytest.approx(1)
    greedy = next_distribution(LOGITS, [3, 0], SamplingParams(temperature=0), (ban_zero,), "toy")
    assert_distribution(greedy, [0, 1, 0, 0])


@pytest.mark.parametrize(("value", "shown"), [(-np.inf, "-inf"), (np.nan, "nan"), (np.inf, "inf")])
def test_processors_that_leave_no_distribution_are_an_error(value: float, shown: str) -> None:
    with pytest.raises(NonFiniteLogits, match=f"processors left no distribution for toy at position 1 .*{shown}"):
        next_distribution(LOGITS, [3, 0], SamplingParams(), (lambda context, logits: np.full(4, value),), "toy")


@pytest.mark.parametrize(
    ("returned", "shown"),
    [
        (None, "a NoneType of shape None"),
        (np.zeros(3), r"a ndarray of shape \(3,\)"),
        (np.zeros((1, 4)), r"a ndarray of shape \(1, 4\)"),
        ([0.0] * 4, "a list of shape None"),
    ],
    ids=str,
)
def test_processors_that_return_no_logits_of_the_right_width_are_named(returned: object, shown: str) -> None:
    processors = (lambda context, logits: logits, lambda context, logits: returned)
    with pytest.raises(
        DecodingFault, match=rf"logits processor 1 of toy returned {shown}, expected an array of \(4,\): return"
    ):
        next_distribution(LOGITS, [3, 0], SamplingParams(), processors, "toy")


def spreads(model: Transformer, scale: float = 1.0) -> np.ndarray:
    """Entropies at temperature 1, as shares of a uniform distribution's, behind every token of some prompts."""
    generator, size = np.random.default_rng(0), model.vocab_size
    prompts = generator.integers(size, size=(12, 6)).tolist()
    rows = np.concatenate([model.forward_without_cache(prompt).logits for prompt in prompts])  # [12 * 6, V]
    each = [distribution(scale * row, SamplingParams(), []) for row in rows]
    return np.array([-(p * np.log(np.maximum(p, 1e-300))).sum() for p in each]) / np.log(size)


def neither_uniform_nor_point_masses(shares: np.ndarray) -> bool:
    """Nowhere the one or the other, in nine of ten places far from both, and in the middle on the whole."""
    far = np.mean((shares > 0.1) & (shares < 0.99))
    return bool(shares.min() > 0.01 and shares.max() < 0.999 and far >= 0.9 and 0.3 < np.median(shares) < 0.9)


@pytest.mark.parametrize("name", ["target", "draft", "tiny-target", "tiny-draft"])
def test_toy_logits_are_neither_uniform_nor_a_point_mass(toy_folder: Path, name: str) -> None:
    """The statistical and exact tests would see little on such a model."""
    model = load(toy_folder / name)
    assert neither_uniform_nor_point_masses(spreads(model))
    assert not neither_uniform_nor_point_masses(spreads(model, scale=0.05)), "hardly any spread"
    assert not neither_uniform_nor_point_masses(spreads(model, scale=20)), "argmax and nothing else"


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(repetition_penalty=1e308),
        SamplingParams(presence_penalty=-1.7e308, frequency_penalty=-1.7e308),
        SamplingParams(presence_penalty=1.7e308, logit_bias={0: -1.7e308}),
    ],
    ids=str,
)
def test_settings_that_overflow_are_an_error_that_names_them(params: SamplingParams) -> None:
    with pytest.raises(
        NonFiniteLogits, match=r"sampling settings took the logit of token 0 from -5\.0 to .*; give less .*_penalty="
    ):
        distribution(np.array([-5.0, 1.0]), params, [0])


INTEGERS = ("top_k", "penalty_window")
NUMBERS = ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")


@pytest.mark.parametrize("value", [1.5, float("inf"), "1", None], ids=repr)
def test_settings_that_count_must_be_integers(value: object) -> None:
    for name in INTEGERS:
        with pytest.raises(InvalidSetting, match=rf"{name} is .*; give an integer >= 0"):
            SamplingParams(**{name: value})  # type: ignore[arg-type]
    with pytest.raises(InvalidSetting, match=r"logit_bias is .*; give an integer >= 0"):
        SamplingParams(logit_bias={value: 1.0})  # type: ignore[dict-item]


@pytest.mark.parametrize("value", ["1", None, [1.0], 1j], ids=repr)
def test_settings_that_measure_must_be_real_numbers(value: object) -> None:
    for name in NUMBERS:
        with pytest.raises(InvalidSetting, match=rf"{name} is .*; give a (finite )?number"):
            SamplingParams(**{name: value})  # type: ignore[arg-type]
    with pytest.raises(InvalidSetting, match=r"logit_bias is .*; give a finite number"):
        SamplingParams(logit_bias={1: value})  # type: ignore[dict-item]


def test_numbers_of_numpy_become_plain_ones() -> None:
    params = SamplingParams(temperature=np.float32(0.5), top_k=np.int64(3), logit_bias={np.int64(1): np.float32(2)})
    assert params == SamplingParams(temperature=0.5, top_k=3, logit_bias={1: 2.0})
    assert {type(n) for n in (params.top_k, *params.logit_bias)} == {int}


def test_numbers_beyond_the_range_of_a_float_are_refused() -> None:
    with pytest.raises(InvalidSetting, match="temperature is inf; give a finite number >= 0"):
        SamplingParams(temperature=10**5000)
