"""The toy Llama on MLX is the oracle's: same logits, same cache rows, however the tokens are cut into forwards."""

import json

import numpy as np
import pytest

mx = pytest.importorskip("mlx.core", reason="mlx is not installed; pip install 'specproof[mlx]'")

import mlx.nn as nn  # noqa: E402
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from mlx_toys import TOYS, blas_is_stock, toy  # noqa: E402

from mlx_impl.cache import offsets  # noqa: E402
from mlx_impl.transformer import load  # noqa: E402
from reference import transformer as oracle  # noqa: E402
from reference.errors import CheckpointError  # noqa: E402

NAMES = ("target", "draft", "tiny-target", "tiny-draft")
TOLERANCE = 1e-4


def sequence(vocab_size: int, length: int = 40) -> list[int]:
    """Tokens without an obvious pattern."""
    return [int(token) for token in np.random.default_rng(length).integers(0, vocab_size, length)]


def in_blocks(model, tokens, sizes, cache):
    """Logits [T, V] of the tokens, forwarded in blocks of these sizes (the last size repeats)."""
    sizes, parts = list(sizes), []
    while tokens:
        size = sizes.pop(0) if len(sizes) > 1 else sizes[0]
        parts.append(model(mx.array([tokens[:size]]), cache=cache)[0])
        tokens = tokens[size:]
    return mx.concatenate(parts)


