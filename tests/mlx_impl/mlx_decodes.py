"""Decodes for the tests of `mlx_impl`: how one is set up and run, and what must hold at its round boundaries."""

import functools
from collections.abc import Sequence

import mlx.core as mx
from mlx_toys import SAMPLINGS, Scripted, toy

from mlx_impl import AdaptiveLength, Decoder, DraftModel, KeyedRandomness, KVCache, PromptLookup


def make(rule="greedy", k=3, target=None, draft=None, sampling=None, seed=0, **settings):
    """A decoder and a draft model for it: (decoder, drafter). `settings` are the decoder's."""
    sampling = SAMPLINGS[rule] if sampling is None else sampling
    randomness = KeyedRandomness(seed)
    target = toy("target") if target is None else target
    decoder = Decoder(target, rule=rule, sampling=sampling, randomness=randomness, num_draft_tokens=k, **settings)
    draw = randomness.coupled_categorical if rule == "coupled" else None
    return decoder, DraftModel(toy("draft") if draft is None else draft, sampling, randomness, draw=draw)


def lookup() -> PromptLookup:
    return PromptLookup(32, max_ngram=2)


def run(decoder, drafter, prompt, max_tokens) -> tuple[int, ...]:
    """All tokens of one turn."""
    return tuple(item.token for item in decoder.generate(decoder.prefill(prompt, drafter, max_tokens)))


def tokens_of(iterator) -> list[int]:
    return [item.token for item in iterator]


def rounds(decoder, state) -> list:
    """All rounds of the rest of a turn, the offsets checked at every boundary."""
    assert_at_boundary(state, "after prefill")
    done = []
    while state.finish is None:
        done.append(decoder.step(state))
        may_lag = isinstance(decoder.draft_length, AdaptiveLength) and not done[-1].drafted and state.finish is None
        assert_at_boundary(state, f"after round {len(done)}", may_lag=may_lag)
    return done


def greedy(model, prompt: Sequence[int], count: int) -> tuple[int, ...]:
    """Cache-free greedy decoding, one whole pass per token."""
    history = list(prompt)
    for _ in range(count):
        logits = model(mx.array([history]), cache=model.make_cache())[0, -1]
        history.append(int(mx.argmax(logits)))
    return tuple(history[len(prompt) :])


def warm(model, tokens):
    """A cache that holds the rows of these tokens."""
    cache = model.make_cache()
    model(mx.array([tokens]), cache=cache)
    return cache


def caches(state) -> dict[str, list[KVCache]]:
    """The caches of a state, by the model's name."""
    held = {"target": state.target_cache, "draft": state.drafter.cache}
    return {name: cache for name, cache in held.items() if cache is not None}


def assert_at_boundary(state, where: str = "", *, may_lag: bool = False) -> None:
    """Every layer of both caches holds P + E - 1 rows; in a pause the drafter's may hold fewer."""
    expected = state.prompt_length + len(state.emitted) - 1
    assert expected == len(state.history) - 1
    found = {name: [layer.offset for layer in cache] for name, cache in caches(state).items()}
    right = {"target": {expected}, "draft": set(range(expected + 1)) if may_lag else {expected}}
    assert all(offset in right[name] for name, rows in found.items() for offset in rows), (
        f"caches hold {found}, expected {expected} = prompt {state.prompt_length} + emitted {len(state.emitted)} - 1 "
        f"{where}"
    )


def assert_cache_content(state, models: dict[str, object], tolerance: float = 1e-4) -> None:
    """Every row equals the one that a fresh prefill of the committed tokens gives."""
    committed = mx.array([state.history[:-1]], dtype=mx.uint32)
    for name, held in caches(state).items():
        fresh = models[name].make_cache()
        if committed.size:
            models[name](committed, cache=fresh)
        for index, (layer, wanted) in enumerate(zip(held, fresh, strict=True)):
            for part, one, other in zip(("keys", "values"), layer.state[:2], wanted.state[:2], strict=True):
                if one is None and other is None:
                    continue
                difference = float(mx.max(mx.abs(one - other))) if one.size else 0.0
                assert difference <= tolerance, f"{name} layer {index}: {part} differ by {difference}"


# A decode with accepted, rejected and fully accepted blocks, for the tests of exits and of next turns.
PROMPT = [3, 1, 4]
COUNT = 8


def mixed():
    """Its drafter."""
    return Scripted(toy("target"), [True, True, False, True, True, True, True, False])


@functools.cache
def uninterrupted() -> tuple[int, ...]:
    """Its output."""
    return greedy(toy("target"), PROMPT, COUNT)
