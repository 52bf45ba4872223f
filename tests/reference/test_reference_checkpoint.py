"""Reading a Hugging Face folder: what is there is read faithfully, and anything else is refused by name."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from reference import load
from reference.checkpoint import read_tokens
from reference.errors import CheckpointError


@pytest.fixture
def folder(toy_folder: Path, tmp_path: Path) -> Path:
    """A copy of the tiny target, to be damaged."""
    return Path(shutil.copytree(toy_folder / "tiny-target", tmp_path / "copy"))


def edit(folder: Path, **fields: object) -> None:
    """Change fields of config.json; None removes one."""
    file = folder / "config.json"
    config = {**json.loads(file.read_text()), **fields}
    file.write_text(json.dumps({name: value for name, value in config.items() if value is not None}))


def test_the_toy_folders_are_read(toy_folder: Path) -> None:
    model = load(toy_folder / "target")
    assert (model.name, model.vocab_size, len(model.layers), model.config.num_kv_heads) == ("target", 32, 3, 2)
    assert model.tokens == {f"t{i}": i for i in range(32)}
    assert model.embedding.dtype == np.float64


def test_a_tied_head_is_the_embedding(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    del weights["lm_head.weight"]
    save_file(weights, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"has no weight lm_head\.weight"):
        load(folder)
    edit(folder, tie_word_embeddings=True)
    model = load(str(folder))
    np.testing.assert_array_equal(model.head, model.embedding)
    tokens = [0, 2, 1, 1]
    cached = model.forward(tokens, model.new_cache()).logits
    np.testing.assert_allclose(cached, model.forward_without_cache(tokens).logits, atol=1e-9)


def test_weights_may_be_spread_over_files(folder: Path) -> None:
    whole = load(folder)
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(weights)
    save_file({name: weights[name] for name in names[:5]}, folder / "model-00001-of-00002.safetensors")
    save_file({name: weights[name] for name in names[5:]}, folder / "model-00002-of-00002.safetensors")
    tokens = [1, 0, 2]
    np.testing.assert_array_equal(
        load(folder).forward_without_cache(tokens).logits, whole.forward_without_cache(tokens).logits
    )


def test_a_weight_in_two_files_is_refused(folder: Path) -> None:
    """A shard left over from another download would win or lose by its file name."""
    weights = load_file(folder / "model.safetensors")
    save_file({"model.norm.weight": weights["model.norm.weight"] + 1}, folder / "model-00001-of-00002.safetensors")
    with pytest.raises(CheckpointError, match=r"model\.safetensors holds model\.norm\.weight, which another file has"):
        load(folder)


@pytest.mark.parametrize("dtype", ["F64", "F32", "F16", "BF16"])
def test_every_float_format_is_decoded(folder: Path, dtype: str) -> None:
    """The file is written by hand, since NumPy has no bfloat16: 8 bytes of header length, a JSON header, the data."""
    weights = load_file(folder / "model.safetensors")
    header, data = {}, b""
    for name, weight in weights.items():
        rounded = (weight.view("<u4") & 0xFFFF0000).view("<f4")  # exact in all but F16
        raw = {
            "F64": rounded.astype("<f8").tobytes(),
            "F32": rounded.tobytes(),
            "F16": rounded.astype("<f2").tobytes(),
            "BF16": (rounded.view("<u4") >> 16).astype("<u2").tobytes(),
        }[dtype]
        header[name] = {"dtype": dtype, "shape": weight.shape, "data_offsets": [len(data), len(data) + len(raw)]}
        weights[name], data = rounded, data + raw
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)
    tolerance = 1e-3 if dtype == "F16" else 0
    np.testing.assert_allclose(load(folder).head, weights["lm_head.weight"], atol=tolerance)


def test_defaults_of_older_configs(folder: Path) -> None:
    edit(folder, head_dim=None, rope_theta=None, rope_parameters={"rope_type": "default", "rope_theta": 500.0})
    config = load(folder).config
    assert (config.head_dim, config.rope_theta) == (4, 500.0)
    edit(folder, rope_parameters=None)
    assert load(folder).config.rope_theta == 10000.0


def test_parts_that_are_named_but_not_used_are_no_obstacle(folder: Path) -> None:
    edit(folder, partial_rotary_factor=1.0, rope_parameters={"rope_type": "default", "partial_rotary_factor": None})
    assert load(folder).config.rope_theta == 10000.0


def test_a_folder_that_is_no_checkpoint_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="nowhere is not a folder; give a Hugging Face checkpoint folder"):
        load(tmp_path / "nowhere")
    with pytest.raises(CheckpointError, match=r"has no config\.json"):
        load(tmp_path)
    (folder / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"config\.json is not JSON .* download it again"):
        load(folder)
    (folder / "config.json").write_text("[]")
    with pytest.raises(CheckpointError, match="holds a list where a JSON object belongs"):
        load(folder)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model_type": "qwen3"}, "is a 'qwen3' model; only 'llama'"),
        ({"model_type": None}, "is a None model"),
        ({"attention_bias": True}, "gives attention_bias as True, unknown to this reader"),
        ({"mlp_bias": True}, "gives mlp_bias as True"),
        ({"hidden_act": "gelu"}, "gives hidden_act as 'gelu'"),
        ({"rope_scaling": {"rope_type": "llama3"}}, "gives rope_type as 'llama3', unknown to this reader"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "gives type as 'linear'"),
        ({"quantization": {"bits": 4}}, "gives quantization as "),
        ({"hidden_size": None}, r"config\.json gives hidden_size as None; a Llama needs a positive int"),
        ({"num_key_value_heads": 3}, "4 heads of size 4 on 3 key heads; the numbers must divide evenly"),
        ({"head_dim": 3}, "heads of size 3"),
        ({"num_attention_heads": "x"}, "gives num_attention_heads as 'x'"),
        ({"vocab_size": 3.0}, r"gives vocab_size as 3\.0"),
        ({"rms_norm_eps": True}, "gives rms_norm_eps as True; a Llama needs a positive int or float"),
        ({"partial_rotary_factor": 0.5}, "gives partial_rotary_factor as 0.5"),
        ({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}, "gives partial_rotary_factor"),
        ({"tie_word_embeddings": "false"}, "gives tie_word_embeddings as 'false'; give true or false"),
        ({"tie_word_embeddings": 0}, "gives tie_word_embeddings as 0"),
        ({"num_attention_heads": 0}, "gives num_attention_heads as 0"),
        ({"head_dim": 0}, "gives head_dim as 0"),
        ({"num_hidden_layers": -1}, "gives num_hidden_layers as -1"),
        ({"rope_scaling": [1]}, "describes rotary positions by"),
        ({"rope_theta": -1.0}, r"gives rope_theta as -1\.0; a Llama needs a positive int or float"),
        ({"vocab_size": 4}, r"has shape \(3, 16\), config\.json asks for \(4, 16\)"),
        ({"num_hidden_layers": 3}, r"has no weight model\.layers\.2\."),
    ],
)
def test_configs_that_would_be_computed_wrongly_are_refused(
    folder: Path, fields: dict[str, object], message: str
) -> None:
    edit(folder, **fields)
    with pytest.raises(CheckpointError, match=message):
        load(folder)


def test_missing_and_broken_weight_files_are_refused(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"no tensors")
    with pytest.raises(CheckpointError, match="is not a safetensors file"):
        load(folder)
    (folder / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"has no \*\.safetensors file with weights; download or convert"):
        load(folder)


def test_a_tokenizer_may_be_missing_or_unlisted(folder: Path) -> None:
    (folder / "tokenizer.json").write_text(
        '{"model": {"vocab": {"a": 0}}, "added_tokens": [{"content": "</s>", "id": 1}]}'
    )
    assert read_tokens(folder) == {"a": 0, "</s>": 1}
    (folder / "tokenizer.json").write_text('{"model": {"type": "Unigram", "vocab": [["a", -1.0]]}}')
    assert read_tokens(folder) is None
    (folder / "tokenizer.json").unlink()
    assert read_tokens(folder) is None
    assert load(folder).tokens is None
