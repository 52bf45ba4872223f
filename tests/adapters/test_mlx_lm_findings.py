"""What `mlx_lm.generate.speculative_generate_step` gets wrong, each reproduced with `mlx_lm` and `mlx` alone.

Nothing of this project is imported: a finding that needs our adapter would be our adapter's. Measured on mlx-lm
0.32.2. A test here that fails on a later version is good news: the defect is gone, and the test goes with it.

P is the prompt's length, E the number of tokens handed out; where the last token is pending, a cache in step holds
P + E - 1 rows. `distance` is what target and drafter hold beyond that.
"""

from __future__ import annotations

from contextlib import suppress

import pytest

pytest.importorskip("mlx_lm", reason="needs the extra mlx-lm")

import mlx.core as mx
from mlx_lm.generate import generate_step, speculative_generate_step
from mlx_lm.models.cache import KVCache, RotatingKVCache, make_prompt_cache
from mlx_lm_alone import PROMPT, greedy, load

LENGTHS = range(1, 9)


class ModelError(Exception):
    """Raised on purpose by `Altered`."""


class Altered:
    """A model that raises at one of its forwards, or is kept from ever choosing what it would choose."""

    def __init__(self, inner, fail_at=None, after=False, contrary=False):
        self.inner, self.layers = inner, inner.layers
        self.fail_at, self.after, self.contrary = fail_at, after, contrary
        self.calls = 0

    def __call__(self, inputs, cache):
        call, self.calls = self.calls, self.calls + 1
        if call == self.fail_at and not self.after:
            raise ModelError
        logits = self.inner(inputs, cache=cache)
        if call == self.fail_at:
            raise ModelError
        if self.contrary:
            best = mx.argmax(logits, axis=-1, keepdims=True)
            return mx.put_along_axis(logits, best, mx.array(-1e9), axis=-1)
        return logits


@pytest.fixture(scope="module")
def target():
    return load("target")


@pytest.fixture(scope="module")
def drafter():
    return load("draft")


def fresh(target, drafter):
    """One prompt cache for both, as the package takes it."""
    return make_prompt_cache(target) + make_prompt_cache(drafter)


def run(target, drafter, cache, k=3, max_tokens=100, close_after=None, prompt=PROMPT):
    """A turn, closed after some tokens or left to its end: [(token, from_draft)]; what it raises is swallowed."""
    produced = speculative_generate_step(
        mx.array(prompt), target, drafter, num_draft_tokens=k, max_tokens=max_tokens, prompt_cache=cache
    )
    handed_out = []
    with suppress(ModelError):
        for token, _, from_draft in produced:
            handed_out.append((token, from_draft))
            if len(handed_out) == close_after:
                break
    produced.close()
    return handed_out


def distance(cache, handed_out):
    """(target's rows, drafter's rows) - (P + E - 1)."""
    committed = len(PROMPT) + len(handed_out) - 1
    return cache[0].offset - committed, cache[-1].offset - committed


# ------------------------------------------------------------------------------- where the caches are left (D52)


def kind_of_last(handed_out, k, remaining):
    """What the last token was; `remaining` is the budget at its end."""
    in_round = 0
    for _, from_draft in handed_out[:-1]:
        in_round = in_round + 1 if from_draft else 0
    drafted = min(k, remaining + in_round + 1)  # a round drafts no more than the budget that is left at its start
    if not handed_out[-1][1]:
        return "bonus" if in_round == drafted else "correction"
    return "last proposal" if in_round + 1 == drafted else "earlier proposal"


DISTANCES = {"correction": (0, 0), "bonus": (0, -1), "last proposal": (1, 0), "earlier proposal": (1, 1)}


@pytest.mark.parametrize("end", ["budget", "close"])
@pytest.mark.parametrize("k", [1, 2, 4])
@pytest.mark.parametrize("pair", ["draft", "same"])
def test_d52_the_rows_left_behind_depend_on_what_the_last_token_was(target, drafter, pair, k, end):
    """No public thread found. A caller sees tokens, not rounds, so no convention tells it what the caches hold."""
    drafter = target if pair == "same" else drafter
    seen = {}
    for count in LENGTHS:
        budget, close_after = (count, None) if end == "budget" else (100, count)
        cache = fresh(target, drafter)
        handed_out = run(target, drafter, cache, k, budget, close_after)
        seen.setdefault(kind_of_last(handed_out, k, budget - count), set()).add(distance(cache, handed_out))
    assert seen == {kind: {DISTANCES[kind]} for kind in seen}
    assert len(seen) > 1


def test_the_plain_path_always_leaves_one_row_more_than_committed(target):
    """The control: `generate_step` has one convention, P + E, after every kind of end."""
    for count in LENGTHS:
        for close in (False, True):
            cache = make_prompt_cache(target)
            tokens = generate_step(mx.array(PROMPT), target, max_tokens=100 if close else count, prompt_cache=cache)
            handed_out = [next(tokens) for _ in range(count)] if close else list(tokens)
            tokens.close()
            assert cache[0].offset == len(PROMPT) + len(handed_out)


@pytest.mark.parametrize("convention", [0, 1])
def test_d52_under_either_convention_some_second_turns_differ_from_a_fresh_run(target, convention):
    """No public thread found. The user holds the caches to have P + E - 1 + convention rows, and feeds the rest.

    1 is the convention of the plain path, and of `mlx_lm.server`, which stores such caches under the tokens P + E.
    """
    added = [4, 6]
    right, wrong = set(), set()
    for count in LENGTHS:
        cache = fresh(target, target)
        tokens = [token for token, _ in run(target, target, cache, 3, count)]
        rows = cache[0].offset - (len(PROMPT) + count - 1)
        history = PROMPT + tokens + added
        second = run(target, target, cache, 3, 4, prompt=history[len(PROMPT) + count - 1 + convention :])
        same = [token for token, _ in second] == greedy(target, history, 4)
        (right if same else wrong).add(rows)
    assert convention in right
    assert wrong == {1 - convention}


