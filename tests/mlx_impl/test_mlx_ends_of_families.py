"""Ends that fail or are interrupted themselves, and ends far behind the last round, on every kind of cache."""

import pytest

mx = pytest.importorskip("mlx.core", reason="mlx is not installed; pip install 'specproof[mlx]'")
pytest.importorskip("mlx_lm", reason="mlx-lm is not installed; pip install 'specproof[mlx-lm]'")

from functools import cache, partial  # noqa: E402

from interrupts import interrupted_at, lines_run  # noqa: E402
from mlx_lm.models.cache import ArraysCache, CacheList, ConcatenateKVCache  # noqa: E402
from mlx_lm.models.cache import RotatingKVCache as MlxLmRotatingKVCache  # noqa: E402
from mlx_toys import GREEDY, InjectedError  # noqa: E402

from mlx_impl import Chain, Decoder, DraftModel, KeyedRandomness, PromptLookup  # noqa: E402
from mlx_impl.layers import leaves, restore, trim  # noqa: E402
from mlx_impl.marks import put_back  # noqa: E402
from mlx_impl.model_cache import ModelCache  # noqa: E402
from mlx_impl.rotating import RotatingKVCache  # noqa: E402
from mlx_impl.state import DecoderState  # noqa: E402
from reference.errors import CacheLengthError, InvalidSetting  # noqa: E402
from specproof.adapters.mlx_families import fresh_layers  # noqa: E402
from specproof.adapters.mlx_family_models import FAMILIES, build  # noqa: E402

PROMPT = [3, 1, 4, 1, 5]
COUNT = 14
PROBE = mx.array([[7]])
OF_A_CLOSE = (
    DecoderState.take_back_undelivered,
    ModelCache.commit,
    ModelCache._cut,
    put_back,
    ModelCache.feed,
    ModelCache.forward,
    ModelCache._append,
    ModelCache._mark,
    DraftModel.settle,
    DraftModel._cut,
)
OF_A_WAY_BACK = (
    DecoderState.roll_back,
    ModelCache.rollback,
    ModelCache._cut,
    put_back,
    restore,
    trim,
    DraftModel.rollback,
)
OF_A_ROUND = (*OF_A_CLOSE[1:], ModelCache.checkpoint, Decoder._begin, Decoder._commit, DecoderState.record)


@cache
def model(name, seed=5):
    return build(name, 32, seed)


class Switched:
    """A model that fails while it is told to."""

    def __init__(self, inner):
        self.inner, self.fails = inner, False
        self.args, self.layers = inner.args, inner.layers

    def __call__(self, inputs, cache):
        if self.fails:
            raise InjectedError
        return self.inner(inputs, cache=cache)


def begun(name, k=3, target=None):
    """A turn whose drafter is the target: all proposals are accepted."""
    target = model(name) if target is None else target
    decoder = Decoder(target, rule="greedy", sampling=GREEDY, randomness=KeyedRandomness(0), num_draft_tokens=k)
    drafter = DraftModel(model(name), GREEDY, KeyedRandomness(1), cache=fresh_layers(model(name), name))
    return decoder, decoder.prefill(PROMPT, drafter, COUNT, fresh_layers(model(name), name))


@cache
def plain(name):
    return tokens(*begun(name, k=0))


def tokens(decoder, state):
    return tuple(item.token for item in decoder.generate(state))


def begun_and_read(name, count, target=None):
    """A turn of which some tokens were delivered; and its iterator."""
    decoder, state = begun(name, target=target)
    iterator = decoder.generate(state)
    for _ in range(count):
        next(iterator)
    return decoder, state, iterator


def assert_holds_a_part(cache_, name, history):
    """A cache holds a part of the committed tokens from their beginning, and nothing else."""
    assert cache_.length <= len(history) - 1
    twin, fresh = cache_.copy(), fresh_layers(model(name), name)
    if cache_.length:
        model(name)(mx.array([history[: cache_.length]]), cache=fresh)
    differences = mx.abs(model(name)(PROBE, cache=twin.layers) - model(name)(PROBE, cache=fresh))
    assert float(mx.max(differences)) < 1e-3


def assert_goes_on(decoder, state, name):
    """Both caches are at the boundary or before it, and the rest is that of plain decoding."""
    assert_holds_a_part(state.target_cache, name, state.history)
    assert_holds_a_part(state.drafter.cache, name, state.history)
    tokens(decoder, state)
    assert state.emitted == plain(name)
    assert {state.target_cache.length, state.drafter.cache.length} == {len(state.history) - 1}


