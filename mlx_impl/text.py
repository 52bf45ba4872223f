"""A turn as text: pieces as they are accepted, up to a stop string, which may begin in one token and end in another.

A thin layer above `Decoder.generate`. Text that could be the beginning of a stop string is withheld until it is one,
or can be none. Where the text is cut depends on the text alone, never on how tokens or blocks divide it: at the stop
string that is complete first (the longest, where two are complete with the same character).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass

from mlx_impl.decoder import Decoder
from mlx_impl.detokenizer import Detokenizer
from mlx_impl.state import DecoderState
from mlx_impl.tokenizer import Tokenizer
from reference.errors import InvalidSetting
from reference.values import GeneratedToken


@dataclass(frozen=True)
class TextPiece:
    """Some characters of the text, which all became complete with one token.

    Attributes:
        text: not empty.
        from_draft: whether that token was proposed by the drafter and accepted.
    """

    text: str
    from_draft: bool


class TextReader:
    """Tokens in, pieces of text out, until a stop string.

    Args:
        detokenizer: a fresh one.
        stop_strings: none of them empty.

    Attributes:
        pieces: what is given out so far. Without what is withheld, and never any of a stop string.
        stopped_by: the stop string that ended the text; None while there is none.
    """

    def __init__(self, detokenizer: Detokenizer, stop_strings: Sequence[str] = ()) -> None:
        self.pieces: list[TextPiece] = []
        self.stopped_by: str | None = None
        self._detokenizer = detokenizer
        self._stop_strings = tuple(stop_strings)
        self._withheld: list[TextPiece] = []
        self._from_draft = False  # where the last token came from

    def add(self, item: GeneratedToken) -> None:
        """One more token of the text. Not to be called behind a stop string."""
        self._from_draft = item.from_draft
        self._withhold(self._detokenizer.add(item.token))
        # A token may hold a whole character and the first byte of the next one: a stop string that ends there is over.
        pending = self._detokenizer.pending()
        text = self._text()
        hit = first_stop(text + pending, self._stop_strings)
        if hit is None:
            self._give_out(len(text) - longest_beginning(text, self._stop_strings))
            return
        start, self.stopped_by = hit
        self._withhold(pending)
        self._give_out(start)
        self._withheld = []

    def finish(self) -> None:
        """No token follows: what was withheld is text, complete or not. Unless a stop string has ended the text."""
        if self.stopped_by is None:
            self._withhold(self._detokenizer.finish())
            self._give_out(len(self._text()))

    def _text(self) -> str:
        return "".join(piece.text for piece in self._withheld)

    def _withhold(self, text: str) -> None:
        if text:
            self._withheld.append(TextPiece(text, self._from_draft))

    def _give_out(self, length: int) -> None:
        """The first `length` characters of what is withheld, in the pieces that they came in."""
        while length > 0:
            piece = self._withheld.pop(0)
            self.pieces.append(TextPiece(piece.text[:length], piece.from_draft))
            if rest := piece.text[length:]:
                self._withheld.insert(0, TextPiece(rest, piece.from_draft))
            length -= len(piece.text)


class TextTurn:
    """The text of one turn. Iterate over it; again, after a `close()` or an exception, and it goes on from there.

    A stop string ends it with the token that completes the string: the decoder's iterator is closed there, so that
    the token is the last one of the history, however many more its block had, and the caches are at that boundary.
    `Decoder.extend` goes on from it as from any other end. (`state.finish` is None then, unless the turn was over.)

    Stop tokens are the decoder's, and have no text here, like all special tokens.

    Args:
        decoder: made the state.
        state: of a turn; tokens that were delivered before, by whatever iterator, belong to the text.
        tokenizer: the target's.
        stop_strings: each ends the text, and is left out of it.

    Attributes:
        delivered: how many pieces were handed out.
        stopped_by: the stop string that ended the text; None while there is none.

    Raises:
        InvalidSetting: a stop string is empty.
    """

    def __init__(
        self, decoder: Decoder, state: DecoderState, tokenizer: Tokenizer, stop_strings: Sequence[str] = ()
    ) -> None:
        if "" in stop_strings:
            raise InvalidSetting("a stop string is empty, and would end every text before it begins; leave it out")
        self.decoder, self.state, self.tokenizer = decoder, state, tokenizer
        self.stop_strings = tuple(stop_strings)
        self.stopped_by: str | None = None
        self.delivered = 0

    def __iter__(self) -> Iterator[TextPiece]:
        """Decode on, and hand out pieces.

        Raises:
            As `Decoder.generate`, at a boundary; no text is lost.
        """
        # What was read before an interruption is read again: half a character or stop string is nowhere remembered.
        reader = TextReader(self.tokenizer.detokenizer(), self.stop_strings)
        for item in self.state.tokens[: self.state.delivered]:
            if reader.stopped_by is None:
                reader.add(item)
        with closing(self.decoder.generate(self.state)) as tokens:
            yield from self._new(reader)
            for item in () if reader.stopped_by else tokens:
                reader.add(item)
                if reader.stopped_by:
                    break
                yield from self._new(reader)
        self.stopped_by = reader.stopped_by
        reader.finish()
        yield from self._new(reader)

    def _new(self, reader: TextReader) -> Iterator[TextPiece]:
        """The pieces that were not handed out yet."""
        while self.delivered < len(reader.pieces):
            self.delivered += 1
            yield reader.pieces[self.delivered - 1]


def first_stop(text: str, stop_strings: Sequence[str]) -> tuple[int, str] | None:
    """Where the stop string begins that is complete first in this text, and which it is; None: none is."""
    found = [(start + len(stop), start, stop) for stop in stop_strings if (start := text.find(stop)) >= 0]
    return min(found)[1:] if found else None


def longest_beginning(text: str, stop_strings: Sequence[str]) -> int:
    """How many characters at the end of the text may be the beginning of a stop string."""
    lengths = [n for stop in stop_strings for n in range(1, len(stop)) if text.endswith(stop[:n])]
    return max(lengths, default=0)
