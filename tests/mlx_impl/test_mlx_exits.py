"""However a turn ends, the MLX decoder is at a round boundary, and going on gives what an uninterrupted run gives."""

from pkgutil import resolve_name

import pytest

mx = pytest.importorskip("mlx.core", reason="mlx is not installed; pip install 'specproof[mlx]'")

from mlx_decodes import (  # noqa: E402
    COUNT,
    PROMPT,
    assert_at_boundary,
    assert_cache_content,
    lookup,
    make,
    mixed,
    run,
    tokens_of,
    uninterrupted,
    warm,
)
from mlx_toys import GREEDY, Failing, InjectedError, toy  # noqa: E402

from mlx_impl.cache import offsets  # noqa: E402

# --------------------------------------------------------------------------------------------------------- closing


@pytest.mark.parametrize("close_after", range(1, COUNT + 1))
def test_closing_after_any_token_leaves_a_boundary_and_continuing_gives_the_same_output(close_after):
    decoder, drafter = make("greedy", 4, draft=mixed())
    state = decoder.prefill(PROMPT, drafter, COUNT)
    iterator = decoder.generate(state)
    received = [next(iterator).token for _ in range(close_after)]
    iterator.close()
    assert state.emitted == tuple(received)
    assert len(state.tokens) == state.delivered == close_after
    assert (state.finish == "length") == (close_after == COUNT)
    assert_at_boundary(state)
    assert_cache_content(state, {"target": toy("target"), "draft": drafter.model})
    assert tuple(received + tokens_of(decoder.generate(state))) == uninterrupted()
    assert_at_boundary(state)


@pytest.mark.parametrize("close_after", [1, 3, 6])
def test_closing_with_a_drafter_without_a_cache_leaves_a_boundary(close_after):
    decoder, _ = make("greedy", 4)
    state = decoder.prefill(PROMPT, lookup(), COUNT)
    iterator = decoder.generate(state)
    received = [next(iterator).token for _ in range(close_after)]
    iterator.close()
    assert_at_boundary(state)
    assert tuple(received + tokens_of(decoder.generate(state))) == uninterrupted()


def test_an_exception_thrown_into_the_iterator_takes_back_what_was_not_delivered():
    decoder, drafter = make("greedy", 4, draft=mixed())
    state = decoder.prefill(PROMPT, drafter, COUNT)
    iterator = decoder.generate(state)
    received = [next(iterator).token for _ in range(2)]
    with pytest.raises(InjectedError):
        iterator.throw(InjectedError())
    assert state.emitted == tuple(received)
    assert_at_boundary(state)


def test_an_iterator_closed_before_its_first_token_changes_nothing():
    decoder, drafter = make("greedy", 4)
    state = decoder.prefill(PROMPT, drafter, COUNT)
    decoder.generate(state).close()
    assert (len(state.emitted), state.delivered) == (1, 0)
    assert_at_boundary(state)


def test_taking_back_a_stop_token_takes_back_the_end():
    (*_, stop) = uninterrupted()[:6]
    decoder, drafter = make("greedy", 5, draft=toy("target"), stop_tokens={stop})
    state = decoder.prefill(PROMPT, drafter, COUNT)
    iterator = decoder.generate(state)
    received = [next(iterator).token]
    while state.finish is None:
        received.append(next(iterator).token)
    undelivered = len(state.tokens) - state.delivered
    assert undelivered > 0
    iterator.close()
    assert state.finish is None
    assert_at_boundary(state)
    rest = tokens_of(decoder.generate(state))
    assert rest[-1] == stop
    assert state.finish == "stop"
    assert tuple(received + rest) == uninterrupted()[: len(received) + len(rest)]


def test_a_round_is_committed_before_its_first_token_is_handed_out():
    decoder, drafter = make("greedy", 4, draft=toy("target"))
    state = decoder.prefill(PROMPT, drafter, COUNT)
    iterator = decoder.generate(state)
    next(iterator)
    next(iterator)
    assert (len(state.emitted), state.delivered) == (6, 2)
    assert_at_boundary(state)


# ---------------------------------------------------------------------------------------------------------- faults

FAULTS = [InjectedError("a fault"), KeyboardInterrupt(), MemoryError()]