# --------------------------------------------------------------------------------------------------------- interrupts


def interrupts(name, stride, functions, act):
    """Interrupt an action at every `stride`-th line of functions in turn; how many interrupts there were."""
    for line in range(0, 10_000, stride):
        decoder, state, iterator = begun_and_read(name, 3)
        try:
            with interrupted_at(line, *functions):
                act(decoder, state, iterator)
        except KeyboardInterrupt:
            assert_goes_on(decoder, state, name)
        else:
            return line // stride
    pytest.fail("an action that was never finished")


def close(decoder, state, iterator):
    iterator.close()


def step(decoder, state, iterator):
    decoder.step(state)


@pytest.mark.parametrize("name", ["llama_rotating", "llama_quantised", "llama4", "mamba2", "falcon_h1"])
def test_an_interrupt_of_a_close_leaves_both_caches_where_the_turn_goes_on(name):
    assert interrupts(name, 11, OF_A_CLOSE, close) > 4


@pytest.mark.parametrize("name", ["llama_quantised", "llama4", "gemma3_text", "mamba2", "falcon_h1"])
def test_an_interrupt_of_a_round_leaves_both_caches_where_the_turn_goes_on(name):
    assert interrupts(name, 13, OF_A_ROUND, step) > 4


def interrupted_ways_back(monkeypatch, name, act, stride=5):
    """As `interrupts`, but of an interrupt late in the action, whose way back is interrupted, too."""
    way_back = DecoderState.roll_back
    late = lines_run(partial(act, *begun_and_read(name, 3)), *OF_A_ROUND) * 3 // 4
    for line in range(0, 10_000, stride):
        decoder, state, iterator = begun_and_read(name, 3)
        came = []

        def roll_back(state, line=line, came=came):
            monkeypatch.setattr(DecoderState, "roll_back", way_back)
            try:
                with interrupted_at(line, *OF_A_WAY_BACK):
                    way_back(state)
            except KeyboardInterrupt:
                came.append(line)
                raise

        monkeypatch.setattr(DecoderState, "roll_back", roll_back)
        with pytest.raises(KeyboardInterrupt), interrupted_at(late, *OF_A_ROUND):
            act(decoder, state, iterator)
        assert DecoderState.roll_back is way_back  # the first interrupt came
        tokens(decoder, state)
        assert state.emitted == plain(name)
        assert {state.target_cache.length, state.drafter.cache.length} == {len(state.history) - 1}
        if not came:
            return line // stride
    pytest.fail("a way back that was never finished")


@pytest.mark.parametrize(
    ("name", "act"), [("llama", close), ("mamba2", close), ("llama_rotating", step), ("falcon_h1", step)]
)
def test_a_turn_goes_on_after_a_way_back_that_was_interrupted_itself(monkeypatch, name, act):
    assert interrupted_ways_back(monkeypatch, name, act) > 1


def test_a_way_back_that_nobody_finishes_is_seen(monkeypatch):
    """The control: the next call does not go back first."""
    monkeypatch.setattr(DecoderState, "settle", lambda self: None)
    with pytest.raises((AssertionError, CacheLengthError)):
        interrupted_ways_back(monkeypatch, "llama", step)


def test_a_close_that_leaves_the_caches_as_an_interrupt_found_them_is_seen(monkeypatch):
    """The control: the way back is taken away."""
    monkeypatch.setattr(DecoderState, "roll_back", lambda self: None)
    with pytest.raises((AssertionError, CacheLengthError)):
        interrupts("mamba2", 11, OF_A_CLOSE, close)


# ---------------------------------------------------------------------------------------------------- closes that fail


@pytest.mark.parametrize("name", ["mamba2", "qwen3_next", "falcon_h1"])
@pytest.mark.parametrize("extend_fails", [False, True])
def test_a_turn_goes_on_after_a_close_in_which_the_model_failed_and_an_extend_that_failed_too(name, extend_fails):
    target = Switched(model(name))
    decoder, state, iterator = begun_and_read(name, 3, target)
    target.fails = True
    with pytest.raises(InjectedError):
        iterator.close()
    if extend_fails:
        with pytest.raises(InjectedError):
            decoder.extend(state, [7, 7], 4)
    target.fails = False
    assert state.target_cache.behind
    assert_goes_on(decoder, state, name)


