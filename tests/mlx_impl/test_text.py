"""Text up to a stop string: the same wherever tokens and blocks divide it, and caches that end where it does."""

import pytest

mx = pytest.importorskip("mlx.core", reason="mlx is not installed; pip install 'specproof[mlx]'")
pytest.importorskip("tokenizers", reason="tokenizers is not installed; pip install 'specproof[text]'")

from hypothesis import example, given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from mlx_decodes import PROMPT, assert_at_boundary, assert_cache_content, greedy, make, mixed, tokens_of  # noqa: E402
from mlx_toys import TOYS, Failing, toy  # noqa: E402

from mlx_impl import text as text_module  # noqa: E402
from mlx_impl.detokenizer import Detokenizer  # noqa: E402
from mlx_impl.text import TextReader, TextTurn  # noqa: E402
from mlx_impl.tokenizer import from_folder  # noqa: E402
from reference.errors import InvalidSetting  # noqa: E402
from reference.values import GeneratedToken  # noqa: E402

# ----------------------------------------------------------------------------------------------------- reading text


def cut(text, stops):
    """What of the text comes before the stop string that is complete first, and where that ends: by looking at all."""
    for end in range(1, len(text) + 1):
        lengths = [len(stop) for stop in stops if text[:end].endswith(stop)]
        if lengths:
            return text[: end - max(lengths)], end
    return text, None


def reader_of(chunks, stops) -> TextReader:
    """A reader of tokens that are these bytes, token by their place."""
    return TextReader(
        Detokenizer(lambda tokens: b"".join(chunks[token] for token in tokens).decode(errors="replace")), stops
    )


def read(chunks, stops):
    """(what is given out with each token that was read, and at the end; the stop string)."""
    reader, given_out = reader_of(chunks, stops), []
    for token in range(len(chunks)):
        if reader.stopped_by is None:
            reader.add(GeneratedToken(token, from_draft=token % 2 == 0, round_index=0))
            given_out.append("".join(piece.text for piece in reader.pieces))
    reader.finish()
    return [*given_out, "".join(piece.text for piece in reader.pieces)], reader.stopped_by


@st.composite
def divided(draw):
    """(a text, its bytes divided anywhere)."""
    text = draw(st.text("abé👍", max_size=12))
    whole = text.encode()
    places = sorted(draw(st.sets(st.integers(0, len(whole)), max_size=12)))
    return text, [whole[a:b] for a, b in zip([0, *places], [*places, len(whole)], strict=True) if a < b]


@example(("ba👍", [b"b", b"a\xf0", b"\x9f\x91\x8d"]), ["ba"])  # complete with a token that begins the next character
@example(("abcd", [b"abcd"]), ["abcd", "bc"])  # begins first, but another one is complete before it
@example(("abc", [b"abc"]), ["bc", "abc"])  # complete together
@example(("abab", [b"a", b"b", b"ab"]), ["bab"])  # begins anew while another beginning is withheld
@given(divided(), st.lists(st.text("abé👍", min_size=1, max_size=4), max_size=3))
def test_the_text_is_cut_before_the_stop_string_that_is_complete_first_however_tokens_divide_it(text_and_chunks, stops):
    text, chunks = text_and_chunks
    wanted, end = cut(text, stops)
    given_out, stopped_by = read(chunks, stops)
    assert given_out[-1] == wanted
    assert all(wanted.startswith(part) for part in given_out)
    assert not any(stop in given_out[-1] for stop in stops)
    if end is None:
        assert stopped_by is None
        return
    assert stopped_by == text[len(wanted) : end]
    lengths = [sum(map(len, chunks[:count])) for count in range(len(chunks) + 1)]
    needed = next(count for count, length in enumerate(lengths) if length >= len(text[:end].encode()))
    assert len(given_out) - 1 == needed, "no token is read that the stop string does not need"


def test_text_is_withheld_only_as_long_as_it_may_be_a_stop_string():
    given_out, _ = read([b"x", b"a", b"b", b"a", b"b", b"x"], ["abc"])
    assert given_out[:-1] == ["x", "x", "x", "xab", "xab", "xababx"]


def test_text_that_is_not_withheld_cannot_be_taken_back(monkeypatch):
    """The control: what the laws above say of a reader that withholds nothing."""
    monkeypatch.setattr(text_module, "longest_beginning", lambda text, stops: 0)
    given_out, stopped_by = read([b"x", b"a", b"b"], ["ab"])
    assert (given_out[-1], stopped_by) == ("xab", None)


def test_a_piece_comes_from_the_drafter_if_the_token_that_completed_it_does():
    reader = reader_of([b"a", b"b", b"\xc3", b"\xa9", b"c"], ["bx"])
    for token in range(5):
        reader.add(GeneratedToken(token, from_draft=token in (1, 3), round_index=0))
    assert [(piece.text, piece.from_draft) for piece in reader.pieces] == [
        ("a", False), ("b", True), ("é", True), ("c", False),
    ]  # fmt: skip


# ------------------------------------------------------------------------------------------------------ decoding it

COUNT = 12
TOKENIZER = from_folder(TOYS / "target")
MODELS = {"target": toy("target"), "draft": toy("target")}
FULL = greedy(toy("target"), PROMPT, COUNT)
TEXT = TOKENIZER.decode(FULL)


