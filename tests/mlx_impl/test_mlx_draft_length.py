"""The adaptive length: which k it picks, what it may lose, how soon it adapts, and that the output is not its business.

Rounds are simulated on a clock of their own: nothing here depends on how fast the machine is.
"""

import itertools
import random
from collections import Counter
from dataclasses import replace

import pytest

mx = pytest.importorskip("mlx.core", reason="mlx is not installed; pip install 'specproof[mlx]'")

from laws.law_controls import tiny_case  # noqa: E402
from mlx_decodes import PROMPT, assert_at_boundary, greedy, lookup, make, rounds  # noqa: E402
from mlx_engines import some_cases, violations  # noqa: E402
from mlx_toys import Counting, Failing, InjectedError, Scripted, toy  # noqa: E402

from mlx_impl import AdaptiveLength, Decoder, DraftLength, DraftModel  # noqa: E402
from mlx_impl.draft_length import FixedLength  # noqa: E402
from mlx_impl.round_estimates import Acceptance  # noqa: E402
from reference.errors import InvalidSetting  # noqa: E402
from reference.values import SamplingParams  # noqa: E402
from specproof.adapters.mlx_impl import MlxImplEngine  # noqa: E402
from specproof.exact_law import TOLERANCE, measure  # noqa: E402
from specproof.invariants import RUN_INVARIANTS  # noqa: E402

MAX_K = 8


class Simulation:
    """Rounds of a drafter that is right with chance `a`, on a clock that says v + k c, and 1 for a plain step.

    `noise` is the most that a round's time is off, in parts of it; one in a hundred rounds is held up tenfold if
    `stalls`. `finds`: the chance that the drafter proposes anything; `searching`: what it takes to propose nothing.
    """

    def __init__(self, a, c, v=1.0, *, seed=0, noise=0.0, stalls=False, finds=1.0, searching=0.0):
        self.a, self.c, self.v, self.noise, self.stalls = a, c, v, noise, stalls
        self.finds, self.searching = finds, searching
        self.random = random.Random(seed)
        self.now, self.tokens, self.chosen = 0.0, 0, []
        self.length = AdaptiveLength(MAX_K, clock=lambda: self.now)

    def seconds(self, k):
        return self.v + k * self.c if k else 1.0

    def run(self, count):
        for _ in range(count):
            self.chosen.append(self.length.choose(1000))
            drafted = self.chosen[-1] if self.random.random() < self.finds else 0
            self.now += self.searching if self.chosen[-1] and not drafted else 0.0
            self.length.proposed(drafted)
            accepted = next((i for i in range(drafted) if self.random.random() >= self.a), drafted)
            off = (
                1 + self.noise * self.random.uniform(-1, 1) + (9 if self.stalls and self.random.random() < 0.01 else 0)
            )
            self.now += self.seconds(drafted) * off
            self.tokens += accepted + 1
            self.length.record(accepted)
        return self

    def rate(self, k):
        """Tokens per second, by the closed form."""
        expected = k + 1 if self.a == 1 else (1 - self.a ** (k + 1)) / (1 - self.a)
        return expected / self.seconds(k)

    def best_rate(self):
        return max(self.rate(k) for k in range(MAX_K + 1))


# ------------------------------------------------------------------------------------------------------ the right k


@pytest.mark.parametrize("noise", [0.0, 0.2])
@pytest.mark.parametrize("c", [0.02, 0.1, 0.3])
@pytest.mark.parametrize("a", [0.3, 0.5, 0.7, 0.9, 1.0])
def test_the_k_chosen_is_as_fast_by_the_closed_form_as_the_best(a, c, noise):
    """Judged by the rates, as neighbouring ks differ by less than a hundredth of it; after 100 rounds to learn in."""
    world = Simulation(a, c, noise=noise).run(400)
    chosen = world.chosen[100:]
    mean = sum(world.rate(k) for k in chosen) / len(chosen)
    assert mean >= 0.95 * world.best_rate(), Counter(chosen)