def interrupted(decoder, drafter, error):
    """Decode, going on after the error wherever it comes; return what was received and whether it came."""
    received, came, state = [], 0, None
    while state is None:
        try:
            state = decoder.prefill(PROMPT, drafter, COUNT)
        except type(error):
            came += 1
            assert drafter.cache is None or set(offsets(drafter.cache)) == {0}
    while state.finish is None or state.delivered < len(state.tokens):
        try:
            for item in decoder.generate(state):
                received.append(item.token)
        except type(error):
            came += 1
            assert state.emitted == tuple(received)
            assert_at_boundary(state, "after the fault")
            assert_cache_content(state, {"target": toy("target"), "draft": toy("target")})
    assert_at_boundary(state)
    return tuple(received), came


@pytest.mark.parametrize("when", ["before", "half-way", "after"])
@pytest.mark.parametrize("call", range(4))
@pytest.mark.parametrize("failing", ["target", "draft"])
def test_a_fault_in_either_model_at_any_forward_leaves_a_boundary_and_costs_no_token(failing, call, when):
    error = FAULTS[call % len(FAULTS)]
    models = {"target": toy("target"), "draft": mixed()}
    models[failing] = Failing(models[failing], call, when, error)
    decoder, drafter = make("greedy", 3, **models)
    received, came = interrupted(decoder, drafter, error)
    assert received == uninterrupted()
    assert came == (models[failing].calls > call)


def test_the_faults_above_do_come():
    """The control: a whole decode takes more than the four forwards of either model that fail."""
    for failing in ("target", "draft"):
        models = {"target": toy("target"), "draft": mixed()}
        models[failing] = Failing(models[failing], 1000, "before", InjectedError())
        decoder, drafter = make("greedy", 3, **models)
        run(decoder, drafter, PROMPT, COUNT)
        assert models[failing].calls >= 4


@pytest.mark.parametrize("call", [0, 1, 2])
@pytest.mark.parametrize(
    "place",
    [
        "mlx_impl.readout.read",
        "mlx_impl.decoder.distributions",
        "mlx_impl.drafters.distributions",
        "mlx_impl.model_cache.trim",
        "mlx_impl.decoder.Round",
        "mlx_impl.drafters.DraftModel.commit",
        "mlx_impl.randomness.KeyedRandomness.categorical",
        "mlx.core.eval",
        "mlx.core.async_eval",
    ],
)
def test_a_fault_anywhere_in_a_round_leaves_a_boundary_and_costs_no_token(monkeypatch, place, call):
    calls, error = [], FAULTS[call]
    decoder, drafter = make("rejection", 3, draft=mixed(), sampling=GREEDY)

    def failing(original):
        def wrapper(*args, **settings):
            calls.append(place)
            if len(calls) == call + 1:
                raise error
            return original(*args, **settings)

        return wrapper

    monkeypatch.setattr(place, failing(resolve_name(place)))
    received, came = interrupted(decoder, drafter, error)
    assert (received, came) == (uninterrupted(), 1)


def test_a_fault_after_a_commit_of_the_drafter_is_rolled_back_in_both_caches(monkeypatch):
    """The narrowest place: both caches are at the new boundary, and the history is not yet."""
    decoder, drafter = make("greedy", 3, draft=mixed())
    state = decoder.prefill(PROMPT, drafter, COUNT)
    before = list(state.history)
    monkeypatch.setattr(type(state), "record", lambda *_: (_ for _ in ()).throw(InjectedError()))
    with pytest.raises(InjectedError):
        decoder.step(state)
    assert (state.history, state.num_rounds) == (before, 0)
    assert_at_boundary(state)


def test_a_fault_in_prefill_leaves_warm_caches_as_long_as_they_were():
    model = Failing(toy("target"), 0, "half-way", InjectedError())
    decoder, drafter = make("greedy", 3, target=model)
    cache = warm(toy("target"), [3, 1])
    drafter.settle([3, 9])
    with pytest.raises(InjectedError):
        decoder.prefill([3, 1, 4, 1, 5], drafter, COUNT, cache)
    assert (offsets(cache), offsets(drafter.cache)) == ((2, 2, 2), (1,))