@pytest.mark.parametrize("name", NAMES)
def test_logits_of_every_prefix_equal_the_oracles_without_a_cache(name):
    model, reference = toy(name), oracle.load(TOYS / name)
    tokens = sequence(reference.vocab_size)
    for length in range(1, len(tokens) + 1):
        wanted = reference.forward_without_cache(tokens[:length]).logits
        np.testing.assert_allclose(np.array(model(mx.array([tokens[:length]]))[0]), wanted, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("sizes", [[1], [40], [2], [5], [7, 1, 1, 6]], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_logits_with_a_cache_equal_the_oracles_for_one_and_for_many_tokens_per_forward(name, sizes):
    model, reference = toy(name), oracle.load(TOYS / name)
    tokens = sequence(reference.vocab_size)
    found = in_blocks(model, tokens, sizes, model.make_cache())
    np.testing.assert_allclose(np.array(found), reference.forward_without_cache(tokens).logits, rtol=0, atol=TOLERANCE)


@given(prefix=st.lists(st.integers(0, 31), min_size=1, max_size=20), sizes=st.lists(st.integers(1, 6), min_size=1))
@settings(max_examples=20, deadline=None)
def test_cached_keys_and_values_equal_the_oracles(prefix, sizes):
    model, reference = toy("target"), oracle.load(TOYS / "target")
    cache = model.make_cache()
    in_blocks(model, prefix, sizes, cache)
    for layer, (keys, values) in zip(cache, reference.forward_without_cache(prefix).rows, strict=True):
        assert layer.offset == len(prefix)
        np.testing.assert_allclose(np.array(layer.state[0][0]), keys, rtol=0, atol=TOLERANCE)
        np.testing.assert_allclose(np.array(layer.state[1][0]), values, rtol=0, atol=TOLERANCE)


def test_one_row_too_few_in_the_cache_is_seen_in_the_logits():
    """The control of the tests above: an offset wrong by one moves logits by far more than their tolerance."""
    model, reference = toy("target"), oracle.load(TOYS / "target")
    tokens = sequence(32)
    cache = model.make_cache()
    model(mx.array([tokens[:-1]]), cache=cache)
    for layer in cache:
        layer.trim(2)
    found = np.array(model(mx.array([tokens[-1:]]), cache=cache)[0, -1])
    assert np.abs(found - reference.forward_without_cache(tokens).logits[-1]).max() > 100 * TOLERANCE


def test_a_batch_is_computed_row_by_row():
    model, tokens = toy("target"), mx.array([sequence(32, 9), sequence(32, 9)[::-1]])
    whole = model(tokens)
    for row in range(2):
        assert mx.allclose(whole[row], model(tokens[row : row + 1])[0], atol=1e-5)


def test_a_tied_head_is_the_embedding(tmp_path):
    folder = changed_copy("target", tmp_path, {"tie_word_embeddings": True})
    tokens = sequence(32)
    found = np.array(load(folder)(mx.array([tokens]))[0])
    tied = oracle.load(folder).forward_without_cache(tokens).logits
    np.testing.assert_allclose(found, tied, rtol=0, atol=TOLERANCE)
    untied = oracle.load(TOYS / "target").forward_without_cache(tokens).logits
    assert np.abs(found - untied).max() > 1  # the control: another head gives other logits


def as_float32(model):
    return model


def as_4_bit(model):
    nn.quantize(model, group_size=32, bits=4)
    return model


def as_bfloat16(model):
    model.set_dtype(mx.bfloat16)
    return model


def as_float16(model):
    model.set_dtype(mx.float16)
    return model


@pytest.mark.parametrize(
    ("converted", "noise"), [(as_float32, 1e-4), (as_bfloat16, 0.25), (as_float16, 0.03), (as_4_bit, 1e-4)]
)
def test_forwards_of_1_2_5_17_and_64_tokens_give_the_same_logits(converted, noise):
    """Bit for bit with the BLAS of the stock CPU wheel; with another one, up to its noise."""
    model, tokens = converted(load(TOYS / "target")), sequence(32, 66)
    one_by_one = in_blocks(model, tokens, [1], model.make_cache()).astype(mx.float32)
    allowed = 0.0 if blas_is_stock() else noise
    for size in (2, 5, 17, 64):
        found = in_blocks(model, tokens, [size], model.make_cache()).astype(mx.float32)
        difference = float(mx.max(mx.abs(found - one_by_one)))
        assert difference <= allowed, f"blocks of {size}: logits differ by {difference}, allowed {allowed}"


MAPPED = "7f00-7f01 r-xp 0000 00:00 1   {}\n"
WHEEL = MAPPED.format("/env/site-packages/mlx_cpu.libs/libblas-bd8a282c.so.3.10.0")


@pytest.mark.parametrize(
    ("maps", "stock"),
    [
        (WHEEL, True),
        (WHEEL + MAPPED.format("/env/site-packages/numpy.libs/libscipy_openblas64_-32a4b2a6.so"), True),
        (WHEEL + MAPPED.format("/env/site-packages/scipy/linalg/_fblas.cpython-311-x86_64-linux-gnu.so"), True),
        (WHEEL + MAPPED.format("/usr/lib/x86_64-linux-gnu/libopenblas.so.0"), False),
        (MAPPED.format("/usr/lib/x86_64-linux-gnu/blas/libblas.so.3"), False),
        (WHEEL + MAPPED.format("/opt/intel/lib/libmkl_rt.so.2"), False),
        ("", False),
    ],
)
def test_exactness_is_asked_for_with_the_blas_of_the_wheel_alone(maps, stock):
    assert blas_is_stock(maps) is stock


def test_the_cache_of_a_model_has_one_empty_entry_per_layer():
    assert offsets(toy("target").make_cache()) == (0, 0, 0)
    assert offsets(toy("draft").make_cache()) == (0,)


def test_the_tokenizer_of_the_folder_is_at_hand():
    assert toy("tiny-target").tokens == {"t0": 0, "t1": 1, "t2": 2}


# ----------------------------------------------------------------------------------------------- bad checkpoints


def changed_copy(name, tmp_path, changes=None, weights=None):
    """A copy of a toy folder with entries of config.json replaced, and its weights too where they are given."""
    folder = tmp_path / "changed"
    folder.mkdir()
    config = json.loads((TOYS / name / "config.json").read_text()) | (changes or {})
    (folder / "config.json").write_text(json.dumps({key: value for key, value in config.items() if value is not None}))
    found = mx.load(str(TOYS / name / "model.safetensors"))
    mx.save_safetensors(str(folder / "model.safetensors"), found if weights is None else weights(found))
    return folder


def test_a_path_that_is_not_a_folder_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match=r"nowhere is not a folder; give a Hugging Face Llama folder"):
        load(tmp_path / "nowhere")


def test_a_folder_without_a_configuration_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match=r"has no config\.json; give"):
        load(tmp_path)


