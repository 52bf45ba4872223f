"""From a stream of tokens to a stream of text, cut only where the text is complete.

A token may end inside a character: an emoji is four bytes, and often as many tokens. Text that was given out is never
taken back, so that a stop string can be looked for in it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

INCOMPLETE = "\N{REPLACEMENT CHARACTER}"
"""What decoding makes of bytes that are not, or not yet, a character."""


class Detokenizer:
    """The pieces that it returns, put together, are what decoding all tokens at once gives.

    (Not so where a tokenizer spells *invalid* UTF-8 with byte tokens: such a run is decoded as a whole, and bytes that
    come later may change what the ones before them meant.)

    Args:
        decode: token ids -> text.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode
        self._shown: list[int] = []  # tokens whose text was given out last: how a token reads may depend on them
        self._held: list[int] = []  # tokens whose text was not

    def add(self, token: int) -> str:
        """The text that is complete with this token; empty where a character is still being spelled."""
        self._held.append(token)
        text = self._text()
        if not text or text.endswith(INCOMPLETE):
            return ""
        self._shown, self._held = self._held, []
        return text

    def pending(self) -> str:
        """What is held back before the character that is still being spelled. It is still held back."""
        return self._text().rstrip(INCOMPLETE) if self._held else ""

    def finish(self) -> str:
        """What was held back, complete or not. The next token begins a new text."""
        text = self._text()
        self._shown, self._held = [], []
        return text

    def _text(self) -> str:
        """What the tokens held add to those shown."""
        return self._decode([*self._shown, *self._held])[len(self._decode(self._shown)) :]
