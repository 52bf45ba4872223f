"""Rows are quantised between two committed tokens, as in plain decoding, whatever a round drafts."""

import pytest

mx = pytest.importorskip("mlx.core", reason="mlx is not installed; pip install 'specproof[mlx]'")
pytest.importorskip("mlx_lm", reason="mlx-lm is not installed; pip install 'specproof[mlx-lm]'")

from functools import cache  # noqa: E402

from interrupts import interrupted_at  # noqa: E402
from mlx.utils import tree_map  # noqa: E402
from mlx_lm.generate import generate_step  # noqa: E402
from mlx_lm.models.cache import KVCache, QuantizedKVCache, RotatingKVCache  # noqa: E402
from mlx_lm.models.llama import Model, ModelArgs  # noqa: E402
from mlx_toys import GREEDY, Scripted  # noqa: E402

from mlx_impl import Decoder, DraftModel, KeyedRandomness  # noqa: E402
from mlx_impl.kv_quantisation import KVQuantisation  # noqa: E402
from mlx_impl.model_cache import ModelCache  # noqa: E402
from mlx_impl.state import DecoderState  # noqa: E402
from reference.errors import InvalidSetting  # noqa: E402

PROMPT = [3, 1, 4, 1, 5]
COUNT = 16


@cache
def model():
    keys = iter(mx.random.split(mx.random.key(3), 100))

    def drawn(weight):
        scale = 2 / weight.shape[-1] ** 0.5
        return weight if weight.ndim < 2 else mx.random.normal(weight.shape, key=next(keys), scale=scale)

    built = Model(ModelArgs("llama", 64, 2, 64, 2, 1e-5, 32, head_dim=32, num_key_value_heads=2))
    built.update(tree_map(drawn, built.parameters()))
    return built


def quantised(start):
    return ModelCache("target", layers(), quantisation=KVQuantisation(bits=4, group_size=32, start=start))


def layers():
    return [KVCache() for _ in model().layers]


def begun(k, start, script=(True, True, False)):
    decoder = Decoder(model(), sampling=GREEDY, randomness=KeyedRandomness(0), num_draft_tokens=k)
    drafter = DraftModel(Scripted(model(), list(script)), GREEDY, KeyedRandomness(1))
    return decoder, decoder.prefill(PROMPT, drafter, COUNT, quantised(start))


def tokens(decoder, state):
    return [item.token for item in decoder.generate(state)]


@cache
def plain(start):
    return tuple(tokens(*begun(0, start)))


@pytest.mark.parametrize("script", [(True,), (False,), (True, True, False)], ids=["all_accept", "all_reject", "mixed"])
@pytest.mark.parametrize("start", [0, 5, 6, 9, 12, 50])
def test_the_output_is_that_of_plain_decoding_wherever_quantising_begins(start, script):
    assert tuple(tokens(*begun(4, start, script))) == plain(start)


@pytest.mark.parametrize("start", [0, 5, 9, 50])
def test_the_output_is_that_of_mlx_lms_own_loop(start):
    settings = {"kv_bits": 4, "kv_group_size": 32, "quantized_kv_start": start}
    theirs = generate_step(mx.array(PROMPT), model(), max_tokens=COUNT, prompt_cache=layers(), **settings)
    assert tuple(int(token) for token, _ in theirs) == plain(start)


@pytest.mark.parametrize("start", [0, 6, 9])
def test_a_drafter_whose_rows_are_quantised_changes_nothing_but_what_it_proposes(start):
    decoder = Decoder(model(), sampling=GREEDY, randomness=KeyedRandomness(0), num_draft_tokens=3)
    drafter = DraftModel(model(), GREEDY, KeyedRandomness(1), cache=quantised(start))
    state = decoder.prefill(PROMPT, drafter, COUNT, layers())
    assert tuple(tokens(decoder, state)) == plain(50), "50: the target's rows are not quantised"
    assert all(isinstance(layer, QuantizedKVCache) for layer in drafter.cache)
    assert drafter.cache.length == state.target_cache.length


def test_quantising_changes_the_output_here():
    """The control: or the test above would hold for a decoder that quantises at any time, or never."""
    assert len({plain(start) for start in (0, 9, 50)}) == 3


@pytest.mark.parametrize("start", [0, 7, 9])
def test_a_cache_is_quantised_from_the_first_boundary_at_or_behind_the_start(start):
    decoder, state = begun(4, start)
    kinds = []
    while state.finish is None:
        kinds.append((state.target_cache.length >= start, {type(layer) for layer in state.target_cache}))
        decoder.step(state)
    assert kinds == [(due, {QuantizedKVCache if due else KVCache}) for due, _ in kinds]
    assert kinds[-1][0]


@pytest.mark.parametrize("closed_after", range(1, 12))
def test_a_turn_closed_on_either_side_of_the_start_goes_on_as_if_it_had_not_been(closed_after):
    decoder, state = begun(4, 9, (True,))
    iterator = decoder.generate(state)
    first = [next(iterator).token for _ in range(closed_after)]
    iterator.close()
    due = state.target_cache.length >= 9
    assert {type(layer) for layer in state.target_cache} == {QuantizedKVCache if due else KVCache}
    assert (*first, *tokens(decoder, state)) == plain(9)


@pytest.mark.parametrize("delivered", [1, 4, 5, 8])
def test_a_turn_closed_several_rounds_behind_is_not_quantised_before_the_start(delivered):
    decoder, state = begun(3, 9, (True,))
    for _ in range(4):
        decoder.step(state)
    iterator = decoder.generate(state)
    first = [next(iterator).token for _ in range(delivered)]
    iterator.close()
    due = state.target_cache.length >= 9
    assert {type(layer) for layer in state.target_cache} == {QuantizedKVCache if due else KVCache}
    twin = state.copy()
    assert (*first, *tokens(decoder, state)) == (*first, *tokens(decoder, twin)) == plain(9)


def test_the_callers_own_list_holds_the_quantised_caches():
    held = layers()
    cache_ = ModelCache("target", held, quantisation=KVQuantisation(bits=8, group_size=32))
    cache_.feed(model(), PROMPT)
    cache_.commit(model(), PROMPT)
    assert {type(layer) for layer in held} == {QuantizedKVCache}


def test_windows_are_refused_at_the_start():
    with pytest.raises(InvalidSetting, match=r"a RotatingKVCache cannot be quantised; give the target's cache"):
        ModelCache("target", [RotatingKVCache(max_size=8)], quantisation=KVQuantisation(bits=4))


def test_an_interrupt_of_the_round_that_quantises_leaves_the_caches_where_the_turn_goes_on():
    functions = (ModelCache.commit, ModelCache._cut, ModelCache._mark, ModelCache._quantise, ModelCache.rollback)
    for line in range(0, 10_000, 3):
        decoder, state = begun(4, 9, (True,))
        try:
            with interrupted_at(line, *functions, Decoder._commit, DecoderState.record):
                while state.target_cache.length < 9:
                    decoder.step(state)
        except KeyboardInterrupt:
            assert len({state.target_cache.length, len(state.history) - 1}) == 1
            assert tuple(tokens(decoder, state)) == plain(9)
        else:
            break
    assert line > 30
