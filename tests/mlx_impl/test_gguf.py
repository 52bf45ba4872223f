"""A GGUF file gives the model that it was made of: names, numbers, quantisation, and above all the rotary layout."""

from dataclasses import replace

import pytest

mx = pytest.importorskip("mlx.core", reason="mlx is not installed; pip install 'specproof[mlx]'")
pytest.importorskip("mlx_lm", reason="mlx-lm is not installed; pip install 'specproof[mlx-lm]'")

import gguf_files  # noqa: E402
from mlx.utils import tree_flatten  # noqa: E402
from mlx_toys import toy  # noqa: E402

from mlx_impl import gguf, load  # noqa: E402
from mlx_impl.models import in_float32  # noqa: E402
from reference.errors import CheckpointError  # noqa: E402

TOKENS = [1, 5, 9, 2, 30, 7, 7, 0, 31, 4]
TEXT = "The sun rises in the east and sets in the west. Every day, the earth turns once around its axis, and"
"""23 tokens: every one of them costs a tenth of a second, twice."""


def negative_log_likelihood(model, tokens) -> float:
    """Nats per token, of all but the first."""
    logits = model(mx.array([tokens]))[0, :-1].astype(mx.float32)  # [T - 1, V]
    chosen = mx.take_along_axis(logits, mx.array(tokens)[1:, None], axis=-1)[:, 0]
    return mx.mean(mx.logsumexp(logits, axis=-1) - chosen).item()


@pytest.mark.parametrize("name", ["target", "draft"])
def test_a_file_written_from_a_folder_gives_the_logits_of_the_folder(tmp_path, name):
    loaded = load(gguf_files.write(tmp_path / "toy.gguf", name))
    tokens = mx.array([TOKENS])
    assert mx.allclose(loaded.model(tokens), toy(name)(tokens), atol=1e-4)


def test_the_other_rotary_layout_gives_other_logits(tmp_path):
    content = gguf.read(gguf_files.write(tmp_path / "toy.gguf"))
    args = gguf.llama_args(content)
    tokens = mx.array([TOKENS])
    right, wrong = (gguf.llama(content, replace(args, rope_traditional=layout)) for layout in (True, False))
    assert mx.allclose(right(tokens), toy("target")(tokens), atol=1e-4)
    assert mx.max(mx.abs(wrong(tokens) - toy("target")(tokens))) > 0.01
    assert mx.allclose(wrong(tokens[:, :1]), right(tokens[:, :1]), atol=1e-4)  # one token sees nothing but itself


def test_a_text_is_as_probable_as_smollm2_finds_it_and_less_so_under_the_other_rotary_layout(smollm2, smollm2_file):
    tokens = smollm2.tokenizer.encode(TEXT)
    content = gguf.read(smollm2_file)
    wrong = gguf.llama(content, replace(gguf.llama_args(content), rope_traditional=False))
    assert negative_log_likelihood(smollm2.model, tokens) == pytest.approx(2.4, abs=0.1)
    assert negative_log_likelihood(wrong, tokens) > 3.5


def test_quantised_matrices_stay_quantised_and_only_they(smollm2):
    layer = smollm2.model.layers[3]
    packed = (layer.self_attn.q_proj, layer.self_attn.o_proj, layer.mlp.down_proj, smollm2.model.model.embed_tokens)
    assert [(module.bits, module.group_size) for module in packed] == [(4, 32), (4, 32), (4, 32), (8, 32)]
    assert layer.input_layernorm.weight.dtype == mx.float32
    assert smollm2.model.args.tie_word_embeddings


def test_in_float32_nothing_is_quantised_and_the_logits_are_the_same(tmp_path):
    matrix = gguf_files.tensors("target")["blk.1.ffn_up.weight"]
    quantised = dict(zip(("weight", "scales", "biases"), mx.quantize(matrix, 32, 4), strict=True))
    content = gguf.read(gguf_files.write(tmp_path / "toy.gguf"))
    packed = {f"blk.1.ffn_up.{part}": array for part, array in quantised.items()}
    content = replace(content, tensors={**content.tensors, **packed})
    model = gguf.llama(content, gguf.llama_args(content))
    tokens = mx.array([TOKENS])
    before = model(tokens)
    assert "scales" in model.layers[1].mlp.up_proj
    assert not mx.allclose(before, toy("target")(tokens), atol=1e-4)
    dense = in_float32(model)
    assert "scales" not in dense.layers[1].mlp.up_proj
    assert dense.layers[1].mlp.up_proj.weight.dtype == mx.float32
    assert mx.allclose(dense(tokens), before, atol=1e-4)


