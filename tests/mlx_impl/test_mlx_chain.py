"""A chain of drafters: who is asked, that all of them are at every boundary, and that it costs one forward."""

from dataclasses import replace

import pytest

mx = pytest.importorskip("mlx.core", reason="mlx is not installed; pip install 'specproof[mlx]'")

from laws.law_controls import tiny_case  # noqa: E402
from mlx_decodes import COUNT, PROMPT, assert_at_boundary, assert_cache_content, greedy, lookup, make, rounds  # noqa: E402
from mlx_engines import ChainEngine, some_cases, violations  # noqa: E402
from mlx_toys import GREEDY, SAMPLINGS, Counting, Failing, InjectedError, Poisoned, Scripted, toy  # noqa: E402

from mlx_impl import Chain, DraftModel, KeyedRandomness, PromptLookup  # noqa: E402
from mlx_impl.cache import offsets  # noqa: E402
from reference.errors import InvalidSetting, NonFiniteLogits, VocabularyMismatch  # noqa: E402
from reference.values import SamplingParams  # noqa: E402
from specproof.exact_law import TOLERANCE, measure  # noqa: E402
from specproof.law_cases import LOOKUP_PROMPT  # noqa: E402

REPEATING = [5, 6, 7, 8, 5, 6, 7, 8, 5, 6]


def chain(rule="greedy", k=3, draft=None, **settings):
    """A decoder, and a lookup before a draft model."""
    decoder, model = make(rule, k, draft=draft, **settings)
    return decoder, Chain([lookup(), model])


def model_of(drafters):
    return drafters.drafters[-1]


# ------------------------------------------------------------------------------------------------------ who is asked


def test_the_first_drafter_that_proposes_is_the_last_that_is_asked():
    _, drafters = chain(draft=Counting(toy("draft")))
    found = drafters.propose(REPEATING, None, 3)
    assert found.tokens.tolist() == [7, 8, 5]
    assert model_of(drafters).model.lengths == []
    other = drafters.propose([1, 2, 3], None, 3)
    assert len(other) == 3
    assert model_of(drafters).model.lengths == [3, 1, 1]
    assert other.tokens.tolist() == make()[1].propose([1, 2, 3], None, 3).tokens.tolist()


def test_without_a_budget_no_one_proposes():
    _, drafters = chain(draft=Counting(toy("draft")))
    assert len(drafters.propose(REPEATING, None, 0)) == 0
    assert model_of(drafters).model.lengths == []


def test_a_model_that_proposes_nothing_because_of_bad_logits_is_named_though_a_lookup_then_proposes():
    position = len(REPEATING)
    poisoned = DraftModel(Poisoned(toy("draft"), position), GREEDY, KeyedRandomness(0), min_prob=0.5)
    decoder, _ = make("greedy", 3)
    state = decoder.prefill(REPEATING, Chain([poisoned, lookup()]), 9)
    state.history[-1] = 7  # a token at which the lookup has something to propose
    assert len(lookup().propose(state.history, None, 3)) == 3
    with pytest.raises(NonFiniteLogits, match=rf"draft model.*position {position}"):
        decoder.step(state)


# -------------------------------------------------------------------------------------------------------- boundaries


@pytest.mark.parametrize("rule", SAMPLINGS)
def test_both_caches_hold_the_rows_of_the_history_at_every_boundary_whoever_proposed(rule):
    target = toy("target")
    draft = Counting(Scripted(target, [True, False, True, True, True]))
    decoder, drafters = chain(
        rule, draft=draft, sampling=GREEDY if rule == "greedy" else SamplingParams(temperature=0.3)
    )
    state = decoder.prefill(REPEATING, drafters, 24)
    asked = set()
    while state.finish is None:
        draft.lengths.clear()
        expected = len(PromptLookup(32, max_ngram=2).propose(state.history, None, min(3, state.remaining - 1)))
        done = decoder.step(state)
        assert_at_boundary(state)
        asked.add(expected > 0)
        if expected:  # all that the round committed, in one pass
            assert draft.lengths == [len(done.emitted)]
    assert asked == {True, False}
    assert_cache_content(state, {"target": target, "draft": draft})


def test_a_chain_that_does_not_bring_everyone_to_the_boundary_is_seen_there():
    class OnlyTheFirst(Chain):
        def commit(self, history):
            self.drafters[0].commit(history)

    decoder, model = make("greedy", 3)
    state = decoder.prefill(REPEATING, OnlyTheFirst([lookup(), model]), 24)
    with pytest.raises(AssertionError, match=r"caches hold .*expected"):
        rounds(decoder, state)


@pytest.mark.parametrize("k", [1, 4])
def test_at_temperature_0_a_chain_gives_greedy_decoding(k):
    decoder, drafters = chain(k=k)
    state = decoder.prefill(REPEATING, drafters, 20)
    rounds(decoder, state)
    assert state.emitted == greedy(toy("target"), REPEATING, 20)


@pytest.mark.parametrize(("call", "when"), [(1, "before"), (2, "half-way"), (3, "after")])
@pytest.mark.parametrize("failing", ["target", "draft"])
def test_a_fault_in_either_model_leaves_all_at_the_boundary_and_costs_no_token(failing, call, when):
    models = {"target": toy("target"), "draft": toy("draft")}
    models[failing] = Failing(models[failing], call, when, InjectedError())
    decoder, drafters = chain(**models)
    state, came = decoder.prefill(REPEATING, drafters, 12), 0
    while state.finish is None:
        try:
            decoder.step(state)
        except InjectedError:
            came += 1
        assert drafters.drafters[0]._index.tokens == state.history
        assert offsets(state.target_cache)[0] == len(state.history) - 1
    assert came == 1
    assert_at_boundary(state)
    assert state.emitted == greedy(toy("target"), REPEATING, 12)


