"""The model: cached and cache-free passes agree, and both agree with the formulas written out."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_models import assert_holds

from reference import Transformer
from reference.cache import KVCache
from reference.checkpoint import LlamaConfig, weight_shapes
from reference.errors import EmptyPrompt, HiddenCache, TokenOutOfRange
from reference.transformer import Activations, advance, rotary_angles, rotate

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3]
CONFIG = LlamaConfig(7, 8, 12, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=6, rms_norm_eps=1e-5,
                     rope_theta=100.0, tied=True)  # fmt: skip


def small_weights(config: LlamaConfig, seed: int = 5) -> dict[str, np.ndarray]:
    """Random weights for any config."""
    generator = np.random.default_rng(seed)
    return {name: generator.standard_normal(shape) * 0.5 for name, shape in weight_shapes(config).items()}


def llama_by_hand(config: LlamaConfig, weights: dict[str, np.ndarray], tokens: list[int]) -> np.ndarray:
    """Logits [T, V] by the equations of the Llama paper, head by head and position by position, with loops."""
    d, half = config.head_dim, config.head_dim // 2

    def norm(x: np.ndarray, name: str) -> np.ndarray:
        return x / (sum(x**2) / len(x) + config.rms_norm_eps) ** 0.5 * weights[name]

    def turned(x: np.ndarray, position: int) -> np.ndarray:
        out = np.empty(d)
        for j in range(half):
            angle = position / config.rope_theta ** (2 * j / d)
            pair = complex(x[j], x[j + half]) * np.exp(1j * angle)
            out[j], out[j + half] = pair.real, pair.imag
        return out

    xs = [weights["model.embed_tokens.weight"][token] for token in tokens]
    for index in range(config.num_layers):
        prefix = f"model.layers.{index}."

        def matrix(name: str, prefix: str = prefix) -> np.ndarray:
            return weights[f"{prefix}{name}.weight"]

        normed = [norm(x, prefix + "input_layernorm.weight") for x in xs]
        keys, values = [], []
        for t, x in enumerate(normed):
            k, v = matrix("self_attn.k_proj") @ x, matrix("self_attn.v_proj") @ x
            keys.append([turned(k[h * d : h * d + d], t) for h in range(config.num_kv_heads)])
            values.append([v[h * d : h * d + d] for h in range(config.num_kv_heads)])
        for t, x in enumerate(normed):
            q, heads = matrix("self_attn.q_proj") @ x, []
            for h in range(config.num_heads):
                query, kv = turned(q[h * d : h * d + d], t), h // (config.num_heads // config.num_kv_heads)
                scores = np.array([query @ keys[s][kv] / d**0.5 for s in range(t + 1)])
                share = np.exp(scores) / np.exp(scores).sum()
                heads.append(sum(share[s] * values[s][kv] for s in range(t + 1)))
            xs[t] = xs[t] + matrix("self_attn.o_proj") @ np.concatenate(heads)
            y = norm(xs[t], prefix + "post_attention_layernorm.weight")
            gate = matrix("mlp.gate_proj") @ y
            xs[t] = xs[t] + matrix("mlp.down_proj") @ (gate / (1 + np.exp(-gate)) * (matrix("mlp.up_proj") @ y))
    head = weights["model.embed_tokens.weight" if config.tied else "lm_head.weight"]
    return np.array([head @ norm(x, "model.norm.weight") for x in xs])


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("num_kv_heads", [1, 2, 4])
def test_logits_follow_the_formulas_written_out(tied: bool, num_kv_heads: int) -> None:
    config = LlamaConfig(7, 8, 12, 2, 4, num_kv_heads, 6, 1e-5, 100.0, tied)
    weights = small_weights(config)
    model = Transformer(config, weights, "by-hand")
    tokens = [1, 6, 0, 3, 3]
    np.testing.assert_allclose(
        model.forward_without_cache(tokens).logits, llama_by_hand(config, weights, tokens), atol=1e-10
    )


def test_interleaved_rotary_positions_would_be_seen() -> None:
    """Negative control: the other convention (entry 2j turns with 2j + 1) gives other keys."""
    x, angles = np.arange(6.0).reshape(1, 1, 6), rotary_angles(np.array([2]), CONFIG)
    interleaved = rotate(x[..., [0, 2, 4, 1, 3, 5]], angles)[..., [0, 3, 1, 4, 2, 5]]
    assert not np.allclose(rotate(x, angles), interleaved)


@pytest.mark.parametrize("split", range(1, len(PROMPT) + 1))
@pytest.mark.parametrize("which", ["target", "draft", "tiny_target", "tied"])
def test_cached_equals_cache_free_for_every_split(which: str, split: int, request: pytest.FixtureRequest) -> None:
    model = Transformer(CONFIG, small_weights(CONFIG), "tied") if which == "tied" else request.getfixturevalue(which)
    tokens = [token % model.vocab_size for token in PROMPT]
    cache = model.new_cache()
    parts = [model.forward(part, cache).logits for part in (tokens[:split], tokens[split:]) if part]
    np.testing.assert_allclose(np.concatenate(parts), model.forward_without_cache(tokens).logits, atol=1e-9)
    assert_holds(cache, model, tokens)


@settings(max_examples=20, deadline=None)
@given(tokens=st.lists(st.integers(0, 31), min_size=1, max_size=12), cuts=st.sets(st.integers(1, 11)))
def test_cached_equals_cache_free_for_any_pieces(target: Transformer, tokens: list[int], cuts: set[int]) -> None:
    cache, edges = target.new_cache(), [0, *sorted(cut for cut in cuts if cut < len(tokens)), len(tokens)]
    logits = [target.forward(tokens[a:b], cache).logits for a, b in pairwise(edges)]
    np.testing.assert_allclose(np.concatenate(logits), target.forward_without_cache(tokens).logits, atol=1e-9)
    assert_holds(cache, target, tokens)


def test_rows_appended_after_a_trim_equal_fresh_ones(target: Transformer) -> None:
    cache = target.new_cache()
    target.forward([*PROMPT[:4], 30, 31, 29], cache)
    cache.trim(3)
    target.forward(PROMPT[4:], cache)
    assert_holds(cache, target, PROMPT)


def test_a_wrong_row_of_the_right_length_is_seen(target: Transformer) -> None:
    """Negative control for the comparison of rows."""
    cache = target.new_cache()
    target.forward([*PROMPT[:-1], 30], cache)
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        assert_holds(cache, target, PROMPT)


def test_hidden_states_give_the_logits(target: Transformer) -> None:
    activations = target.forward(PROMPT, target.new_cache())
    np.testing.assert_array_equal(activations.hidden @ target.head.T, activations.logits)


@pytest.mark.parametrize("run", [lambda m, t: m.forward(t, m.new_cache()), lambda m, t: m.forward_without_cache(t)])
def test_bad_tokens_are_refused(target: Transformer, run: object) -> None:
    with pytest.raises(EmptyPrompt, match=r"target was given no tokens; .* give at least 1"):
        run(target, [])
    with pytest.raises(TokenOutOfRange, match=r"token 32 at index 1 is outside the vocabulary 0\.\.31 of target"):
        run(target, [0, 32])
    with pytest.raises(TokenOutOfRange, match="token -1 at index 0"):
        run(target, [-1])


def test_a_refused_token_leaves_the_cache_alone(target: Transformer) -> None:
    cache = target.new_cache()
    target.forward([1, 2], cache)
    with pytest.raises(TokenOutOfRange):
        target.forward([3, 99], cache)
    assert_holds(cache, target, [1, 2])


class Forgetful(Transformer):
    """Keeps its rows to itself."""

    def forward(self, tokens: list[int], cache: KVCache) -> Activations:
        return super().forward(tokens, cache.copy())


def test_a_model_that_hides_its_cache_is_refused() -> None:
    hidden = Forgetful(CONFIG, small_weights(CONFIG), "forgetful")
    with pytest.raises(HiddenCache, match=r"forgetful forwarded 2 tokens, but the cache .* went from 0 to 0 rows"):
        advance(hidden, [1, 2], hidden.new_cache())
    honest = Transformer(CONFIG, small_weights(CONFIG), "honest")
    assert advance(honest, [1, 2], honest.new_cache()).logits.shape == (2, 7)