def test_the_plain_path_goes_on_as_a_fresh_run_does(target):
    """The control: the second turn of `generate_step`, under its own convention, after every length."""
    for count in LENGTHS:
        cache = make_prompt_cache(target)
        tokens = [token for token, _ in generate_step(mx.array(PROMPT), target, max_tokens=count, prompt_cache=cache)]
        second = generate_step(mx.array([4, 6]), target, max_tokens=4, prompt_cache=cache)
        assert [token for token, _ in second] == greedy(target, PROMPT + tokens + [4, 6], 4)


# -------------------------------------------------------------------------------------------- exceptions (D51)


def test_d51_a_drafter_that_raises_makes_the_clean_up_trim_the_last_round_again(target):
    """https://github.com/ml-explore/mlx-lm/pull/1528. Target left at P + E - 4 where P + E - 1 is right, for k = 3."""
    failing = Altered(target, fail_at=4, contrary=True)  # prefill, three proposals of round 0, then round 1
    cache = fresh(target, target)
    handed_out = run(target, failing, cache)
    assert [from_draft for _, from_draft in handed_out] == [False]
    assert distance(cache, handed_out) == (-3, -2)


@pytest.mark.parametrize(("max_tokens", "distances"), [(6, (3, -1)), (7, (2, -1)), (8, (1, -1)), (9, (0, -1))])
def test_d51_a_shorter_last_round_makes_the_clean_up_trim_a_negative_number(target, max_tokens, distances):
    """https://github.com/ml-explore/mlx-lm/pull/1528. Round 0 accepts 4 of 4; round 1 drafts fewer, and is cut short.

    `KVCache.trim(-3)` moves the offset *up*: the target's cache then counts rows that were never committed.
    """
    failing = Altered(target, fail_at=5)
    cache = fresh(target, target)
    handed_out = run(target, failing, cache, 4, max_tokens)
    assert len(handed_out) == 5
    assert distance(cache, handed_out) == distances


@pytest.mark.parametrize(("after", "distances"), [(False, (0, 3)), (True, (4, 3))])
def test_d51_a_verify_pass_that_raises_leaves_the_proposals_in_the_caches(target, after, distances):
    """https://github.com/ml-explore/mlx-lm/pull/1528. The clean-up takes them for accepted, as in round 0."""
    failing = Altered(target, fail_at=2, after=after)  # prefill, round 0, round 1
    cache = fresh(target, target)
    handed_out = run(failing, target, cache)
    assert [from_draft for _, from_draft in handed_out] == [True, True, True, False]
    assert distance(cache, handed_out) == distances


def test_an_exception_in_prefill_leaves_the_caches_as_they_are(target, drafter):
    """No public thread found. There is no clean-up yet: the drafter has its prompt, the target has not."""
    cache = fresh(target, drafter)
    assert run(Altered(target, fail_at=0), drafter, cache) == []
    assert (cache[0].offset, cache[-1].offset) == (0, len(PROMPT) - 1)


def test_d70_unlimited_generation_fails_at_the_first_token(target, drafter):
    """No public thread found. By its docstring -1 gives an infinite generator; it becomes a negative draft count."""
    produced = speculative_generate_step(mx.array(PROMPT), target, drafter, max_tokens=-1)
    with pytest.raises(ValueError, match="No arrays provided for concatenation"):
        next(produced)
    plain = generate_step(mx.array(PROMPT), target, max_tokens=-1)
    assert [next(plain)[0] for _ in range(3)] == greedy(target, PROMPT, 3)


def test_a_budget_of_nothing_still_forwards_the_pending_token(target, drafter):
    """No public thread found. `stream_generate` refuses max_tokens = 0; this one takes it, and commits a row."""
    cache = fresh(target, drafter)
    assert run(target, drafter, cache, max_tokens=0) == []
    assert distance(cache, []) == (1, 0)


def test_without_proposals_the_drafter_is_never_fed_again(target, drafter):
    """No public thread found. `mlx_lm.server` allows num_draft_tokens = 0; the cache keeps the prompt's rows only."""
    cache = fresh(target, drafter)
    handed_out = run(target, drafter, cache, k=0, max_tokens=5)
    assert distance(cache, handed_out) == (0, -5)


def test_d08_a_full_rotating_drafter_cache_is_never_rolled_back(target, drafter):
    """https://github.com/ml-explore/mlx-lm/pull/1109 checks the target only. The output stays right."""
    cache = [KVCache() for _ in target.layers] + [RotatingKVCache(max_size=16) for _ in drafter.layers]
    handed_out = run(target, drafter, cache, max_tokens=24)
    assert [token for token, _ in handed_out] == greedy(target, PROMPT, 24)
    assert distance(cache, handed_out)[1] > 10


def test_d13_a_target_cache_that_fills_up_is_not_rolled_back_any_more(target, drafter):
    """https://github.com/ml-explore/mlx-lm/issues/1423. Trimmability is asked for once, before the window is full."""
    cache = [RotatingKVCache(max_size=16) for _ in target.layers] + [KVCache() for _ in drafter.layers]
    handed_out = run(target, drafter, cache, max_tokens=40)
    assert distance(cache, handed_out)[0] > 30
