"""What a call of `specproof generate` asks for, checked as far as it can be without a model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from reference.errors import InvalidSetting
from reference.values import SamplingParams

DEFAULT_K = 4


@dataclass(frozen=True)
class CacheSettings:
    """What the caches of target and drafter keep.

    Attributes:
        max_kv_size: rows of a layer, the first four among them; None: all.
        kv_bits: those of a number in a quantised row; None: rows are not quantised.
        kv_group_size: numbers that are quantised together.
        quantized_kv_start: tokens from which on a cache is quantised.
    """

    max_kv_size: int | None = None
    kv_bits: int | None = None
    kv_group_size: int = 64
    quantized_kv_start: int = 0


@dataclass(frozen=True)
class Settings:
    """One generation.

    Attributes:
        model: folder, GGUF file, or `smollm2`.
        draft: the same for the draft model; None: without one.
        lookup: draft by prompt lookup; where there is a draft model, too, it is asked where the lookup finds nothing.
        rule: acceptance rule; None: the decoder's choice.
        k: most proposals in a round; None: chosen from round to round.
        sampling: of target and drafter.
        min_prob: the draft model ends its block where its most probable token has less.
        caches: of target and drafter.
        seed: of all random choices.
        max_tokens: -1 for no limit.
        prompt: as text.
        chat: put the prompt through the chat template; None: where there is one.
        stop_strings: each ends the text.
        float32: compute in float32, whatever the models are stored in.
    """

    model: str
    draft: str | None
    lookup: bool
    rule: str | None
    k: int | None
    sampling: SamplingParams
    min_prob: float
    caches: CacheSettings
    seed: int
    max_tokens: int
    prompt: str
    chat: bool | None
    stop_strings: tuple[str, ...]
    float32: bool

    @property
    def drafts(self) -> bool:
        """Whether there is a drafter."""
        return self.lookup or self.draft is not None


def cache_settings(
    max_kv_size: int | None, kv_bits: int | None, kv_group_size: int | None, quantized_kv_start: int | None
) -> CacheSettings:
    """What the options of that name ask for.

    Raises:
        InvalidSetting: options that do not go together.
    """
    if kv_bits is not None and max_kv_size is not None:
        raise InvalidSetting("--kv-bits and --max-kv-size are both given; a cache is quantised or bounded: give one")
    of_quantising = {"kv_group_size": kv_group_size, "quantized_kv_start": quantized_kv_start}
    given = {name: value for name, value in of_quantising.items() if value is not None}
    for name, value in given.items():
        if kv_bits is None:
            option = name.replace("_", "-")
            raise InvalidSetting(f"--{option} is {value}, and nothing is quantised; give --kv-bits, too")
    return CacheSettings(max_kv_size, kv_bits, **given)


def number_of_proposals(given: str | None, drafts: bool) -> int | None:
    """What `--k` means: a number, or None for `auto`.

    Raises:
        InvalidSetting: it is neither, or there is no drafter.
    """
    if given is not None and not drafts:
        raise InvalidSetting(f"--k is {given}, and nothing drafts; give --draft or --lookup, or leave --k out")
    if given == "auto":
        return None
    if given is not None and not given.isdecimal():
        raise InvalidSetting(f"--k is {given!r}; give an integer >= 0, or auto")
    return DEFAULT_K if given is None else int(given)


def read_prompt(text: str | None, file: Path | None, standard_input: BinaryIO) -> str:
    """The prompt: what is given, or standard input. The newline that ends a file is not part of it.

    Raises:
        InvalidSetting: two sources, or one that cannot be read as UTF-8.
    """
    if text is not None and file is not None:
        raise InvalidSetting("both --prompt and --prompt-file are given; give one")
    if text is not None:
        return text
    try:
        content = standard_input.read() if file is None else file.read_bytes()
        return content.decode("utf-8").removesuffix("\n")
    except (OSError, UnicodeDecodeError) as error:
        source = "standard input" if file is None else str(file)
        raise InvalidSetting(f"cannot read the prompt from {source} ({error}); give a text in UTF-8") from error
