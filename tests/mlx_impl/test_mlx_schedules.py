"""When a draft model forwards the last proposal of a block that was accepted as a whole: at once, or a round later."""

from dataclasses import replace

import pytest

mx = pytest.importorskip("mlx.core", reason="mlx is not installed; pip install 'specproof[mlx]'")

from mlx_decodes import greedy, make, tokens_of  # noqa: E402
from mlx_engines import some_cases, violations  # noqa: E402
from mlx_toys import GREEDY, Counting, toy  # noqa: E402

from mlx_impl import DraftModel, KeyedRandomness  # noqa: E402
from reference.errors import InvalidSetting  # noqa: E402
from specproof.adapters.mlx_impl import DEFERRED, ENGINE, MlxImplEngine  # noqa: E402
from specproof.invariants import RUN_INVARIANTS  # noqa: E402

PROMPT = [3, 1, 4]


def its_own_drafter(schedule):
    """The target drafts for itself, so that all is accepted: (decoder, drafter, lengths of the drafter's forwards)."""
    model = Counting(toy("target"))
    decoder, _ = make("greedy", 2)
    return decoder, DraftModel(model, GREEDY, KeyedRandomness(0), schedule=schedule), model.lengths


@pytest.mark.parametrize(
    ("schedule", "rows", "forwards"),
    [("catch_up", [6, 9], [3, 1, 1, 1, 1, 1, 1]), ("deferred", [5, 8], [3, 1, 1, 2, 1])],
)
def test_the_last_proposal_of_an_accepted_block_is_forwarded_at_once_or_with_the_next_pending_token(
    schedule, rows, forwards
):
    decoder, drafter, lengths = its_own_drafter(schedule)
    state = decoder.prefill(PROMPT, drafter, 20)
    found = []
    for _ in rows:
        assert decoder.step(state).num_accepted == 2
        found.append(drafter.cache.length)
    assert found == rows
    assert lengths == forwards


@pytest.mark.parametrize("close_after", [1, 2, 3, 4, 5, None])
def test_a_deferred_row_is_there_at_every_end(close_after):
    decoder, drafter, _ = its_own_drafter("deferred")
    state = decoder.prefill(PROMPT, drafter, 7)
    iterator = decoder.generate(state)
    taken = tokens_of(iterator) if close_after is None else [next(iterator).token for _ in range(close_after)]
    iterator.close()
    assert drafter.cache.length == state.target_cache.length == len(PROMPT) + len(taken) - 1
    assert tuple(taken) == greedy(toy("target"), PROMPT, len(taken))


def test_all_invariants_hold_with_a_deferred_drafter_in_every_regime():
    lags = 0
    for case in some_cases(2):
        wrong, run = violations(DEFERRED, case)
        assert not wrong, (case.id, wrong)
        seen = [boundary.observation for boundary in run.boundaries]
        lags += any(held.draft_offsets < held.target_offsets[: len(held.draft_offsets)] for held in seen)
    assert lags


def test_a_deferred_drafter_is_accused_where_it_is_not_declared():
    """The control."""
    case = next(case for case in some_cases(1) if case.regime == "all_accept")
    _, run = violations(DEFERRED, case)
    undeclared = replace(run, capabilities=ENGINE.capabilities)
    assert RUN_INVARIANTS["draft_cache_offset"].check(undeclared)


class StaysShort(DraftModel):
    """Settles as it commits."""

    def settle(self, history):
        if self.cache.length:
            self.commit(history)
        else:
            super().settle(history)


def test_a_deferred_drafter_that_stays_short_at_an_end_is_seen():
    case = next(case for case in some_cases(1) if case.regime == "all_accept")
    wrong, _ = violations(MlxImplEngine("short", drafter_class=StaysShort, schedule="deferred"), case)
    assert set(wrong) & {"draft_cache_offset", "exit_state"}


def test_an_unknown_schedule_is_refused():
    with pytest.raises(InvalidSetting, match="schedule is 'eager'; give one of catch_up, deferred"):
        DraftModel(toy("draft"), GREEDY, KeyedRandomness(0), schedule="eager")
