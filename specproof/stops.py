"""The `stop` regime: where a stop token can fall in a block, found by asking the oracle at temperature 0.

- Drafter = target (every proposal accepted), a stop token at every place of the first blocks: it is accepted, the
  last of a block, or the bonus, whether an engine's prefill emits a token or leaves the prompt's last one pending.
- Prompt lookup in a recital: the same, for a drafter without a model.
- Drafter = target without its argmax (every proposal rejected): a stop token among the target's tokens
  is a correction; a stop token that is only ever proposed is rejected, and must not stop anything.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from specproof import forcing
from specproof.engine import Case
from specproof.grid import BLOCK_SIZES, Grid, Setting
from specproof.oracle import oracle_of

Tokens = tuple[int, ...]
CANDIDATES = 40
"""Prompts tried for one whose greedy continuation does not repeat itself early."""


def stop_cases(grid: Grid) -> Iterator[Case]:
    """All cases of the regime."""
    prompt, answer = _unrepeating(grid, max(BLOCK_SIZES) + 3) if grid.has_draft_model else ((), ())
    for setting in grid.thinned():
        if setting.sampling.temperature > 0:
            yield from _sampled(grid, setting)
            continue
        if grid.has_draft_model:
            yield from _accepted(grid, setting, prompt, answer)
            yield from _rejected(grid, setting, prompt, answer[:6])
        if grid.has_lookup(setting):
            yield from _recited(grid, setting)


def _sampled(grid: Grid, setting: Setting) -> Iterator[Case]:
    """Above temperature 0 nothing can be placed; a third of the vocabulary stops."""
    stops = frozenset(range(0, grid.vocab_size, 3))
    label, prompt = grid.prompts(setting)[0]
    if grid.has_draft_model:
        yield grid.case("stop", setting, label, forcing.plain(grid.pair), prompt, 12, stop_tokens=stops)
    if grid.has_lookup(setting):
        models = replace(forcing.plain(grid.pair), draft=None)
        yield grid.case("stop", setting, "cycle", models, grid.recited_prompt, 12, stop_tokens=stops)


def _accepted(grid: Grid, setting: Setting, prompt: Tokens, answer: Tokens) -> Iterator[Case]:
    """A stop token at places of the first two blocks of a drafter that is always right."""
    k = setting.num_draft_tokens
    models = forcing.all_accept(grid.pair, setting.rule, setting.sampling)
    for place in sorted({0, k, k + 1} if grid.quick else {0, 1, k - 1, k, k + 1, k + 2}):
        if answer[place] not in answer[:place]:
            yield grid.case("stop", setting, f"accepted-at{place}", models, prompt, k + 6,
                            stop_tokens=frozenset({answer[place]}))  # fmt: skip


def _rejected(grid: Grid, setting: Setting, prompt: Tokens, answer: Tokens) -> Iterator[Case]:
    """A stop token as a correction, and one that is proposed but rejected."""
    models = forcing.all_reject(grid.pair, setting.sampling)
    for place in (2,) if grid.quick else (1, 2, 3):
        if answer[place] not in answer[:place]:
            yield grid.case("stop", setting, f"correction-at{place}", models, prompt, 6,
                            stop_tokens=frozenset({answer[place]}))  # fmt: skip
    assert models.draft is not None
    draft = oracle_of(models.draft)
    for place in (2,) if grid.quick else (1, 2, 3):
        (proposed,) = draft.greedy(prompt + answer[:place], 1)
        if proposed not in answer:
            yield grid.case("stop", setting, f"rejected-at{place}", models, prompt, 6,
                            stop_tokens=frozenset({proposed}))  # fmt: skip


def _recited(grid: Grid, setting: Setting) -> Iterator[Case]:
    """A stop token inside the first block of a prompt-lookup drafter that is always right."""
    if setting.sampling.has_penalties:  # they would end the recital
        return
    for place in (1,) if grid.quick else (1, 2):
        yield grid.case("stop", setting, f"recited-at{place}", forcing.lookup_accept(grid.pair), grid.recited_prompt,
                        setting.num_draft_tokens + 6, stop_tokens=frozenset({forcing.CYCLE[place]}))  # fmt: skip


def _unrepeating(grid: Grid, length: int) -> tuple[Tokens, Tokens]:
    """A prompt whose greedy continuation has the longest start without a repeated token, and that continuation."""
    target = oracle_of(grid.pair.target_spec())
    best: tuple[int, Tokens, Tokens] = (-1, (), ())
    for number in range(1, 3 * CANDIDATES, 3):  # prompts of the middle length
        prompt = grid.prompt(number)
        answer = target.greedy(prompt, length)
        fresh = next((i for i, token in enumerate(answer) if token in answer[:i]), length)
        if fresh > best[0]:
            best = (fresh, prompt, answer)
        if fresh == length:
            break
    return best[1], best[2]
