"""Whatever a decoder goes through, all invariants hold after each event, and a further turn goes on right."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import rule, run_state_machine_as_test
from invariants.mutants import DropsTheWrongRows, ForgetsCloseCleanUp, ForgetsRollback, HidesProposals, SpoilsOneRow
from life.drivers import OracleDriver, mlx_impl_driver
from life.judging import violations
from life.machine import DecoderLife
from life.wrong import CountsItsRowsItself, LagsAtTheEnd, SharesItsCache, SpendsOneBudget

from reference.decoder import Decoder
from reference.values import SamplingParams
from specproof import forcing
from specproof.adapters.reference import ReferenceEngine
from specproof.engine import Case, ModelSpec
from specproof.pairs import toy
from specproof.regimes import REGIMES
from specproof.runner import run_turn

GREEDY = SamplingParams(temperature=0.0)
LIVES = 2
"""Lives of the oracle for each example of the profile: it is quick."""
UNLUCKY = 4
"""Times as many lives for a decoder that is wrong: most are found in the first quarter, which ones depends on luck."""
UNSHRUNK = {"derandomize": True, "database": None, "phases": [Phase.generate]}
"""For failures that are wanted."""


class OracleLife(DecoderLife):
    driver = OracleDriver()


def lives(factor=1, **changes):
    """The profile's settings, for the oracle."""
    return settings(max_examples=factor * LIVES * settings.default.max_examples, **changes)


def test_the_oracle_holds_all_its_life():
    run_state_machine_as_test(OracleLife, settings=lives())


def test_mlx_impl_holds_all_its_life():
    pytest.importorskip("mlx.core", reason="needs the extra mlx")

    class MlxImplLife(DecoderLife):
        driver = mlx_impl_driver()

    run_state_machine_as_test(MlxImplLife)


def test_mlx_lm_breaks_in_its_life_nothing_but_what_is_known():
    pytest.importorskip("mlx_lm", reason="needs the extra mlx-lm")
    from life.mlx_lm_machine import MlxLmLife

    run_state_machine_as_test(MlxLmLife)


def test_the_caches_of_mlx_impl_go_through_the_file_of_mlx_lm(tmp_path):
    cache = pytest.importorskip("mlx_lm.models.cache", reason="needs the extra mlx-lm")

    driver = mlx_impl_driver()
    case = Case(id="file", regime="life", target=ModelSpec(toy().target), draft=ModelSpec(toy().draft),
                prompt=(7, 8, 9), rule="greedy", sampling=GREEDY, num_draft_tokens=3, max_tokens=6)  # fmt: skip
    randomness = driver.randomness(0)
    decoder = driver.decoder(case, driver.model("target", case.target), randomness, [], lambda state, done: None)
    state = decoder.prefill(case.prompt, driver.drafter(case, randomness), case.max_tokens)
    for _ in decoder.generate(state):
        pass
    cache.save_prompt_cache(str(tmp_path / "cache.safetensors"), list(state.target_cache))
    loaded = state.copy()
    loaded.target_cache = cache.load_prompt_cache(str(tmp_path / "cache.safetensors"))
    assert type(loaded.target_cache[0]) is cache.KVCache
    following = [[item.token for item in decoder.generate(decoder.extend(held, (4, 5), 9))] for held in (loaded, state)]
    assert following[0] == following[1]
    assert len(following[0]) == 9


# ----------------------------------------------------------------------------------------------- negative controls


def test_the_life_of_mlx_lm_finds_what_is_known_where_it_is_not_excused(monkeypatch):
    pytest.importorskip("mlx_lm", reason="needs the extra mlx-lm")
    from life import mlx_lm_machine

    monkeypatch.setattr(mlx_lm_machine, "is_known", lambda run, violation: False)
    with pytest.raises(AssertionError, match=r"breaks (target|draft)_cache_offset: .* Matches D52"):
        run_state_machine_as_test(mlx_lm_machine.MlxLmLife, settings=settings(**UNSHRUNK))


