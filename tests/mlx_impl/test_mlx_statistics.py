"""Statistics of a turn: counts that can be done by hand, rates only of what was looked at, and one line at the end."""

import pytest

mx = pytest.importorskip("mlx.core", reason="mlx is not installed; pip install 'specproof[mlx]'")

from mlx_decodes import lookup, make, rounds, tokens_of  # noqa: E402
from mlx_toys import Failing, InjectedError, pair, toy  # noqa: E402

from mlx_impl.statistics import VARIABLE, PlaceStatistics, Statistics  # noqa: E402
from reference.values import Round  # noqa: E402


def done(drafted, accepted, emitted=None):
    """A round of `drafted` proposals, `accepted` of them accepted."""
    tested = min(accepted + 1, drafted)
    return Round(
        drafted=(0,) * drafted,
        num_accepted=accepted,
        emitted=(0,) * (accepted + 1 if emitted is None else emitted),
        sum_min=(0.5, 0.75, 1.0)[:tested],
        sum_prod=(0.25, 0.25, 0.5)[:tested],
    )


ROUNDS = [done(3, 3), done(3, 0), done(3, 1), done(2, 2), done(0, 0), done(1, 0)]


def test_counts_are_those_done_by_hand():
    found = Statistics.of(ROUNDS)
    assert (found.rounds, found.drafted, found.tested, found.accepted) == (6, 12, 9, 6)
    assert found.places == (PlaceStatistics(5, 5, 3), PlaceStatistics(4, 3, 2), PlaceStatistics(3, 1, 1))
    assert found.rounds_by_drafted == {0: 1, 1: 1, 2: 1, 3: 3}
    assert found.rounds_by_accepted == {0: 3, 1: 1, 2: 1, 3: 1}
    assert found.sum_min == pytest.approx((5 * 0.5 + 3 * 0.75 + 1.0) / 9)
    assert found.sum_prod == pytest.approx((8 * 0.25 + 0.5) / 9)


def test_a_rate_is_conditional_on_the_place_being_reached():
    rates = [place.rate for place in Statistics.of(ROUNDS).places]
    assert rates == pytest.approx([3 / 5, 2 / 3, 1.0])
    assert rates[1] != ROUNDS[0].num_accepted / 4  # the control: over all that were drafted there


def test_what_was_never_reached_has_no_rate_and_a_dash_in_print():
    found = Statistics.of([done(2, 0), done(2, 0)])
    assert [place.rate for place in found.places] == [0.0, None]
    assert "by place: 0.000 (0/2), - (0/0);" in str(found)


def test_no_rounds_have_no_figures():
    found = Statistics.of([])
    assert (found.rounds, found.places, found.sum_min, found.sum_prod) == (0, (), None, None)
    assert str(found) == (
        "0 rounds; 0 drafted, 0 tested, 0 accepted; accepted where reached, by place: -; sum min(p, q) -, sum p q -; "
        "rounds by drafted: -; by accepted: -"
    )


def test_tokens_that_a_stop_cut_off_count_as_accepted():
    assert Statistics.of([done(3, 3, emitted=2)]).accepted == 3


@pytest.mark.parametrize("rule", ["rejection", "block"])
def test_a_state_has_the_statistics_of_its_rounds(rule):
    decoder, drafter = make(rule, 3, *pair("plain"))
    state = decoder.prefill([1, 2, 3], drafter, 14)
    assert state.statistics.rounds == 0
    assert tuple(rounds(decoder, state)) == state.rounds
    found = state.statistics
    assert found.accepted + found.rounds == len(state.emitted) - 1
    assert 0 < found.sum_prod < found.sum_min < 1


# ------------------------------------------------------------------------------------------------------- in print


def decoded(close_after=None, **settings):
    decoder, drafter = make("greedy", 3, draft=toy("target"), **settings)
    iterator = decoder.generate(decoder.prefill([1, 2], drafter, 9))
    if close_after is None:
        return tokens_of(iterator)
    received = [next(iterator).token for _ in range(close_after)]
    iterator.close()
    return received


LINE = (
    "SPECPROOF_ACCEPT_DIAG: {} rounds; {} drafted, {} tested, {} accepted; accepted where reached, by place: {}; "
    "sum min(p, q) 1.000, sum p q 1.000; rounds by drafted: {}; by accepted: {}\n"
)
ONE = LINE.format(1, 3, 3, 3, "1.000 (1/1), 1.000 (1/1), 1.000 (1/1)", "1 with 3", "1 with 3")
TWO = LINE.format(2, 6, 6, 6, "1.000 (2/2), 1.000 (2/2), 1.000 (2/2)", "2 with 3", "2 with 3")


def test_the_end_of_a_generation_prints_one_line_where_it_is_asked_for(monkeypatch, capsys):
    monkeypatch.setenv(VARIABLE, "1")
    decoded()
    assert capsys.readouterr() == ("", TWO)


def test_so_does_a_close(monkeypatch, capsys):
    monkeypatch.setenv(VARIABLE, "1")
    decoded(close_after=2)
    assert capsys.readouterr().err == ONE


def test_so_does_an_exception(monkeypatch, capsys):
    monkeypatch.setenv(VARIABLE, "1")
    with pytest.raises(InjectedError):
        decoded(target=Failing(toy("target"), 2, "before", InjectedError()))
    assert capsys.readouterr().err == ONE


def test_a_turn_without_proposals_says_so(monkeypatch, capsys):
    monkeypatch.setenv(VARIABLE, "1")
    decoder, _ = make("greedy", 0)
    tokens_of(decoder.generate(decoder.prefill([1, 2], lookup(), 3)))
    assert "2 rounds; 0 drafted, 0 tested, 0 accepted; accepted where reached, by place: -;" in capsys.readouterr().err


@pytest.mark.parametrize("value", [None, "", "0"])
def test_nothing_is_printed_where_nobody_asks(monkeypatch, capsys, value):
    monkeypatch.delenv(VARIABLE, raising=False) if value is None else monkeypatch.setenv(VARIABLE, value)
    decoded()
    assert capsys.readouterr() == ("", "")
