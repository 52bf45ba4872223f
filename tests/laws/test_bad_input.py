"""`bad_input` accepts engines that refuse in time, and rejects those that go on, fail late, or blame nobody."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest
from law_controls import PlainSampler

from specproof.adapters.reference import ENGINE
from specproof.bad_input import PROBES, check
from specproof.defects import CATALOGUE
from specproof.engine import Capabilities, Case
from specproof.laws import LAWS
from specproof.pairs import tiny


def test_the_oracle_refuses_every_bad_input():
    result = check(ENGINE, tiny(), 0, quick=True)
    assert (result.status, result.cases) == ("holds", len(PROBES))


@pytest.mark.parametrize(
    ("name", "probe", "told"),
    [
        ("D68", "draft_context", "it was not refused, and 8 tokens came out"),
        ("D69", "draft_context", "it was not refused"),
        ("D70", "max_tokens", "max_tokens = -2: 1 tokens came out before it was refused by DecodingFault"),
        ("D86", "nan_target", "NaN logits of the target"),
        ("D122", "vocabulary_size", "it was not refused"),
        ("D123", "vocabulary_size", "1 tokens came out before it was refused by DecodingFault"),
        ("D126", "token_range", "it was not refused"),
        ("D128", "vocabulary_content", "the same ids to other tokens: it was not refused"),
    ],
)
def test_an_engine_that_takes_what_it_should_refuse_is_seen(name: str, probe: str, told: str):
    result = check(CATALOGUE[name].make(), tiny(), 0, quick=True)
    messages = {found.case_id: found.message for found in result.violations}
    assert told in messages[f"bad_input/{probe}"]
    # A drafter that is not compared at all is taken whatever its vocabulary.
    assert messages.keys() <= {f"bad_input/{probe}", "bad_input/vocabulary_content"}


@dataclass(frozen=True)
class Raises(PlainSampler):
    """Refuses everything with one message."""

    message: str = "no"

    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, refusals=frozenset({"nan_draft", "max_tokens"}))

    def start(self, case: Case) -> Iterator[int]:
        raise ValueError(self.message)


def test_a_refusal_must_name_the_model_at_fault():
    result = check(Raises(), tiny(), 0, quick=True)
    assert "ValueError: no, which does not name the draft model" in result.violations[0].message
    assert len(result.violations) == 1, "a bad setting is nobody's fault"
    assert check(Raises(message="the draft model gave NaN"), tiny(), 0, quick=True).status == "holds"


def test_an_engine_is_given_only_what_it_declares():
    assert not LAWS["bad_input"].observable(PlainSampler().capabilities)
    assert check(PlainSampler(), tiny(), 0, quick=True).status == "not_observable"