@pytest.mark.parametrize(
    ("regime", "max_tokens", "close_after", "left"),
    [
        ("all_reject", 4, None, (0, 0)),  # ends by a correction
        ("all_accept", 4, None, (0, -1)),  # by a bonus
        ("all_accept", 7, None, (1, 0)),  # by the last proposal of a block
        ("all_accept", 2, None, (1, 0)),  # of a block that the budget made short
        ("all_accept", 9, 2, (1, 1)),  # by an earlier one
    ],
)
def test_what_is_excused_of_mlx_lm_is_known_to_the_row(regime, max_tokens, close_after, left):
    pytest.importorskip("mlx_lm", reason="needs the extra mlx-lm")
    from life.mlx_lm_machine import ENGINE, is_known, surplus

    models = (
        forcing.all_accept(toy(), "greedy", GREEDY) if regime == "all_accept" else forcing.all_reject(toy(), GREEDY)
    )
    case = Case(id="left", regime=regime, target=models.target, draft=models.draft, prompt=(7, 8, 9), rule="greedy",
                sampling=GREEDY, num_draft_tokens=3, max_tokens=max_tokens, close_after=close_after)  # fmt: skip
    run, _ = run_turn(ENGINE, case)
    assert surplus(run) == left
    found = violations(run)
    assert bool(found) == (left != (0, 0))
    assert all(is_known(run, violation) for violation in found)
    other = [
        replace(violation, numbers={**violation.numbers, "held": violation.numbers["held"] + 3}) for violation in found
    ]
    assert not any(is_known(run, violation) for violation in other)


@pytest.mark.parametrize(
    ("wrong", "finding"),
    [
        (ForgetsRollback, "at exit by (abort|close)"),  # a close, too, goes back by it
        (ForgetsCloseCleanUp, "the history is .*, with what was received it is"),
        (DropsTheWrongRows, r"breaks (cache_content: target cache|exit_state: token)"),
        (SpoilsOneRow, "breaks cache_content: draft cache"),
        (HidesProposals, r"breaks (processor_history|exit_state: token)"),
        (CountsItsRowsItself, "breaks draft_cache_offset: .* too few"),
        (LagsAtTheEnd, "breaks draft_cache_offset: .* too few"),
        (SharesItsCache, "breaks draft_cache_offset: .* too many"),
        (SpendsOneBudget, r"breaks exit_state: .* \(next turn on the caches"),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_a_wrong_decoder_is_found_within_four_times_the_lives_of_the_profile(wrong, finding):
    part = "decoder_class" if issubclass(wrong, Decoder) else "drafter_class"

    class WrongLife(DecoderLife):
        driver = OracleDriver(**{part: wrong})

    with pytest.raises(AssertionError, match=finding):
        run_state_machine_as_test(WrongLife, settings=lives(UNLUCKY, **UNSHRUNK))


@pytest.mark.parametrize("kind", ["oracle", "mlx_lm"])
def test_a_rule_that_does_not_judge_is_found(kind):
    if kind == "mlx_lm":
        pytest.importorskip("mlx_lm", reason="needs the extra mlx-lm")
        from life import mlx_lm_machine

    class Careless(OracleLife if kind == "oracle" else mlx_lm_machine.MlxLmLife):
        @rule()
        def look_away(self):
            pass

    with pytest.raises(AssertionError, match="an event of this life was not judged"):
        run_state_machine_as_test(Careless, settings=settings(**UNSHRUNK))


@pytest.mark.parametrize(
    ("part", "wrong", "finding"),
    [
        ("drafter_class", "TrimsRejectedPlusOne", "breaks draft_cache_offset: .* too few"),
        ("decoder_class", "TrimsOneTooFew", "breaks target_cache_offset: .* too many"),
    ],
    ids=["drafter", "decoder"],
)
def test_a_wrong_decoder_on_mlx_is_found_within_the_lives_of_the_profile(part, wrong, finding):
    pytest.importorskip("mlx.core", reason="needs the extra mlx")
    from life import wrong_mlx

    class WrongLife(DecoderLife):
        driver = mlx_impl_driver(**{part: getattr(wrong_mlx, wrong)})

    with pytest.raises(AssertionError, match=finding):
        run_state_machine_as_test(WrongLife, settings=settings(**UNSHRUNK))


@pytest.mark.parametrize("wrong", [CountsItsRowsItself, SharesItsCache, SpendsOneBudget])
def test_what_is_wrong_later_in_life_is_right_in_every_single_turn(wrong):
    part = "decoder_class" if issubclass(wrong, Decoder) else "drafter_class"
    engine = ReferenceEngine(wrong.__name__, **{part: wrong})
    for name in ("mixed", "all_accept", "close"):
        cases = [
            case for case in REGIMES[name].cases(toy(), engine.capabilities, 0, quick=True) if case.rule == "block"
        ]
        assert cases
        assert not [found for case in cases for found in violations(run_turn(engine, case)[0])]