@pytest.mark.parametrize("k", range(MAX_K + 1))
def test_no_fixed_k_is_that_fast_everywhere(k):
    """The control: for every k there is a pair above for which it is too slow."""
    worlds = [Simulation(a, c) for a in (0.3, 0.5, 0.7, 0.9, 1.0) for c in (0.02, 0.1, 0.3)]
    assert min(world.rate(k) / world.best_rate() for world in worlds) < 0.9


def test_a_first_proposal_that_costs_more_than_the_next_is_seen_in_the_times():
    """v is more than a plain step: verifying two tokens takes longer than decoding one."""
    world = Simulation(0.7, 0.1, v=1.3, noise=0.1).run(600)
    v, c = world.length.costs.line()
    assert (v, c) == (pytest.approx(1.3, rel=0.1), pytest.approx(0.1, rel=0.3))
    assert world.length.costs.plain_seconds == pytest.approx(1, rel=0.1)
    assert world.tokens / world.now >= 0.9 * world.best_rate()


def test_times_that_were_held_up_do_not_change_much():
    world = Simulation(0.8, 0.1, noise=0.1, stalls=True).run(600)
    chosen = Counter(world.chosen[100:])
    assert sum(world.rate(k) * n for k, n in chosen.items()) / 500 >= 0.93 * world.best_rate(), chosen


# --------------------------------------------------------------------------------------------------- what it may lose


def probes(chosen):
    """How many times proposals were asked for after a plain round."""
    return sum(before == 0 < k for before, k in itertools.pairwise([0, *chosen]))


@pytest.mark.parametrize(("c", "v"), [(0.02, 1.0), (0.1, 1.0), (0.3, 1.0), (0.6, 1.0), (1.0, 1.0), (0.05, 1.5)])
def test_a_drafter_that_is_never_right_costs_a_few_hundredths_of_plain_decoding_in_a_thousand_rounds(c, v):
    world = Simulation(0.0, c, v).run(1000)
    assert world.tokens == 1000
    assert world.now <= 1000 * (1 + 0.03)
    # and no more than is promised: what precedes the first pause, and some rounds' excess for each probe
    first = next(i for i in range(2, 1000) if not any(world.chosen[i : i + AdaptiveLength.FIRST_PAUSE]))
    later = [world.seconds(k) - 1 for k in world.chosen[first:] if k]
    assert first < 25
    assert probes(world.chosen[first:]) <= 3 + 1000 / AdaptiveLength.LONGEST_PAUSE + 1
    assert len(later) <= AdaptiveLength.TRIES * probes(world.chosen[first:])
    assert max(later) <= world.seconds(1) - 1


@pytest.mark.parametrize("a", [0.05, 0.2])
@pytest.mark.parametrize("noise", [0.0, 0.2])
def test_a_drafter_that_is_seldom_right_and_dear_costs_less_than_a_twentieth(a, noise):
    world = Simulation(a, 0.5, noise=noise).run(1000)
    assert world.rate(1) < 0.85  # it does not pay
    assert world.tokens / world.now >= 0.95


def test_without_pauses_such_a_drafter_costs_far_more(monkeypatch):
    """The control."""
    monkeypatch.setattr(AdaptiveLength, "pays", lambda length: True)
    monkeypatch.setattr(AdaptiveLength, "FIRST_CHECK", 1000)
    assert Simulation(0.0, 0.3).run(1000).now > 1.25 * 1000


def test_without_growing_pauses_it_costs_more_than_is_promised(monkeypatch):
    """The control."""
    monkeypatch.setattr(AdaptiveLength, "LONGEST_PAUSE", AdaptiveLength.FIRST_PAUSE)
    assert Simulation(0.0, 0.6).run(1000).now > 1.03 * 1000


def test_a_first_plain_step_that_took_very_long_does_not_make_speculation_pay_for_ever():
    world = Simulation(0.0, 0.3)
    slow, world.seconds = world.seconds, lambda k: 50.0
    world.run(1)
    world.seconds = slow
    assert world.run(1000).now - 50 <= 1000 * 1.04


