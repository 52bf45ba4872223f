"""Text to tokens and back, as it comes and all at once, and conversations to text."""

import json

import pytest

mx = pytest.importorskip("mlx.core", reason="mlx is not installed; pip install 'specproof[mlx]'")
tokenizers = pytest.importorskip("tokenizers", reason="tokenizers is not installed; pip install 'specproof[text]'")
pytest.importorskip("jinja2", reason="jinja2 is not installed; pip install 'specproof[text]'")

import sys  # noqa: E402
from dataclasses import replace  # noqa: E402

import gguf_files  # noqa: E402
from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from mlx_impl import gguf, gguf_tokenizer  # noqa: E402
from mlx_impl.detokenizer import INCOMPLETE  # noqa: E402
from mlx_impl.tokenizer import Tokenizer, from_folder  # noqa: E402
from reference.errors import CheckpointError, InvalidSetting, MissingExtra, TokenOutOfRange  # noqa: E402

TEXTS = [
    "",
    " ",
    "Hello, world",
    "a\n\tb  c",
    "naïve – €5",
    "日本語のテキスト",
    "👩‍👩‍👧 🏳️‍🌈 🇩🇪!",
    "in 2024: 3.14159",
    "\N{REPLACEMENT CHARACTER}x",
]
CHAT = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
SPECIAL = ["<|begin|>", "<|end|>", "<|user|>", "<|assistant|>"]


def bytewise() -> tokenizers.Tokenizer:
    """Every byte a token: every character that is not ASCII is cut at every byte."""
    split = tokenizers.pre_tokenizers.ByteLevel
    vocabulary = {character: id for id, character in enumerate(sorted(split.alphabet()))}
    backend = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, []))
    backend.pre_tokenizer = split(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    backend.add_special_tokens(SPECIAL)
    return backend


BYTEWISE = Tokenizer(bytewise(), chat_template=CHAT)


def folder(path, settings=None, template=None, config=None, generation=None):
    bytewise().save(str(path / "tokenizer.json"))
    for name, value in (("tokenizer_config", settings), ("config", config), ("generation_config", generation)):
        if value is not None:
            (path / f"{name}.json").write_text(json.dumps(value))
    if template is not None:
        (path / "chat_template.jinja").write_text(template)
    return from_folder(path)


def pieces(tokenizer, tokens) -> list[str]:
    """What the detokenizer gives for each token, and at the end."""
    stream = tokenizer.detokenizer()
    return [*(stream.add(token) for token in tokens), stream.finish()]


@pytest.mark.parametrize("text", TEXTS)
def test_decoding_undoes_encoding(text):
    assert BYTEWISE.decode(BYTEWISE.encode(text)) == text


@pytest.mark.parametrize("text", TEXTS)
def test_decoding_undoes_encoding_with_the_tokenizer_of_smollm2(smollm2, text):
    tokenizer = smollm2.tokenizer
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_the_tokenizer_of_smollm2_splits_as_the_model_was_trained(smollm2):
    tokenizer = smollm2.tokenizer
    tokens = tokenizer.encode("I paid 2024 dollars.<|im_end|>")
    assert [tokenizer.decode([token], skip_special_tokens=False) for token in tokens] == [
        "I", " paid", " ", "2", "0", "2", "4", " dollars", ".", "<|im_end|>",
    ]  # fmt: skip
    assert tokenizer.decode(tokens) == "I paid 2024 dollars."
    assert tokenizer.stop_ids == {2}
    assert tokenizer.special_ids == smollm2.model.special_ids == set(range(17))
    assert tokenizer.vocabulary == smollm2.model.tokens
    assert len(tokenizer.vocabulary) == smollm2.model.args.vocab_size == 49152


@pytest.mark.parametrize("text", TEXTS)
def test_a_stream_cut_after_any_token_gives_the_whole_text_and_only_whole_characters(text, smollm2):
    for tokenizer in (BYTEWISE, smollm2.tokenizer):
        tokens = tokenizer.encode(text)
        for end in range(len(tokens) + 1):
            *given_out, rest = pieces(tokenizer, tokens[:end])
            assert "".join(given_out) + rest == tokenizer.decode(tokens[:end])
            assert text.startswith("".join(given_out))


@given(st.lists(st.text("a é€👍\n", max_size=6), max_size=4), st.binary(max_size=12))
def test_a_stream_gives_what_decoding_at_once_gives_special_tokens_and_broken_bytes_included(texts, junk):
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    end = BYTEWISE.vocabulary["<|end|>"]
    tokens = [token for text in texts for token in (*BYTEWISE.encode(text), end)]
    tokens += [byte % len(alphabet) for byte in junk]
    assert "".join(pieces(BYTEWISE, tokens)) == BYTEWISE.decode(tokens)


def test_token_by_token_an_emoji_is_lost_and_a_stream_holds_it_back():
    tokens = BYTEWISE.encode("a👍b")
    assert "".join(BYTEWISE.decode([token]) for token in tokens) == f"a{INCOMPLETE * 4}b"
    assert pieces(BYTEWISE, tokens) == ["a", "", "", "", "👍", "b", ""]


def test_a_stream_ends_with_what_was_held_back_and_begins_anew():
    stream = BYTEWISE.detokenizer()
    tokens = BYTEWISE.encode("👍")
    assert [stream.add(token) for token in tokens[:2]] == ["", ""]
    assert stream.finish() == INCOMPLETE
    assert [stream.add(token) for token in tokens] == ["", "", "", "👍"]


def test_a_stream_keeps_the_spaces_that_a_tokenizer_drops_at_the_start_of_a_text():
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel({"▁a": 0, "▁b": 1, "<s>": 2}, unk_token="<s>"))
    backend.add_special_tokens(["<s>"])
    backend.decoder = tokenizers.decoders.Metaspace()
    tokenizer = Tokenizer(backend)
    assert tokenizer.decode([0]) + tokenizer.decode([1]) == "ab"
    assert pieces(tokenizer, [2, 0, 1, 2, 0]) == ["", "a", " b", "", " a", ""]
    assert tokenizer.decode([2, 0, 1, 2, 0]) == "a b a"