@pytest.mark.parametrize(("text", "message"), [("{", "is not valid JSON"), ("[]", "holds a list, not a JSON object")])
def test_an_unreadable_configuration_is_refused(tmp_path, text, message):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(CheckpointError, match=message):
        load(tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "gpt2"}, r"has model_type 'gpt2', not 'llama'; load it by mlx-lm"),
        ({"hidden_size": None}, r"lacks 'hidden_size'; give a complete Llama configuration"),
        ({"attention_bias": True}, r"has attention_bias, which is not implemented here"),
        ({"mlp_bias": True}, r"has mlp_bias, which"),
        ({"hidden_act": "gelu"}, r"has another hidden_act than 'silu', which"),
        ({"rope_scaling": {"rope_type": "yarn"}}, r"has scaled rotary positions, which"),
        ({"partial_rotary_factor": 0.5}, r"has partial_rotary_factor, which"),
        ({"rope_scaling": {"rope_type": "default", "partial_rotary_factor": 0.5}}, r"has partial_rotary_factor, which"),
        ({"tie_word_embeddings": "false"}, r"gives tie_word_embeddings as 'false'"),
        ({"quantization": {"bits": 4}}, r"has quantised weights, which"),
        ({"num_hidden_layers": 4}, r"lacks the weight 'model\.layers\.3\.[a-z_.]+'; give a complete checkpoint"),
        ({"vocab_size": "32"}, r"gives vocab_size as '32'; give a positive number"),
        ({"num_hidden_layers": 0}, r"gives num_hidden_layers as 0"),
        ({"num_attention_heads": 0}, r"gives num_attention_heads as 0|wrong kind"),
        ({"head_dim": 7}, r"4 heads of size 7 on 2 key heads; give numbers that divide, and an even size"),
        ({"rope_theta": -1.0}, r"gives rope_theta as -1.0"),
        ({"rope_scaling": [1]}, r"describes rotary positions by \[1\]; give a JSON object"),
        ({"vocab_size": 33}, r"has shape \(32, 32\), config\.json asks for \(33, 32\); give a config"),
    ],
)
def test_a_configuration_that_does_not_fit_is_refused(tmp_path, changes, message):
    with pytest.raises(CheckpointError, match=message):
        load(changed_copy("target", tmp_path, changes))


def test_a_weight_in_two_files_is_refused(tmp_path):
    folder = changed_copy("target", tmp_path)
    norm = mx.load(str(folder / "model.safetensors"))["model.norm.weight"]
    mx.save_safetensors(str(folder / "model-00001-of-00002.safetensors"), {"model.norm.weight": norm + 1})
    with pytest.raises(CheckpointError, match=r"model\.safetensors has 'model\.norm\.weight', and so has another file"):
        load(folder)


def test_a_folder_without_weights_is_refused(tmp_path):
    folder = changed_copy("target", tmp_path)
    (folder / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"has no \*\.safetensors with weights"):
        load(folder)


def test_an_unreadable_weight_file_is_refused(tmp_path):
    folder = changed_copy("target", tmp_path)
    (folder / "model.safetensors").write_bytes(b"not weights")
    with pytest.raises(CheckpointError, match=r"model\.safetensors is not readable as safetensors"):
        load(folder)


@pytest.mark.parametrize(
    "changes",
    [{"rope_theta": None, "rope_parameters": {"rope_theta": 500.0, "rope_type": "default"}}, {"rope_theta": 500.0}],
)
def test_the_rotary_base_is_read_from_either_place(tmp_path, changes):
    assert load(changed_copy("target", tmp_path, changes)).args.rope_theta == 500.0


def test_a_folder_without_a_tokenizer_is_read(tmp_path):
    assert load(changed_copy("target", tmp_path)).tokens is None