def test_a_copied_chain_decodes_on_by_itself():
    decoder, drafters = chain()
    state = decoder.prefill(REPEATING, drafters, COUNT)
    decoder.step(state)
    twin, history = state.copy(), list(state.history)
    rounds(decoder, twin)
    assert state.history == history
    assert drafters.drafters[0]._index.tokens == history
    assert_at_boundary(state)
    rounds(decoder, state)
    assert state.emitted == twin.emitted == greedy(toy("target"), REPEATING, COUNT)


def test_closing_a_chain_early_leaves_a_boundary_and_going_on_gives_the_same():
    decoder, drafters = chain()
    state = decoder.prefill(REPEATING, drafters, 12)
    received = []
    while len(received) < 12:
        iterator = decoder.generate(state)
        received.append(next(iterator).token)
        iterator.close()
        assert_at_boundary(state)
    assert tuple(received) == greedy(toy("target"), REPEATING, 12)


def graph_size(cache, path):
    """Lines of the graph that the device would have to compute for the cache."""
    mx.export_to_dot(str(path), *(array for layer in cache for array in (layer.keys, layer.values)))
    return len(path.read_text().splitlines())


def test_rows_of_a_draft_model_that_is_never_asked_do_not_wait_in_a_growing_graph(tmp_path):
    decoder, drafters = chain(k=0)
    state = decoder.prefill(PROMPT, drafters, 30)
    sizes = []
    while state.finish is None:
        decoder.step(state)
        sizes.append(graph_size(drafters.cache, tmp_path / "graph"))
    assert len(set(sizes)) == 1
    lazy = toy("draft").make_cache()  # the control: rows that wait are seen
    for _ in range(2):
        toy("draft")(mx.array([[1]]), cache=lazy)
        sizes.append(graph_size(lazy, tmp_path / "graph"))
    assert sizes[-1] > sizes[-2] > sizes[0]


# ------------------------------------------------------------------------------------------------------ construction


def test_a_chain_of_two_models_and_one_of_none_are_refused():
    models = [make()[1], make()[1]]
    with pytest.raises(InvalidSetting, match=r"2 drafters have a cache \(DraftModel, DraftModel\).*at most one"):
        Chain(models)
    with pytest.raises(InvalidSetting, match=r"the chain has no drafters; give at least one"):
        Chain([])
    assert Chain([lookup(), lookup()]).cache is None
    assert Chain([lookup(), models[0]]).cache is models[0].cache


@pytest.mark.parametrize(
    "drafters",
    [lambda: [PromptLookup(3), make()[1]], lambda: [lookup(), make(draft=toy("tiny-draft"))[1]]],
    ids=["the lookup", "the model"],
)
def test_every_drafter_of_a_chain_must_have_the_targets_vocabulary(drafters):
    decoder, _ = make()
    with pytest.raises(VocabularyMismatch, match="the drafter 3"):
        decoder.prefill(PROMPT, Chain(drafters()), 4)
    Chain([lookup(), make()[1]]).check_vocabulary(toy("target"))


# ----------------------------------------------------------------------------------------------------------- harness


def test_all_invariants_hold_for_a_chain_in_every_regime():
    drafted = 0
    for case in some_cases(2):
        wrong, run = violations(ChainEngine("chain"), case)
        assert not wrong, (case.id, wrong)
        drafted += sum(len(boundary.round.drafted) for boundary in run.boundaries if boundary.round)
    assert drafted >= 30


class FlatLookup(Chain):
    """The lookup's proposals with a q that they were not drawn from."""

    def propose(self, history, target_hidden, budget):
        block = super().propose(history, target_hidden, budget)
        if self.proposer == 0:
            block = replace(block, probabilities=mx.full(block.probabilities.shape, 1 / block.probabilities.shape[1]))
        return block


class NamesTheModel(Chain):
    """The lookup's proposals, as the draft model's."""

    def propose(self, history, target_hidden, budget):
        block = super().propose(history, target_hidden, budget)
        self.proposer = 1
        return block


@pytest.mark.parametrize("lying", [FlatLookup, NamesTheModel])
def test_honest_q_sees_a_lookup_that_lies_about_q_or_has_its_proposals_named_anothers(lying):
    class Engine(ChainEngine):
        chain_class = lying

    case = next(case for case in some_cases(2) if case.regime == "plain" and case.sampling.temperature > 0)
    case = replace(case, prompt=tuple(REPEATING))
    (found, *_), run = violations(Engine("lying"), case)[0]["honest_q"], violations(ChainEngine("chain"), case)[1]
    assert run.boundaries[found.round + 1].proposer == "prompt_lookup"
    assert "differs by" in found.message


@pytest.mark.parametrize("rule", ["rejection", "sampler_match"])
def test_the_law_of_a_chain_is_the_targets(rule):
    case = replace(tiny_case(rule, 2, 3, SamplingParams(top_k=2)), prompt=LOOKUP_PROMPT)
    assert measure(ChainEngine("chain"), case).variation <= TOLERANCE["float32"]


def test_the_law_of_a_chain_that_hides_whose_q_it_was_is_not():
    """The control: the lookup's proposals with the draft model's q."""

    class WrongQ(Chain):
        def propose(self, history, target_hidden, budget):
            block = super().propose(history, target_hidden, budget)
            return replace(block, probabilities=mx.full(block.probabilities.shape, 1 / block.probabilities.shape[1]))

    class Engine(ChainEngine):
        def _drafter(self, case, randomness, cache, models):
            return WrongQ(super()._drafter(case, randomness, cache, models).drafters)

    case = replace(tiny_case("rejection", 2, 3, SamplingParams(top_k=2)), prompt=LOOKUP_PROMPT)
    assert measure(Engine("wrong q"), case).variation > 0.01