# ------------------------------------------------------------------------------------------------------- adaptation


def rounds_until(world, wanted, most):
    """Rounds until one asks for a k for which `wanted` holds, and the next ten do, too, but for one."""
    for count in range(most):
        world.run(1)
        if sum(map(wanted, world.chosen[-10:])) >= 9:
            return count + 1
    raise AssertionError(f"not within {most} rounds: {world.chosen[-10:]}")


def test_speculation_is_given_up_within_some_rounds_when_the_drafter_fails_and_taken_up_again():
    world = Simulation(0.9, 0.1).run(300)
    assert min(world.chosen[-10:]) >= 5
    world.a = 0.0
    assert rounds_until(world, lambda k: k == 0, 100) <= 60
    world.run(300)
    world.a = 0.9
    assert rounds_until(world, lambda k: k >= 5, 300) <= AdaptiveLength.LONGEST_PAUSE + 60


def test_a_model_that_becomes_slower_makes_the_blocks_shorter():
    world = Simulation(0.8, 0.02).run(300)
    before = sum(world.chosen[-20:])
    world.c = 0.4
    world.run(150)
    assert sum(world.chosen[-20:]) < before / 2


def test_luck_in_a_probe_does_not_undo_the_pauses():
    world = Simulation(0.0, 0.6).run(600)
    pause = world.length._pause
    world.a = 1.0
    rounds_until(world, lambda k: k > 0, 300)
    assert world.length._pause < pause == AdaptiveLength.LONGEST_PAUSE


# -------------------------------------------------------------------------------------------------- nothing proposed


def test_a_drafter_that_finds_nothing_costs_nothing_and_is_asked_every_round():
    world = Simulation(0.9, 0.1, finds=0.0, searching=1e-4).run(1000)
    assert world.now <= 1000 * 1.0002
    assert world.chosen.count(0) == 2  # the first two, to know what a plain step takes
    assert world.length.acceptance == Acceptance(MAX_K)


def test_what_is_seldom_found_is_used_when_it_is():
    world = Simulation(0.9, 0.02, finds=0.05, searching=1e-4).run(2000)
    assert world.tokens / world.now >= 1.2
    assert world.chosen.count(0) < 50


def test_a_drafter_that_takes_long_to_propose_nothing_is_given_up():
    """A draft model with `min_prob` runs before it knows that it is unsure."""
    world = Simulation(0.9, 0.3, finds=0.0, searching=0.3).run(1000)
    assert world.now <= 1000 * 1.02
    assert world.chosen.count(0) > 950


def test_the_budget_limits_the_choice_and_the_end_of_a_turn_is_not_held_against_the_drafter():
    world = Simulation(1.0, 0.02).run(100)
    assert [world.length.best(limit) for limit in (1, 3, 50)] == [1, 3, MAX_K]
    before = world.length.acceptance.estimates()
    assert world.length.choose(0) == 0
    world.length.proposed(0)
    world.length.record(0)
    assert world.length.acceptance.estimates() == before


# ----------------------------------------------------------------------------------------------------------- decoder


def ticking(seed):
    """A clock that is as irregular as can be."""
    generator, now = random.Random(seed), [0.0]

    def clock():
        now[0] += generator.choice([0.001, 0.01, 1.0, 30.0]) * generator.random()
        return now[0]

    return clock


@pytest.mark.parametrize(("drafter", "seed"), [("model", 0), ("lookup", 1)])
def test_at_temperature_0_the_output_does_not_depend_on_times(drafter, seed):
    length = AdaptiveLength(5, clock=ticking(seed))
    decoder, model = make("greedy", length, draft=Scripted(toy("target"), [True, True, False]))
    state = decoder.prefill(PROMPT, model if drafter == "model" else lookup(), 40)
    done = rounds(decoder, state)
    assert state.emitted == greedy(toy("target"), PROMPT, 40)
    assert decoder.num_draft_tokens == length.max_k == 5
    assert len({len(entry.drafted) for entry in done}) > 1


