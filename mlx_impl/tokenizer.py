"""Text to tokens and back, and conversations to text: what a model's folder or file says of it, and no more.

The work is done by `tokenizers` and `jinja2`; both come with the extras `text` and `mlx-lm`. A folder is in
Hugging Face's form: `tokenizer.json`, and what there is of `tokenizer_config.json`, `chat_template.jinja`,
`generation_config.json` and `config.json`. `gguf_tokenizer` makes a tokenizer of a GGUF file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from mlx_impl.checkpoint import read_object
from mlx_impl.detokenizer import Detokenizer
from mlx_impl.extras import needed
from reference.errors import CheckpointError, InvalidSetting, TokenOutOfRange

if TYPE_CHECKING:
    import tokenizers

NAMED = ("bos_token", "eos_token", "unk_token", "pad_token")
"""The tokens that a chat template may call by name."""


@dataclass(frozen=True)
class Tokenizer:
    """A model's tokenizer.

    Attributes:
        backend: does the work.
        stop_ids: tokens that end a turn.
        chat_template: a Jinja template; None where the model has none.
        named_tokens: `bos_token` and the like -> token, for the template.
    """

    backend: tokenizers.Tokenizer
    stop_ids: AbstractSet[int] = frozenset()
    chat_template: str | None = None
    named_tokens: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def vocabulary(self) -> Mapping[str, int]:
        """Token -> id, added and special tokens included."""
        return MappingProxyType(self.backend.get_vocab(with_added_tokens=True))

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """Tokens that are no text: begin and end of a turn and the like."""
        return frozenset(id for id, token in self.backend.get_added_tokens_decoder().items() if token.special)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Text -> token ids.

        Args:
            text: a special token's name in it is read as that token.
            add_special_tokens: put in what the tokenizer puts around a text (a begin-of-text token, as a rule). A
                conversation that came through a template has it already.
        """
        return list(self.backend.encode(text, add_special_tokens=add_special_tokens).ids)

    def decode(self, tokens: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Token ids -> text. Ids that the tokenizer does not name, such as padding, read as nothing.

        Raises:
            TokenOutOfRange: an id below 0 or beyond 32 bits.
        """
        try:
            return self.backend.decode(list(tokens), skip_special_tokens=skip_special_tokens)
        except OverflowError as error:
            wrong = next(token for token in tokens if not 0 <= token < 2**32)
            raise TokenOutOfRange(f"{wrong} is no token id; give integers >= 0") from error

    def detokenizer(self, *, skip_special_tokens: bool = True) -> Detokenizer:
        """For text that is wanted as it comes."""
        return Detokenizer(lambda tokens: self.decode(tokens, skip_special_tokens=skip_special_tokens))

    def apply_chat_template(
        self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True, **values: Any
    ) -> str:
        """A conversation as the text that the model was trained on.

        Args:
            messages: each with `role` and `content`.
            add_generation_prompt: end with the words that begin an answer.
            values: anything else that the template knows.

        Returns:
            Text with its special tokens: `encode(text, add_special_tokens=False)`.

        Raises:
            InvalidSetting: there is no template, or it refuses these messages.
            MissingExtra: jinja2 is not installed.
        """
        if self.chat_template is None:
            raise InvalidSetting("this tokenizer has no chat template; give the prompt as text")
        jinja2 = needed("jinja2", "text", "a chat template")
        sandbox = needed("jinja2.sandbox", "text", "a chat template")  # a template is somebody else's program

        def refuse(message: str) -> None:
            raise InvalidSetting(f"the chat template refuses these messages: {message}")

        environment = sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.globals["raise_exception"] = refuse
        environment.filters["tojson"] = _to_json
        try:
            text: str = environment.from_string(self.chat_template).render(
                messages=list(messages), add_generation_prompt=add_generation_prompt, **self.named_tokens, **values
            )
        except (jinja2.TemplateError, TypeError) as error:
            raise InvalidSetting(f"the chat template cannot be filled in with these messages: {error}") from error
        return text


def _to_json(value: Any, indent: int | None = None) -> str:
    """As transformers has it: without the escapes that HTML asks for."""
    return json.dumps(value, ensure_ascii=False, indent=indent)


def from_folder(folder: Path) -> Tokenizer | None:
    """The tokenizer of a Hugging Face folder; None where it has no `tokenizer.json`.

    Raises:
        CheckpointError: a file is unreadable.
        MissingExtra: tokenizers is not installed.
    """
    file = folder / "tokenizer.json"
    if not file.is_file():
        return None
    reader = needed("tokenizers", "text", "a tokenizer").Tokenizer
    try:
        backend: tokenizers.Tokenizer = reader.from_file(str(file))
    except Exception as error:  # the package raises nothing narrower
        raise CheckpointError(f"{file} is not readable as a tokenizer ({error}); download it again") from error
    settings = _read(folder / "tokenizer_config.json")
    named = {name: token for name in NAMED if (token := _content(settings.get(name))) is not None}
    return Tokenizer(backend, _stop_ids(folder, backend, named), _template(folder, settings), named)


def _stop_ids(folder: Path, backend: tokenizers.Tokenizer, named: Mapping[str, str]) -> frozenset[int]:
    """All that any file says ends a turn: a chat model often has one token for a turn, another for a text."""
    ids = {backend.token_to_id(named["eos_token"])} if "eos_token" in named else set()
    for name in ("generation_config.json", "config.json"):
        given = _read(folder / name).get("eos_token_id")
        ids.update(given if isinstance(given, list) else [given])
    return frozenset(id for id in ids if id is not None)


def _template(folder: Path, settings: Mapping[str, Any]) -> str | None:
    """The chat template: a file of its own, or in the settings, by itself or as the one called `default`."""
    file = folder / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    template = settings.get("chat_template")
    if isinstance(template, list):
        template = {each["name"]: each["template"] for each in template}.get("default")
    return template


def _content(token: Any) -> str | None:
    """A token in the settings is its text, or an object that holds it."""
    return token.get("content") if isinstance(token, dict) else token


def _read(file: Path) -> dict[str, Any]:
    """A JSON object; an empty one where there is no such file."""
    return read_object(file) if file.is_file() else {}