def test_ids_without_a_name_read_as_nothing_and_what_is_no_id_is_refused():
    assert BYTEWISE.decode([*BYTEWISE.encode("ab"), 100_000]) == "ab"
    for wrong in (-1, 2**32):
        with pytest.raises(TokenOutOfRange, match=rf"{wrong} is no token id; give integers >= 0"):
            BYTEWISE.decode([0, wrong])


def test_a_conversation_is_written_as_the_template_says():
    messages = [{"role": "user", "content": "Hi 👍"}]
    assert BYTEWISE.apply_chat_template(messages) == "<|user|>Hi 👍<|end|><|assistant|>"
    assert BYTEWISE.apply_chat_template(messages, add_generation_prompt=False) == "<|user|>Hi 👍<|end|>"
    assert BYTEWISE.encode("<|user|>")[0] == BYTEWISE.vocabulary["<|user|>"]


def test_the_template_of_smollm2_puts_a_system_message_first(smollm2):
    asked = [{"role": "user", "content": "Hi"}]
    text = smollm2.tokenizer.apply_chat_template(asked)
    assert text.startswith("<|im_start|>system\nYou are a helpful AI assistant named SmolLM")
    assert text.endswith("<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
    ordered = [{"role": "system", "content": "Be brief."}, *asked]
    assert smollm2.tokenizer.apply_chat_template(ordered).startswith("<|im_start|>system\nBe brief.<|im_end|>\n")


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (None, r"this tokenizer has no chat template; give the prompt as text"),
        (
            "{{ raise_exception('roles must alternate') }}",
            r"the chat template refuses these messages: roles must alter",
        ),
        ("{{ messages[0].content + 1 }}", r"the chat template cannot be filled in with these messages: .*str"),
        ("{% for %}", r"the chat template cannot be filled in with these messages: "),
        ("{{ messages.clear() }}", r"the chat template cannot be filled in with these messages: .*'clear' .* unsafe"),
        ("{{ ''.__class__.__mro__ }}", r"the chat template cannot be filled in with these messages: .*unsafe"),
    ],
)
def test_a_template_that_is_missing_wrong_or_up_to_something_is_an_error(template, message):
    with pytest.raises(InvalidSetting, match=message):
        replace(BYTEWISE, chat_template=template).apply_chat_template([{"role": "user", "content": "Hi"}])


def test_a_template_gets_named_tokens_other_values_and_json_as_transformers_writes_it():
    template = "{{ bos_token }}{{ tools | tojson }}{{ tools | tojson(indent=1) | length }}"
    tokenizer = replace(BYTEWISE, chat_template=template, named_tokens={"bos_token": "<|begin|>"})
    assert tokenizer.apply_chat_template([], tools=["<ü>"]) == '<|begin|>["<ü>"]' + str(len('[\n "<ü>"\n]'))


def test_of_a_folder_every_file_is_asked_what_ends_a_turn(tmp_path):
    ids = BYTEWISE.vocabulary
    settings = {"eos_token": {"content": "<|end|>"}, "bos_token": "<|begin|>", "chat_template": CHAT}
    tokenizer = folder(tmp_path, settings, config={"eos_token_id": 7}, generation={"eos_token_id": [8, 7]})
    assert tokenizer.stop_ids == {ids["<|end|>"], 7, 8}
    assert tokenizer.named_tokens == {"eos_token": "<|end|>", "bos_token": "<|begin|>"}
    assert tokenizer.special_ids == {ids[token] for token in SPECIAL}
    assert tokenizer.chat_template == CHAT
    assert folder(tmp_path, {}, config={}, generation={}).stop_ids == frozenset()


