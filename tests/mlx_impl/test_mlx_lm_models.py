"""The decoder runs mlx-lm's models on mlx-lm's caches, as target and as drafter, and mlx-lm runs on ours."""

import pytest

mx = pytest.importorskip("mlx.core", reason="mlx is not installed; pip install 'specproof[mlx]'")
pytest.importorskip("mlx_lm", reason="mlx-lm is not installed; pip install 'specproof[mlx-lm]'")

from functools import cache  # noqa: E402

from mlx_decodes import assert_at_boundary, assert_cache_content, greedy, make, run  # noqa: E402
from mlx_lm.models import cache as mlx_lm_cache  # noqa: E402
from mlx_lm.models.llama import Model, ModelArgs  # noqa: E402
from mlx_lm.utils import load_model  # noqa: E402
from mlx_toys import GREEDY, SAMPLED, TOYS, Failing, InjectedError, Scripted, toy  # noqa: E402

from mlx_impl import KVCache  # noqa: E402
from mlx_impl.cache import offsets  # noqa: E402
from mlx_impl.model_cache import ModelCache  # noqa: E402

PROMPT = [3, 1, 4]
OURS = {"target": lambda: toy("target"), "draft": lambda: toy("draft")}
THEIRS = {"target": lambda: of_mlx_lm("target"), "draft": lambda: of_mlx_lm("draft")}


@cache
def of_mlx_lm(name):
    model, _ = load_model(TOYS / name)
    return model


def test_both_models_give_the_same_logits():
    tokens = mx.array([[1, 5, 9, 2, 30]])
    assert mx.allclose(toy("target")(tokens), of_mlx_lm("target")(tokens), atol=1e-5)


@pytest.mark.parametrize("target", [OURS, THEIRS], ids=["our_target", "their_target"])
@pytest.mark.parametrize("draft", [OURS, THEIRS], ids=["our_draft", "their_draft"])
@pytest.mark.parametrize("rule", ["greedy", "sampler_match", "rejection"])
def test_at_temperature_0_any_mixture_of_models_gives_greedy_decoding(rule, target, draft):
    decoder, drafter = make(rule, 3, target["target"](), draft["draft"](), sampling=GREEDY)
    assert run(decoder, drafter, PROMPT, 10) == greedy(toy("target"), PROMPT, 10)


@pytest.mark.parametrize("script", [[True], [False], [True, True, False]], ids=["all_accept", "all_reject", "mixed"])
def test_target_and_draft_cache_offset_of_mlx_lms_caches_at_every_boundary(script):
    target = of_mlx_lm("target")
    draft = Scripted(target, script)
    decoder, drafter = make("rejection", 3, target, draft, sampling=SAMPLED)
    state = decoder.prefill(PROMPT, drafter, 14)
    assert_at_boundary(state)
    while state.finish is None:
        decoder.step(state)
        assert_at_boundary(state)
    assert {type(layer) for layer in state.target_cache} == {mlx_lm_cache.KVCache}


@pytest.mark.parametrize("when", ["before", "half-way", "after"])
def test_a_fault_in_a_model_of_mlx_lm_leaves_a_boundary_and_costs_no_token(when):
    model = Failing(of_mlx_lm("target"), 3, when, InjectedError())
    decoder, drafter = make("greedy", 3, model, of_mlx_lm("draft"))
    state = decoder.prefill(PROMPT, drafter, 12)
    received = []
    with pytest.raises(InjectedError):
        received.extend(item.token for item in decoder.generate(state))
    assert_at_boundary(state)
    rest = [item.token for item in decoder.generate(state)]
    assert state.emitted == greedy(toy("target"), PROMPT, 12)
    assert list(state.emitted)[-len(rest) :] == rest


def test_states_on_mlx_lms_caches_can_be_copied():
    decoder, drafter = make("greedy", 3, of_mlx_lm("target"), of_mlx_lm("draft"))
    state = decoder.prefill(PROMPT, drafter, 12)
    twin = state.copy()
    for one in (twin, state):
        assert tuple(item.token for item in decoder.generate(one)) == greedy(toy("target"), PROMPT, 12)


@pytest.mark.parametrize("kind", [KVCache, mlx_lm_cache.KVCache, lambda: mlx_lm_cache.QuantizedKVCache(32, 8)])
def test_mlx_lms_model_runs_on_any_of_these_caches_and_they_are_cut_and_copied_alike(kind):
    args = ModelArgs("llama", 64, 2, 64, 2, 1e-5, 16, head_dim=32, num_key_value_heads=2)
    mx.random.seed(3)  # the weights of mlx-lm's own initialisation
    model = Model(args)
    tokens = [1, 2, 3, 4, 5, 6]
    cache = ModelCache("target", [kind() for _ in range(2)])
    whole = cache.forward(model, mx.array(tokens))
    cache.commit(model, tokens[:3])
    twin = cache.copy()
    cache.forward(model, mx.array([9, 9, 9]))
    again = twin.forward(model, mx.array(tokens[3:]))
    assert (offsets(cache), offsets(twin)) == ((6, 6), (6, 6))
    assert mx.allclose(again, whole[3:], atol=1e-4)


def test_cache_content_on_mlx_lms_caches_is_that_of_a_fresh_prefill():
    decoder, drafter = make("greedy", 3, of_mlx_lm("target"), of_mlx_lm("draft"))
    state = decoder.prefill(PROMPT, drafter, 10)
    list(decoder.generate(state))
    ours = {"target": toy("target").make_cache(), "draft": toy("draft").make_cache()}
    for name, held in (("target", state.target_cache), ("draft", drafter.cache)):
        for layer, theirs in zip(ours[name], held, strict=True):
            layer.state = (theirs.keys, theirs.values, theirs.offset)
    state.target_cache, drafter.cache = ours["target"], ours["draft"]
    assert_cache_content(state, {"target": toy("target"), "draft": toy("draft")})