def test_times_do_decide_how_many_are_proposed():
    """The control of the test above."""

    def drafted(seed):
        decoder, drafter = make("greedy", AdaptiveLength(5, clock=ticking(seed)), draft=toy("target"))
        return [len(done.drafted) for done in rounds(decoder, decoder.prefill(PROMPT, drafter, 25))]

    assert drafted(0) != drafted(1)


def test_a_number_means_always_that_many():
    decoder, _ = make("greedy", 3)
    assert decoder.draft_length == FixedLength(3)
    assert isinstance(decoder.draft_length, DraftLength)


def test_a_round_that_fails_teaches_nothing():
    length = AdaptiveLength(4, clock=itertools.count().__next__)
    decoder, drafter = make("greedy", length, target=Failing(toy("target"), 3, "after", InjectedError()))
    state = decoder.prefill(PROMPT, drafter, 20)
    for _ in range(2):
        decoder.step(state)
    before = (length.acceptance.tested, length._unchecked, length.costs.plain_seconds)
    with pytest.raises(InjectedError):
        decoder.step(state)
    assert (length.acceptance.tested, length._unchecked, length.costs.plain_seconds) == before
    rounds(decoder, state)
    assert state.emitted == greedy(toy("target"), PROMPT, 20)


@pytest.mark.parametrize("max_k", [0, -1, 1.5, "3", None], ids=repr)
def test_a_most_of_no_proposals_or_of_no_number_is_refused(max_k):
    with pytest.raises(
        InvalidSetting, match=r"max_k is .*; give an integer >= 1|max_k is .*; give an integer >= 0, at"
    ):
        AdaptiveLength(max_k)


# ----------------------------------------------------------------------------------------------------------- harness


class Adaptive(Decoder):
    """With blocks of up to as many proposals as the case asks for."""

    def __init__(self, target, *, num_draft_tokens, **settings):
        length = AdaptiveLength(num_draft_tokens, clock=ticking(5)) if num_draft_tokens else 0
        super().__init__(target, num_draft_tokens=length, **settings)


def test_all_invariants_hold_with_an_adaptive_length_in_every_regime():
    lengths, pauses = Counter(), 0
    for case in some_cases(1):
        wrong, run = violations(MlxImplEngine("adaptive", decoder_class=Adaptive), case)
        assert not wrong, (case.id, wrong)
        lengths.update(len(boundary.round.drafted) for boundary in run.boundaries if boundary.round)
        pauses += sum(boundary.allowed == 0 for boundary in run.boundaries)
    assert len(lengths) >= 3, lengths
    assert pauses


def test_a_drafter_that_lags_is_accused_where_no_pause_is_declared():
    """The control: the same run, of an engine that does not say what it let the drafter propose."""
    wrong = set()
    for case in some_cases(2):
        _, run = violations(MlxImplEngine("adaptive", decoder_class=Adaptive), case)
        silent = replace(run, boundaries=tuple(replace(boundary, allowed=None) for boundary in run.boundaries))
        wrong.update(violation.message for violation in RUN_INVARIANTS["draft_cache_offset"].check(silent))
    assert any("too few" in message for message in wrong)


def test_in_a_pause_a_draft_model_does_nothing_and_catches_up_in_one_forward():
    class Pausing(FixedLength):
        """2, then a pause of five rounds, then 2 again."""

        lengths = itertools.chain([2], [0] * 5, itertools.repeat(2))

        def choose(self, limit):
            return next(self.lengths)

    model = Counting(toy("draft"))
    decoder, drafter = make("greedy", Pausing(2), draft=model)
    state = decoder.prefill(PROMPT, drafter, 30)
    decoder.step(state)
    drafter.settle(state.history)
    before = len(model.lengths)
    for _ in range(5):
        decoder.step(state)
    assert len(model.lengths) == before
    assert drafter.cache.length == state.target_cache.length - 5
    decoder.step(state)
    assert model.lengths[before] == 6, "five tokens and the pending one, at once"
    assert_at_boundary(state)
    for token in decoder.generate(state):
        if token.round_index == 7:
            break
    assert_at_boundary(state)