@pytest.mark.parametrize("name", ["mamba2", "qwen3_next", "falcon_h1"])
def test_after_a_close_that_failed_no_undelivered_token_is_left_in_the_next_turn(name):
    target = Switched(model(name))
    decoder, state, iterator = begun_and_read(name, 3, target)
    target.fails = True
    with pytest.raises(InjectedError):
        iterator.close()
    target.fails = False
    following = decoder.extend(state, [7, 7, 7, 7, 7], 4)
    for held in (following.target_cache, following.drafter.cache):
        assert held.length == len(following.history) - 1
        assert_holds_a_part(held, name, following.history)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_turn_closed_several_rounds_behind_goes_on_from_there(name):
    decoder, state = begun(name)
    for _ in range(3):
        decoder.step(state)
    iterator = decoder.generate(state)
    next(iterator)
    iterator.close()
    assert_goes_on(decoder, state, name)


# ------------------------------------------------------------------------------------------------------ kinds of caches


def test_a_drafter_that_is_not_asked_remembers_the_way_back_through_one_round_only():
    target = model("mamba2")
    decoder = Decoder(target, rule="greedy", sampling=GREEDY, randomness=KeyedRandomness(0), num_draft_tokens=3)
    drafter = DraftModel(target, GREEDY, KeyedRandomness(1))
    state = decoder.prefill(PROMPT * 3, Chain([PromptLookup(32, max_ngram=1), drafter]), 60)
    served = kept = 0
    while state.finish is None:
        decoder.step(state)
        served += len(drafter.cache._marks) < 4  # the draft model leaves one for each of its steps
        kept = max(kept, len(drafter.cache._marks))
    assert served > 3
    assert kept <= 5


@pytest.mark.parametrize("whose", ["target", "drafter"])
def test_a_cache_that_says_it_is_trimmed_and_keeps_its_rows_goes_back_by_copies(whose):
    target = model("llama")
    own = [ConcatenateKVCache() for _ in target.layers]
    decoder = Decoder(target, rule="greedy", sampling=GREEDY, randomness=KeyedRandomness(0), num_draft_tokens=3)
    drafter = DraftModel(model("llama", 6), GREEDY, KeyedRandomness(1), cache=own if whose == "drafter" else None)
    state = decoder.prefill(PROMPT, drafter, COUNT, own if whose == "target" else None)
    assert tokens(decoder, state) == plain("llama")
    assert {layer.offset for layer in own} == {len(PROMPT) + COUNT - 1}


@pytest.mark.parametrize("prefill_step", [1, 2, 3])
def test_rows_fed_in_several_passes_are_not_mixed_up_with_the_first_ones_that_a_window_keeps(prefill_step):
    target, history = model("llama"), [*PROMPT, *range(20)]
    for count in range(2, 8):
        layers = [RotatingKVCache(max_size=12, keep=4) for _ in target.layers]
        held = ModelCache("target", layers, prefill_step=prefill_step)
        held.feed(target, history[:-count])
        held.feed(target, history[-count:])
        held.commit(target, history[:-1])
        twin = [RotatingKVCache(max_size=12, keep=4) for _ in target.layers]
        for token in history[:-1]:
            target(mx.array([[token]]), cache=twin)
        assert mx.allclose(target(PROBE, cache=held.layers), target(PROBE, cache=twin), atol=1e-4)


def test_windows_inside_composite_layers_get_the_right_masks_too():
    composite = CacheList(ArraysCache(1), CacheList(MlxLmRotatingKVCache(max_size=12, keep=4)))
    ModelCache("target", [composite])
    assert [type(leaf) for leaf in leaves([composite])] == [ArraysCache, RotatingKVCache]


@pytest.mark.parametrize("count", [1, 3])
def test_a_window_of_the_models_own_that_would_hide_kept_rows_is_refused(count):
    held = RotatingKVCache(max_size=8, keep=2)
    with pytest.raises(InvalidSetting, match=r"a window of 4 rows, and its cache of 8 keeps the first 2, .*keep=0"):
        held.make_mask(count, window_size=4)
    assert held.make_mask(count, window_size=8) == held.make_mask(count)


def test_a_model_with_windows_of_its_own_refuses_kept_rows_before_its_first_token():
    target = build("gemma3_text", 32, 5)
    layers = [MlxLmRotatingKVCache(max_size=4 * target.args.sliding_window, keep=2) for _ in target.layers]
    decoder = Decoder(target, rule="greedy", sampling=GREEDY, randomness=KeyedRandomness(0), num_draft_tokens=3)
    with pytest.raises(InvalidSetting, match="keeps the first 2"):
        decoder.prefill(PROMPT, PromptLookup(32), COUNT, layers)