def turn(stops=(), target=None, max_tokens=COUNT, draft=None):
    """(decoder, state, the text of the turn), with blocks of four that are accepted in full or in part."""
    decoder, drafter = make("greedy", 4, target, mixed() if draft is None else draft)
    state = decoder.prefill(PROMPT, drafter, max_tokens)
    return decoder, state, TextTurn(decoder, state, TOKENIZER, stops)


def joined(pieces) -> str:
    return "".join(piece.text for piece in pieces)


def stop_at(count, before):
    """A stop string that is complete with this many tokens, and begins `before` characters before the last of them."""
    return TEXT[len(TOKENIZER.decode(FULL[: count - 1])) - before : len(TOKENIZER.decode(FULL[:count]))]


def test_without_a_stop_string_the_text_is_that_of_all_tokens():
    _, state, text = turn()
    pieces = list(text)
    assert joined(pieces) == TEXT
    assert [piece.from_draft for piece in pieces] == [item.from_draft for item in state.tokens]
    assert {piece.from_draft for piece in pieces} == {True, False}
    assert (state.emitted, text.stopped_by) == (FULL, None)


@pytest.mark.parametrize("count", range(2, COUNT))
def test_a_stop_string_at_any_token_of_a_block_ends_the_history_with_that_token(count):
    stop = stop_at(count, len(TOKENIZER.decode(FULL[: count - 1])) - 1)  # so long that it cannot come before
    decoder, state, text = turn(["no such text", stop], max_tokens=-1)
    assert joined(text) == TEXT[:1] == cut(TEXT, [stop])[0]
    assert (text.stopped_by, state.emitted, state.finish) == (stop, FULL[:count], None)
    assert_at_boundary(state)
    assert_cache_content(state, MODELS)
    following = decoder.extend(state, [], COUNT - count)
    assert tuple(tokens_of(decoder.generate(following))) == FULL[count:]


@pytest.mark.parametrize("count", range(2, COUNT))
def test_a_stop_string_across_two_tokens_cuts_the_text_before_it(count):
    stop = stop_at(count, 1)
    wanted, end = cut(TEXT, [stop])
    _, state, text = turn([stop])
    assert joined(text) == wanted
    assert len(TOKENIZER.decode(state.emitted[:-1])) < end <= len(TOKENIZER.decode(state.emitted))
    assert_at_boundary(state)


def test_the_tokens_of_a_block_behind_a_stop_string_are_taken_back():
    """What makes the tests above say something: the block went on behind the stop string."""
    decoder, state, text = turn([stop_at(3, 1)], draft=toy("target"))
    decoder.step(state)
    assert state.emitted == FULL[:6]
    list(text)
    assert state.emitted == FULL[:3]


def test_history_and_caches_end_at_a_stop_string_before_the_last_piece_is_handed_out():
    _, state, text = turn([stop_at(3, -1)], draft=toy("target"))
    *_, (last, emitted) = ((piece.text, state.emitted) for piece in text)
    assert last == " ", "the token of the stop string begins with text"
    assert emitted == FULL[:3]


def test_a_text_that_ended_stays_ended():
    _, state, text = turn([stop_at(5, 4)])
    assert joined(text)
    history = list(state.history)
    assert list(text) == []
    assert state.history == history


@pytest.mark.parametrize("stops", [(), (stop_at(9, 3),)], ids=["no stop", "a stop"])
def test_closing_after_any_piece_loses_nothing(stops):
    wanted = cut(TEXT, stops)[0]
    for count in (0, 1, 2, 4, 5):
        _, state, text = turn(stops)
        iterator = iter(text)
        received = [next(iterator) for _ in range(count)]
        iterator.close()
        assert_at_boundary(state)
        assert joined([*received, *text]) == wanted
        assert_at_boundary(state)


@pytest.mark.parametrize(
    ("failing", "call"), [("target", 1), ("target", 2), ("draft", 1), ("draft", 2), ("draft", 3), ("draft", 4)]
)
def test_an_interrupt_in_any_forward_loses_no_text(failing, call):
    models = {"target": toy("target"), "draft": mixed()}
    models[failing] = Failing(models[failing], call, "half-way", KeyboardInterrupt())
    stop = stop_at(9, 3)
    _, state, text = turn([stop], **models)
    received = []
    with pytest.raises(KeyboardInterrupt):
        received.extend(text)
    assert_at_boundary(state)
    assert joined([*received, *text]) == cut(TEXT, [stop])[0]
    assert_at_boundary(state)


def test_an_interrupt_while_a_token_is_read_loses_no_text(monkeypatch):
    """The token is delivered then, and its text is not."""
    add, calls = Detokenizer.add, []

    def failing(self, token):
        calls.append(token)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return add(self, token)

    monkeypatch.setattr(Detokenizer, "add", failing)
    _, state, text = turn()
    received = []
    with pytest.raises(KeyboardInterrupt):
        received.extend(text)
    assert_at_boundary(state)
    assert len(received) == 3 < len(state.emitted)
    assert joined([*received, *text]) == TEXT


def test_an_empty_stop_string_is_refused():
    with pytest.raises(InvalidSetting, match=r"a stop string is empty, .*; leave it out"):
        turn(["x", ""])