def test_a_turn_that_ends_in_a_pause_leaves_the_drafter_in_step():
    class Never(FixedLength):
        """Always a pause."""

        def choose(self, limit):
            return 0

    for close_after in (1, 2, 5, None):
        decoder, drafter = make("greedy", Never(2))
        state = decoder.prefill(PROMPT, drafter, 6)
        iterator = decoder.generate(state)
        taken = list(iterator) if close_after is None else list(itertools.islice(iterator, close_after))
        iterator.close()
        assert_at_boundary(state)
        assert tuple(item.token for item in taken) == greedy(toy("target"), PROMPT, len(taken))


def plain_case():
    return next(case for case in some_cases(1) if case.regime == "plain")


def test_a_wrong_counter_is_seen_though_the_length_pauses():
    class CountsOneMore(Adaptive):
        def step(self, state):
            done = super().step(state)
            return replace(done, p=(*done.p, 0.5))

    wrong, run = violations(MlxImplEngine("counts", decoder_class=CountsOneMore), plain_case())
    assert any(boundary.allowed == 0 for boundary in run.boundaries)
    assert "p has 1 entries, expected 0 (0 proposed, 0 tested)" in wrong["counters"][0].message


def test_a_drafter_that_never_proposes_is_seen_though_the_length_pauses():
    class ProposesNothing(DraftModel):
        def propose(self, history, target_hidden, budget):
            return super().propose(history, target_hidden, 0)

    engine = MlxImplEngine("idle", decoder_class=Adaptive, drafter_class=ProposesNothing)
    wrong, run = violations(engine, plain_case())
    asked = sum(boundary.allowed not in (None, 0) for boundary in run.boundaries)
    assert 0 < asked < len(run.boundaries) - 1
    assert f"the drafter proposed nothing in {asked} rounds" in wrong["counters"][0].message


def test_a_decoder_that_never_finds_room_is_seen_at_a_fixed_length(monkeypatch):
    monkeypatch.setattr("mlx_impl.decoder._rows_until_quantised", lambda state: (0,))
    wrong, run = violations(MlxImplEngine("no room"), plain_case())
    assert {boundary.allowed for boundary in run.boundaries} == {None}
    assert "the drafter proposed nothing" in wrong["counters"][0].message


class ByPast(Decoder):
    """k follows from the past of the decode alone: from how much of the budget is left."""

    def __init__(self, target, **settings):
        super().__init__(target, **settings)

        class Cyclic(FixedLength):
            def choose(self, limit):
                return limit % 3

        self.draft_length = Cyclic(2)


class StopsAtUnlikely(DraftModel):
    """A length that looks at what was drawn: the block ends before a token that the drafter itself finds improbable."""

    def propose(self, history, target_hidden, budget):
        block = super().propose(history, target_hidden, budget)
        if not len(block):
            return block
        mass = mx.take_along_axis(block.probabilities, block.tokens[:, None], axis=-1)[:, 0]
        count = int(mx.sum(mx.cumprod((mass > 0.4).astype(mx.int32))))
        return replace(block, tokens=block.tokens[:count], probabilities=block.probabilities[:count])

    def copy(self):
        return StopsAtUnlikely(self.model, self.sampling, self.randomness, cache=super().copy().cache)


@pytest.mark.parametrize("rule", ["rejection", "sampler_match"])
def test_a_length_that_follows_from_the_past_keeps_the_targets_law(rule):
    case = tiny_case(rule, 2, 3, SamplingParams(top_k=2))
    assert measure(MlxImplEngine("by past", decoder_class=ByPast), case).variation <= TOLERANCE["float32"]


def test_a_length_that_looks_at_the_tokens_drawn_does_not():
    """The control, and the reason why `choose` is asked before the drafter."""
    case = tiny_case("rejection", 2, 3)
    assert measure(MlxImplEngine("looks", drafter_class=StopsAtUnlikely), case).variation > 0.001