def test_a_folder_keeps_its_template_in_a_file_or_in_the_settings(tmp_path):
    named = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": "yes"}]
    assert folder(tmp_path, {"chat_template": named}).chat_template == "yes"
    assert folder(tmp_path, {"chat_template": named}, template="from a file").chat_template == "from a file"
    (tmp_path / "chat_template.jinja").unlink()
    assert folder(tmp_path, {}).chat_template is None


def test_a_folder_without_a_tokenizer_has_none_and_a_damaged_one_is_refused(tmp_path):
    assert from_folder(tmp_path) is None
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(
        CheckpointError, match=r"tokenizer\.json is not readable as a tokenizer \(.*\); download it again"
    ):
        from_folder(tmp_path)
    folder(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"config\.json is not valid JSON \(.*\); download it again"):
        from_folder(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(CheckpointError, match=r"config\.json holds a list, not a JSON object; download it again"):
        from_folder(tmp_path)


def gguf_tokens(path, **changes):
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    tokens = [*alphabet, "ab", "<|begin|>", "<tool>"]
    kinds = [1] * len(alphabet) + [1, 3, 4]
    settings = {
        "tokenizer__ggml__model": "gpt2",
        "tokenizer__ggml__pre": "gpt-2",
        "tokenizer__ggml__tokens": tokens,
        "tokenizer__ggml__token_type": mx.array(kinds, mx.int32),
        "tokenizer__ggml__merges": ["a b"],
        "tokenizer__ggml__bos_token_id": mx.array(257, mx.uint32),
        "tokenizer__ggml__eot_token_id": mx.array(9, mx.uint32),
    }
    return gguf.read(gguf_files.write(path / "toy.gguf", **(settings | changes)))


def test_of_a_gguf_file_the_tokenizer_merges_and_marks_special_tokens_and_added_ones(tmp_path):
    tokenizer = gguf_tokenizer.tokenizer(gguf_tokens(tmp_path))
    assert tokenizer.encode("ab<tool><|begin|>") == [256, 258, 257]
    assert tokenizer.decode([256, 258, 257]) == "ab<tool>"
    assert (tokenizer.special_ids, tokenizer.stop_ids) == ({257}, {9})
    begins = gguf_tokens(tmp_path, tokenizer__ggml__add_bos_token=mx.array(True))
    assert gguf_tokenizer.tokenizer(begins).encode("ab") == [257, 256]
    assert gguf_tokenizer.tokenizer(begins).encode("ab", add_special_tokens=False) == [256]


def test_digits_are_split_where_the_file_says_so_and_only_there(tmp_path):
    tokens = ["12" if token == "ab" else token for token in gguf_tokens(tmp_path).get("tokenizer.ggml.tokens")]
    changes = {"tokenizer__ggml__tokens": tokens, "tokenizer__ggml__merges": ["1 2"]}
    joined, single = (
        gguf_tokenizer.tokenizer(gguf_tokens(tmp_path, tokenizer__ggml__pre=pre, **changes))
        for pre in ("gpt-2", "smollm")
    )
    assert len(joined.encode("12")) == 1
    assert len(single.encode("12")) == 2


def test_a_gguf_tokenizer_of_an_unknown_kind_is_left_out_and_a_contradictory_one_refused(tmp_path):
    assert gguf_tokenizer.tokenizer(gguf_tokens(tmp_path, tokenizer__ggml__pre="tekken")) is None
    assert gguf_tokenizer.tokenizer(gguf_tokens(tmp_path, tokenizer__ggml__model="llama")) is None
    with pytest.raises(
        CheckpointError, match=r"the tokenizer in .*toy\.gguf is not readable \(.*\); download it again"
    ):
        gguf_tokenizer.tokenizer(gguf_tokens(tmp_path, tokenizer__ggml__merges=["a never"]))


@pytest.mark.parametrize(
    ("module", "use", "message"),
    [
        ("jinja2", lambda path: BYTEWISE.apply_chat_template([]), r"a chat template needs jinja2, which is not inst"),
        ("tokenizers", from_folder, r"a tokenizer needs tokenizers, .* 'specproof\[text\]'"),
    ],
)  # fmt: skip
def test_a_package_that_is_not_installed_is_named_with_the_extra_that_has_it(
    tmp_path, monkeypatch, module, use, message
):
    folder(tmp_path)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtra, match=message):
        use(tmp_path)
