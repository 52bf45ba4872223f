"""Logits processors see, before each token, the whole sequence up to it, as in plain decoding."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from controls import broken, case_named, violations
from hypothesis import given
from hypothesis import strategies as st
from mutants import AcceptsEverything, HidesProposals
from points import Point
from strategies import cases
from subjects import Subjects, assert_holds

from reference.decoder import Decoder, DecoderState
from reference.transformer import Activations
from reference.values import DraftBlock, Floats
from specproof.adapters.reference import ENGINE
from specproof.defects.draft_cache import TrimsRejectedPlusOne
from specproof.defects.mutations import with_decoder, with_drafter
from specproof.defects.processors import ShowsLastTokenOnly
from specproof.defects.target_cache import KeepsRejectedRows
from specproof.engine import Engine
from specproof.invariants import RUN_INVARIANTS
from specproof.pairs import toy
from specproof.runner import Run, beside_plain, run_case, run_turn


@pytest.mark.invariant("processor_history")
def test_processor_history_is_that_of_plain_decoding(run: Run, point: Point, subjects: Subjects) -> None:
    assert_holds("processor_history", beside_plain(subjects.engines[point.engine], run))


@pytest.mark.invariant("processor_history")
@given(data=st.data())
def test_processor_history_holds_for_drawn_cases(engine: Engine, data: st.DataObject) -> None:
    run, _ = run_turn(engine, data.draw(cases(engine.capabilities, toy())))
    assert_holds("processor_history", run)


# ----------------------------------------------------------------------------------------------- negative controls


@pytest.mark.parametrize(
    ("mutant", "message"),
    [
        (
            ShowsLastTokenOnly,
            r"processors saw 1 token \[\d+\] for the token at place 0 of the block, expected 3 tokens",
        ),
        (HidesProposals, r"processors saw 5 tokens .* for the token at place 1 of the block, expected 6 tokens"),
    ],
)
def test_processor_history_fails_on_another_history(mutant: type, message: str) -> None:
    found = violations("processor_history", run_case(with_decoder(mutant), case_named("plain/rejection/k4/T0/p1")))
    assert re.search(message, found[0].message), found[0]
    assert found[0].message.endswith("Plain decoding shows the whole sequence before each token.")


class MendsPlainDecodingOnly(Decoder):
    """D95: plain decoding shows processors the whole prompt now, and a round with proposals only its last token."""

    def _verify(self, state: DecoderState, block: DraftBlock) -> tuple[list[Floats], Activations]:
        if not block.tokens:
            return super()._verify(state, block)
        shown = replace(state, history=state.history[state.prompt_length - 1 :])
        return super()._verify(shown, block)


class MendsDraftingOnly(Decoder):
    """The mirror of D95: rounds without proposals show processors the last token only."""

    def _verify(self, state: DecoderState, block: DraftBlock) -> tuple[list[Floats], Activations]:
        return super()._verify(state if block.tokens else replace(state, history=state.history[-1:]), block)


def test_processor_history_compares_with_plain_decoding_of_the_same_case_call_by_call() -> None:
    run = run_case(with_decoder(MendsPlainDecodingOnly), case_named("mixed/greedy/k4/T0/p1"))
    (difference,) = [found for found in violations("processor_history", run) if "token" in found.numbers]
    assert difference.round == 0
    assert re.fullmatch(
        r"processors saw 2 tokens \[.*\] for emitted token 1, plain decoding of the same case showed 4 tokens \[.*\] "
        r"\(round 0, mixed, k=4\)\. A penalty or a mask means something else with a drafter .*",
        difference.message,
    )


def test_processor_history_says_so_where_plain_decoding_itself_is_wrong() -> None:
    run = run_case(with_decoder(MendsDraftingOnly), case_named("all_accept/greedy/k3/T0/p2"))
    assert all(boundary.round is None or boundary.round.drafted for boundary in run.boundaries)
    difference, plain = violations("processor_history", run)
    assert "for emitted token 1, plain decoding of the same case showed 1 token [" in difference.message
    assert re.fullmatch(
        r"plain decoding of the same case \(num_draft_tokens = 0\) is wrong itself: processors saw 1 token \[\d+\] for "
        r"emitted token 1, expected 13 tokens \[.*\] \(all_accept, k=3\)\.",
        plain.message,
    )


@pytest.mark.parametrize("case", ["mixed/coupled/k4/T0.8/p1", "plain/greedy/k4/T0/p0",
                                  "all_accept/block/k3/T0/p0"])  # fmt: skip
def test_plain_decoding_runs_to_its_end_beside_a_run_whose_tokens_it_must_give(case: str) -> None:
    run = run_case(ENGINE, case_named(case))
    assert run.plain is not None
    assert run.plain.ending == "length"
    assert run.plain.emitted[: len(run.emitted)] == run.emitted
    assert {len(boundary.contexts or ()) for boundary in run.plain.boundaries} == {1}
    assert run.plain.plain is None


@pytest.mark.parametrize("case", ["mixed/rejection/k4/T0.8/p0", "empty/greedy/k0/T0/p0", "close/greedy/k4/T0/after2"])
def test_plain_decoding_is_not_run_where_its_tokens_may_be_others_or_the_run_is_plain_or_cut(case: str) -> None:
    assert run_case(ENGINE, case_named(case)).plain is None


def test_processor_history_may_stop_behind_the_first_rejection_but_not_before() -> None:
    run = run_case(ENGINE, case_named("all_reject/greedy/k4/T0/p0"))
    first, second, *rest = run.boundaries
    assert second.contexts is not None
    for count, problems in ((5, 0), (1, 0), (0, 1)):
        shown = replace(run, boundaries=(first, replace(second, contexts=second.contexts[:count]), *rest))
        assert len(violations("processor_history", shown)) == problems
    found = violations("processor_history", shown)
    assert "the processors ran for 0 tokens, expected 1 to 5 (round 0" in found[0].message


def test_processor_history_allows_an_engine_to_keep_the_prompts_last_token_pending() -> None:
    """Nothing is drawn in prefill then, and the first round begins at the prompt."""
    run = run_case(ENGINE, replace(case_named("budget/greedy/k4/T0/n0")))
    assert run.boundaries[0].emitted == ()
    assert not violations("processor_history", run)
    shown = replace(run, boundaries=(replace(run.boundaries[0], contexts=((1, 2),)),))
    assert violations("processor_history", shown)[0].message.startswith("processors saw 2 tokens [1 2]")


def test_processor_history_does_not_apply_where_no_processor_ran() -> None:
    run = run_case(ENGINE, case_named("plain/greedy/k4/T0/p0"))
    unseen = replace(run, boundaries=tuple(replace(boundary, contexts=None) for boundary in run.boundaries))
    assert not RUN_INVARIANTS["processor_history"].applies(unseen)
    assert not violations("processor_history", unseen)


@pytest.mark.parametrize(
    "mutant", [with_decoder(AcceptsEverything), with_decoder(KeepsRejectedRows), with_drafter(TrimsRejectedPlusOne)],
    ids=lambda mutant: mutant.name,
)  # fmt: skip
def test_processor_history_is_silent_on_defects_of_other_kinds(mutant: Engine) -> None:
    for case in ("plain/rejection/k4/T0.8-penalties/p2", "mixed/greedy/k4/T0/p0"):
        assert "processor_history" not in broken(mutant, case)
