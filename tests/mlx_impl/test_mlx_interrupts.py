"""Two interrupts, the second on the way back from the first: rows are left that nobody committed.

Whoever is given the caches then, with any prompt, refuses them or is right.
"""

import pytest

mx = pytest.importorskip("mlx.core", reason="mlx is not installed; pip install 'specproof[mlx]'")
pytest.importorskip("mlx_lm", reason="mlx-lm is not installed; pip install 'specproof[mlx-lm]'")

from mlx_decodes import greedy, make, tokens_of  # noqa: E402
from mlx_toys import InjectedError, toy  # noqa: E402

import mlx_impl.decoder  # noqa: E402
from mlx_impl.cache import make_cache  # noqa: E402
from mlx_impl.model_cache import ModelCache  # noqa: E402
from reference.errors import CacheLengthError  # noqa: E402
from specproof.adapters.mlx_family_models import build  # noqa: E402

MODELS = {"toy": toy("target"), "mamba2": build("mamba2", 32, 5)}
ANOTHER = [3, 1, 4, 1, 5, 9, 2, 6]
WARM = {"told": lambda name: warmed(name, told=True), "a caller's own": lambda name: warmed(name, told=False)}


def warmed(name, told):
    """A cache that holds 3 1."""
    cache = ModelCache("target", make_cache(MODELS[name]))
    cache.feed(MODELS[name], [3, 1])
    if told:
        cache.commit(MODELS[name], [3, 1])
        return cache
    mx.eval([layer.state for layer in cache])
    return ModelCache("target", cache.layers, length=2)


def interrupt(*_):
    """In place of a function."""
    raise KeyboardInterrupt


def interrupted_twice(monkeypatch, place, act):
    """`act`, which is interrupted at a function of the decoder's, and in the roll-back."""
    with monkeypatch.context() as both:
        both.setattr(*place, interrupt)
        both.setattr(ModelCache, "rollback", interrupt)
        with pytest.raises(KeyboardInterrupt):
            act()


def assert_refused_or_right(decoder, drafter, cache, prompt):
    """Of caches that something was left in; after a roll-back to what is known they serve."""
    with pytest.raises(CacheLengthError, match=r"those from index 2 on of other tokens|did not come to its end"):
        decoder.prefill(prompt, drafter, 6, cache)
    cache.rollback(2)
    following = decoder.prefill(prompt, drafter, 6, cache)
    assert tuple(tokens_of(decoder.generate(following))) == greedy(decoder.target, prompt, 6)


@pytest.mark.parametrize("kind", WARM)
@pytest.mark.parametrize("name", ["toy", "mamba2"])
def test_rows_left_by_two_interrupts_of_a_prefill_are_not_taken_for_another_prompts(monkeypatch, name, kind):
    decoder, drafter = make("greedy", 3, target=MODELS[name])
    cache = WARM[kind](name)
    place = (mlx_impl.decoder, "read")  # the forward is over by then
    interrupted_twice(monkeypatch, place, lambda: decoder.prefill([3, 1, 8, 8, 8], drafter, 6, cache))
    assert cache.length == 5, "or there is nothing to be mistaken"
    assert_refused_or_right(decoder, make()[1], cache, ANOTHER)


@pytest.mark.parametrize("name", ["toy", "mamba2"])
def test_rows_left_by_two_interrupts_of_a_step_are_not_taken_for_another_prompts(monkeypatch, name):
    decoder, drafter = make("greedy", 3, target=MODELS[name])
    state = decoder.prefill([3, 1], drafter, 6)
    interrupted_twice(monkeypatch, (mlx_impl.decoder, "read_verdict"), lambda: decoder.step(state))
    assert state.target_cache.length == 6
    assert drafter.cache.length == 5
    with pytest.raises(CacheLengthError, match="the draft model's cache holds 5 rows, those from index"):
        decoder.prefill([*state.history, 4, 1, 5, 9], drafter, 6)
    assert_refused_or_right(decoder, make()[1], state.target_cache, [*state.history, 4, 1, 5, 9])


@pytest.mark.parametrize("name", ["toy", "mamba2"])
def test_a_cache_in_which_a_forward_failed_is_refused_until_it_is_rolled_back(name):
    decoder, drafter = make("greedy", 3, target=MODELS[name])
    cache = WARM["told"](name)

    def failing(inputs, cache):
        MODELS[name](inputs, cache=cache)
        raise InjectedError

    with pytest.raises(InjectedError):
        cache.feed(failing, [8, 8, 8])
    assert_refused_or_right(decoder, drafter, cache, ANOTHER)


def test_rows_of_forwards_that_are_not_committed_count_for_whoever_made_them_only():
    cache = WARM["told"]("toy")
    cache.checkpoint([3, 1])
    cache.forward(MODELS["toy"], mx.array([4, 1]))
    assert cache.shared(ANOTHER) == 2
    assert cache.shared_after_forwards(ANOTHER) == 4
    assert cache.shared_after_forwards([3, 7, 4, 1]) == 1
    cache.commit(MODELS["toy"], [3, 1, 4])
    assert cache.shared(ANOTHER) == 3


def test_tokens_that_could_not_be_fed_are_not_known():
    cache = WARM["told"]("toy")
    with pytest.raises(RuntimeError, match="cast"):
        cache.feed(MODELS["toy"], [2**40])
    cache.feed(MODELS["toy"], [4, 1])
    assert cache.shared(ANOTHER) == 4
