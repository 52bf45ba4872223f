"""A real model: SmolLM2 writes what plain decoding writes, whatever rule judges what a lookup proposes."""

import pytest

mx = pytest.importorskip("mlx.core", reason="mlx is not installed; pip install 'specproof[mlx]'")

from dataclasses import replace  # noqa: E402

from mlx_decodes import assert_at_boundary  # noqa: E402
from mlx_toys import GREEDY  # noqa: E402

from mlx_impl import RULES, Decoder, KeyedRandomness, PromptLookup  # noqa: E402

TEXT = "1: red fox, 2: red fox, 3:"
K = 4
NOISE = 1e-3
"""Of logits: a token this little below the best is as good, as sums are of another order in other blocks."""


@pytest.fixture(scope="module")
def begun(smollm2):
    """A state behind the prompt. The lookup proposes what followed the last ":", which is right up to the number."""
    state = decoder(smollm2, "greedy").prefill(smollm2.tokenizer.encode(TEXT), PromptLookup(49152), 2 * K)
    assert_at_boundary(state)
    return state


@pytest.fixture(scope="module")
def plain(smollm2, begun):
    """The same state, as many tokens later as a round may accept."""
    state = begun.copy()
    for _ in range(K):
        decoder(smollm2, "greedy", 0).step(state)
    return state


def decoder(smollm2, rule, k=K):
    return Decoder(smollm2.model, rule=rule, sampling=GREEDY, randomness=KeyedRandomness(0), num_draft_tokens=k)


def a_round_later(decoder, begun):
    state = begun.copy()
    decoder.step(state)
    assert_at_boundary(state)
    return state


def assert_is_plain(smollm2, state, plain, begun):
    """As far as both go, the text is that of plain decoding, or its first other token ties with the best there."""
    pairs = zip(state.emitted, plain.emitted, strict=False)
    index = next((index for index, (one, other) in enumerate(pairs) if one != other), None)
    if index is not None:
        before = mx.array([state.emitted[:index]])
        logits = smollm2.model(before, cache=begun.target_cache.copy().layers)[0, -1]  # [V]
        short = float(mx.max(logits) - logits[state.emitted[index]])
        text = smollm2.tokenizer.decode(list(state.emitted))
        assert short <= NOISE, f"token {index} of {text!r} is {short:.3g} below the best"


@pytest.mark.parametrize("rule", RULES)
def test_at_temperature_0_every_rule_writes_what_plain_decoding_writes(smollm2, begun, plain, rule):
    state = a_round_later(decoder(smollm2, rule), begun)
    assert 0 < state.statistics.accepted < state.statistics.drafted
    assert_is_plain(smollm2, state, plain, begun)


def test_a_rule_that_accepts_everything_is_seen(smollm2, begun, plain):
    """The control."""
    wrong = decoder(smollm2, "greedy")
    accepts_all = lambda p, q, drafted, *_: (mx.array(len(drafted)), mx.argmax(p[-1]))  # noqa: E731
    wrong.rule = replace(wrong.rule, decide=accepts_all)
    with pytest.raises(AssertionError, match="below the best"):
        assert_is_plain(smollm2, a_round_later(wrong, begun), plain, begun)