@pytest.mark.skipif(mx.default_device().type != mx.cpu, reason="a layout for CPUs")
def test_in_float32_matrices_are_stored_by_columns_and_the_logits_stay_what_they_were(tmp_path):
    content = gguf.read(gguf_files.write(tmp_path / "toy.gguf"))
    model = gguf.llama(content, gguf.llama_args(content))
    model.set_dtype(mx.float32)
    before = model(mx.array([TOKENS]))
    matrices = [weight for _, weight in tree_flatten(in_float32(model).parameters()) if weight.ndim == 2]
    assert {memoryview(matrix).f_contiguous for matrix in matrices} == {True}
    assert mx.allclose(model(mx.array([TOKENS])), before, atol=1e-5)


def test_tokens_are_known_even_where_the_tokenizer_is_not_and_unused_ones_are_padding(tmp_path):
    kinds = mx.array([2, 3] + [1] * 29 + [5], mx.int32)
    loaded = load(gguf_files.write(tmp_path / "toy.gguf", tokenizer__ggml__token_type=kinds))
    assert loaded.tokenizer is None
    assert loaded.model.tokens == {f"t{id}": id for id in range(31)}
    assert loaded.model.special_ids == {0, 1}
    silent = load(
        gguf_files.write(tmp_path / "toy.gguf", tokenizer__ggml__tokens=None, tokenizer__ggml__token_type=None)
    )
    assert (silent.model.tokens, silent.model.special_ids) == (None, None)


def test_what_is_no_gguf_file_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match=r"missing\.gguf is not a file; give a GGUF file, or a folder"):
        load(tmp_path / "missing.gguf")
    (tmp_path / "other.gguf").write_text("PK, or whatever")
    with pytest.raises(CheckpointError, match=r"begins with b'PK, ', not with b'GGUF'; give a GGUF file"):
        load(tmp_path / "other.gguf")
    whole = gguf_files.write(tmp_path / "whole.gguf").read_bytes()
    (tmp_path / "cut.gguf").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CheckpointError, match=r"cut\.gguf is not readable as GGUF \(.*\); download it again"):
        load(tmp_path / "cut.gguf")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"general__architecture": "qwen2"}, r"has the architecture 'qwen2', not 'llama'; give the model as a folder"),
        ({"general__architecture": None}, r"has the architecture None, not 'llama'"),
        ({"llama__block_count": None}, r"gives llama\.block_count as None; give a file with a number there"),
        ({"llama__block_count": "two"}, r"gives llama\.block_count as 'two'; give a file with a number there"),
        ({"llama__rope__scaling__type": "yarn"}, r"rotates 8 of 8 components of a head, with scaling 'yarn', which is"),
        ({"llama__rope__dimension_count": mx.array(4)}, r"rotates 4 of 8 components of a head, with scaling 'none'"),
        ({"without": "token_embd.weight"}, r"lacks the tensor 'token_embd\.weight'; give a complete file"),
        ({"without": "output_norm.weight"}, r"lacks the tensor 'output_norm\.weight'; give a complete file"),
        ({"without": "blk.2.ffn_up.weight"}, r"lacks the tensor 'blk\.2\.ffn_up\.weight'; give a complete file"),
        ({"tensors_too": {"rope_freqs.weight": mx.ones(4)}}, r"has the tensor 'rope_freqs\.weight', which is not impl"),
        ({"tensors_too": {"blk.0.attn_q.bias": mx.ones(32)}}, r"has the tensor 'blk\.0\.attn_q\.bias', which is not"),
        ({"tensors_too": {"output_norm.weight": mx.ones(5)}}, r"do not fit its metadata \(.*model\.norm.*\); download"),
        ({"llama__attention__head_count_kv": mx.array(4)}, r"do not fit its metadata \(.*_proj.*\); download it again"),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_read_faithfully_is_refused(tmp_path, changes, message):
    with pytest.raises(CheckpointError, match=message):
        load(gguf_files.write(tmp_path / "toy.gguf", **changes))
