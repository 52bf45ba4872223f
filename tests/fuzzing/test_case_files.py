"""Cases as JSON: nothing is lost, nothing is guessed, and a file means the same on another machine."""

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference.errors import InvalidSetting
from reference.values import SamplingParams
from specproof import transforms
from specproof.adapters.reference import ENGINE
from specproof.engine import Case, Fault, ModelSpec
from specproof.fuzzing.case_files import TRANSFORMS, from_json, to_json
from specproof.fuzzing.law_strategies import exact_cases, output_cases
from specproof.fuzzing.strategies import cases
from specproof.pairs import tiny, toy

finite = st.floats(allow_nan=False, allow_infinity=False)
simple_transforms = st.one_of(
    st.just(transforms.Identity()),
    st.just(transforms.BanArgmax()),
    st.just(transforms.Flat()),
    st.builds(transforms.Disjoint, st.integers(0, 1)),
    st.builds(transforms.Sharpen, finite),
    st.builds(transforms.Recite, st.lists(st.integers(0, 9), min_size=1).map(tuple), finite),
)
any_transform = st.recursive(
    simple_transforms,
    lambda inner: st.one_of(
        st.builds(transforms.Scripted, st.lists(st.booleans(), min_size=1).map(tuple), inner, inner),
        st.builds(transforms.Chain, st.lists(inner, max_size=3).map(tuple)),
    ),
    max_leaves=4,
)
folders = st.one_of(
    st.sampled_from([toy().target, toy().draft, tiny().target, tiny().draft]),
    st.text(st.characters(codec="ascii", exclude_characters="/\0"), min_size=1).map(
        lambda name: Path("/models") / name
    ),
)
models = st.builds(
    ModelSpec,
    folders,
    st.none() | any_transform,
    st.none() | st.builds(Fault, st.integers(0, 99), st.sampled_from(["before", "after"])),
)
samplings = st.builds(
    SamplingParams,
    temperature=st.floats(0, 9),
    top_k=st.integers(0, 99),
    top_p=st.floats(0.01, 1),
    min_p=st.floats(0, 1),
    repetition_penalty=st.floats(0.1, 9),
    presence_penalty=finite,
    frequency_penalty=finite,
    penalty_window=st.integers(0, 99),
    logit_bias=st.dictionaries(st.integers(0, 99), finite, max_size=3),
)
any_case = st.builds(
    Case,
    id=st.text(),
    regime=st.text(),
    target=models,
    draft=st.none() | models,
    prompt=st.lists(st.integers(0, 99), min_size=1).map(tuple),
    rule=st.text(),
    sampling=samplings,
    num_draft_tokens=st.integers(0, 9),
    max_tokens=st.integers(0, 99),
    stop_tokens=st.frozensets(st.integers(0, 99)),
    seed=st.integers(0, 2**64),
    drafter=st.sampled_from(["draft_model", "prompt_lookup"]),
    min_prob=finite,
    close_after=st.none() | st.integers(1, 9),
)
CASE = Case(
    "id", "plain", ModelSpec(toy().target), ModelSpec(toy().draft, transforms.Sharpen(2.0)), (1,), "greedy",
    SamplingParams(logit_bias={3: -0.5}), 2, 4, frozenset({7, 2}),
)  # fmt: skip


def through_json(case: Case) -> Case:
    return from_json(json.loads(json.dumps(to_json(case), allow_nan=False)))


@given(any_case)
def test_any_case_comes_back_from_json_as_it_was(case: Case) -> None:
    assert through_json(case) == case


@given(cases(ENGINE.capabilities, toy()) | output_cases(ENGINE, "output_law") | exact_cases(ENGINE, "exact_law"))
def test_every_drawn_case_comes_back_from_json_as_it_was(case: Case) -> None:
    assert through_json(case) == case


@pytest.mark.parametrize("name", [field.name for field in fields(Case)])
def test_no_field_of_a_case_is_left_out(name: str) -> None:
    """The negative control of the round trip: a file without the field is another case, or none."""
    data = to_json(replace(CASE, seed=3, drafter="prompt_lookup", min_prob=0.25, close_after=1))
    del data[name]
    try:
        assert from_json(data) != replace(CASE, seed=3, drafter="prompt_lookup", min_prob=0.25, close_after=1)
    except InvalidSetting as error:
        assert "incomplete" in str(error)  # noqa: PT017


def test_a_folder_of_a_built_in_pair_is_written_by_name_and_any_other_as_its_path() -> None:
    data = to_json(replace(CASE, draft=ModelSpec(Path("/models/mine"))))
    assert data["target"]["folder"] == "toy/target"
    assert data["draft"]["folder"] == "/models/mine"
    assert str(toy().target.parent) not in json.dumps(data)


def test_every_transform_of_the_package_can_be_written() -> None:
    assert {"Identity", "Scripted", "Chain", "Recite"} <= set(TRANSFORMS)


def test_a_transform_of_somebody_else_is_refused() -> None:
    foreign = replace(CASE, target=ModelSpec(toy().target, lambda logits, positions: logits))
    with pytest.raises(InvalidSetting, match=r"cannot be written into a case file; use a transform of specproof"):
        to_json(foreign)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_draft_tokens": "2"}, r"case\.num_draft_tokens is '2'; expected a value of type int"),
        ({"num_draft_tokens": True}, r"case\.num_draft_tokens is True; expected a value of type int"),
        ({"prompt": 5}, r"case\.prompt is 5; expected a list"),
        ({"prompt": [1, None]}, r"case\.prompt\[1\] is None; expected a value of type int"),
        ({"draft": 5}, r"case\.draft is 5; expected an object"),
        ({"drafter": "oracle"}, r"case\.drafter is 'oracle'; expected one of draft_model, prompt_lookup"),
        ({"wings": 2}, r"case has no wings; its fields are id, "),
        ({"target": {"folder": 5}}, r"case\.target\.folder is 5; expected a folder"),
        ({"target": {}}, r"case\.target is incomplete: .*folder"),
        ({"target": {"folder": "f", "transform": {"transform": "Path"}}}, r"transform is 'Path'; expected one of"),
        ({"target": {"folder": "f", "transform": {"part": 0}}}, r"expected an object with a transform"),
        ({"sampling": {"logit_bias": {"x": 1.0}}}, r"logit_bias is 'x'; expected an object whose keys are integers"),
        ({"sampling": {"top_p": 0.0}}, r"case\.sampling is refused: top_p is 0\.0; give"),
    ],
)  # fmt: skip
def test_a_malformed_case_is_refused_with_its_place(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidSetting, match=message):
        from_json(to_json(CASE) | change)


def test_what_is_no_object_is_no_case() -> None:
    with pytest.raises(InvalidSetting, match=r"case is \[\]; expected an object"):
        from_json([])
