"""Regimes: the conditions that a decoder's bookkeeping is put under, each as a list of cases.

A regime is forced through the models alone (`specproof.forcing`), so every engine runs its own caches through
it. Case ids are made of regime, rule, k, sampling and prompt, and are the same for every engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from specproof import forcing
from specproof.engine import Capabilities, Case, Fault
from specproof.errors import UnknownRegime
from specproof.grid import VARIANT_BLOCK, Grid, Setting
from specproof.pairs import Pair
from specproof.stops import stop_cases

TOKENS = 8
"""Budget of a case that needs no particular one: several rounds for every k."""


@dataclass(frozen=True)
class Regime:
    """A condition to put a decoder under.

    Attributes:
        name: its key in `REGIMES`.
        statement: what it forces.
        needs: capabilities without which it cannot be run; then it has no cases.
        build: its cases for one grid.
    """

    name: str
    statement: str
    needs: tuple[str, ...]
    build: Callable[[Grid], Iterator[Case]]

    def runnable(self, capabilities: Capabilities) -> bool:
        """Whether the engine can be put under it."""
        return all(getattr(capabilities, need) for need in self.needs)

    def cases(self, pair: Pair, capabilities: Capabilities, seed: int, quick: bool) -> Iterator[Case]:
        """Its cases for an engine that declares `capabilities`; none where it cannot be run."""
        if self.runnable(capabilities):
            built = pair.built_as(capabilities.architecture)
            yield from self.build(Grid(built, capabilities, seed, quick))


def regime(name: str) -> Regime:
    """The regime of that name.

    Raises:
        UnknownRegime: there is none.
    """
    if name not in REGIMES:
        raise UnknownRegime(f"no regime is named {name!r}; give one of {', '.join(REGIMES)}")
    return REGIMES[name]


def _plain(grid: Grid) -> Iterator[Case]:
    for setting in grid.all():
        for label, prompt in grid.prompts(setting):
            if grid.has_draft_model:
                yield grid.case("plain", setting, label, forcing.plain(grid.pair), prompt, TOKENS)
        if grid.has_lookup(setting):
            models = replace(forcing.plain(grid.pair), draft=None)
            yield grid.case("plain", setting, "cycle", models, grid.recited_prompt, TOKENS)


def _all_reject(grid: Grid) -> Iterator[Case]:
    for setting in grid.all():
        for label, prompt in grid.prompts(setting) if grid.has_draft_model else []:
            models = forcing.all_reject(grid.pair, setting.sampling)
            max_tokens = max(setting.num_draft_tokens + 2, 5)  # the budget leaves room for one whole block
            yield grid.case("all_reject", setting, label, models, prompt, max_tokens)


def _mixed(grid: Grid) -> Iterator[Case]:
    for setting in grid.all():
        script = grid.script(setting.index)
        for label, prompt in grid.prompts(setting) if grid.has_draft_model else []:
            models = forcing.mixed(grid.pair, setting.rule, setting.sampling, script)
            yield grid.case("mixed", setting, label, models, prompt, TOKENS)
        if grid.has_lookup(setting):
            models = forcing.lookup_mixed(grid.pair, script)
            yield grid.case("mixed", setting, "cycle", models, grid.recited_prompt, TOKENS)


def _all_accept(grid: Grid) -> Iterator[Case]:
    for setting in grid.all():
        max_tokens = 2 * setting.num_draft_tokens + 3  # prefill and two whole rounds
        for label, prompt in grid.prompts(setting) if grid.has_draft_model else []:
            models = forcing.all_accept(grid.pair, setting.rule, setting.sampling)
            yield grid.case("all_accept", setting, label, models, prompt, max_tokens)
        if grid.has_lookup(setting) and not setting.sampling.has_penalties:  # a penalty would end the recital
            yield grid.case("all_accept", setting, "cycle", forcing.lookup_accept(grid.pair), grid.recited_prompt,
                            max_tokens)  # fmt: skip


def _empty(grid: Grid) -> Iterator[Case]:
    floor = 1.5 / grid.vocab_size
    for setting in grid.thinned():
        models = forcing.sometimes_empty(grid.pair, grid.script(setting.index))
        for label, prompt in grid.prompts(setting)[:1] if grid.has_draft_model else []:
            if grid.capabilities.min_prob:
                # At temperature 0 the drafter is always sure, so only a floor above 1 stops it.
                min_prob = floor if setting.sampling.temperature > 0 else 1.5
                yield grid.case("empty", setting, f"{label}/floor", models, prompt, TOKENS, min_prob=min_prob)
            none = replace(setting, num_draft_tokens=0)
            if setting.num_draft_tokens == VARIANT_BLOCK:
                yield grid.case("empty", none, label, forcing.plain(grid.pair), prompt, 4)
        if grid.has_lookup(setting):
            models = replace(forcing.plain(grid.pair), draft=None)
            yield grid.case("empty", setting, "p2", models, grid.prompt(2), TOKENS)


def _budget(grid: Grid) -> Iterator[Case]:
    for setting in grid.thinned():
        k = setting.num_draft_tokens
        if setting.sampling.temperature > 0 and k != VARIANT_BLOCK:
            continue
        budgets = {0, 1, k, k + 1} if grid.quick else {0, 1, 2, k, k + 1, k + 2, 2 * k + 2}
        for max_tokens in sorted(budgets):
            if grid.has_draft_model:
                models = forcing.all_accept(grid.pair, setting.rule, setting.sampling)
                prompt = grid.prompt(1 + setting.index % 2)
                yield grid.case("budget", setting, f"n{max_tokens}", models, prompt, max_tokens)
            if grid.has_lookup(setting) and max_tokens > k:
                yield grid.case("budget", setting, f"n{max_tokens}", forcing.lookup_accept(grid.pair),
                                grid.recited_prompt, max_tokens)  # fmt: skip


def _close(grid: Grid) -> Iterator[Case]:
    for setting in grid.thinned():
        k = setting.num_draft_tokens
        if setting.sampling.temperature > 0 and k != VARIANT_BLOCK:
            continue
        script = grid.script(setting.index)
        for count in range(1, k + 4):
            if grid.has_draft_model:
                models = forcing.mixed(grid.pair, setting.rule, setting.sampling, script)
                yield grid.case("close", setting, f"after{count}", models, grid.prompt(1), TOKENS, close_after=count)
            if grid.has_lookup(setting) and k == VARIANT_BLOCK:
                yield grid.case("close", setting, f"after{count}", forcing.lookup_accept(grid.pair),
                                grid.recited_prompt, TOKENS, close_after=count)  # fmt: skip


ABORT_SCRIPT = (True, True, False, True, True, True, False)
ABORT_STRIDE = 7
"""One setting has a fault at every forward. Each of the others has one in every phase of a round, and beyond that at
every seventh forward, beginning at a place of its own."""
PREFILL, FIRST_ROUND = 0, 1
"""The target's forwards of prefill and of the first verification. The drafter's first proposals begin at the latter."""


def _abort(grid: Grid) -> Iterator[Case]:
    warm = [] if grid.quick else [VARIANT_BLOCK]
    settings = [s for s in grid.thinned() if s.sampling.temperature == 0 or s.num_draft_tokens in warm]
    thorough = next(s.index for s in settings if s.num_draft_tokens == VARIANT_BLOCK)
    for setting in settings:
        first, stride = (0, 1) if setting.index == thorough else (setting.index % ABORT_STRIDE, ABORT_STRIDE)
        k, max_tokens = setting.num_draft_tokens, setting.num_draft_tokens + 3
        phases = {PREFILL, FIRST_ROUND}
        if grid.has_draft_model:
            models = forcing.mixed(grid.pair, setting.rule, setting.sampling, ABORT_SCRIPT)
            for fault in _faults(phases.union(range(first, max_tokens + 1, stride))):
                yield _abort_case(grid, setting, models, "target", fault, max_tokens)
            for fault in _faults(phases.union(range(first, 3 * k + 7, stride))):
                yield _abort_case(grid, setting, models, "draft", fault, max_tokens)
            # After a full acceptance the drafter's forward k + 1 is the one with its last proposal, on any schedule.
            accepted = forcing.all_accept(grid.pair, setting.rule, setting.sampling)
            for fault in _faults({k + 1}):
                yield _abort_case(grid, setting, accepted, "draft", fault, max_tokens, label="catch-up")
        if grid.has_lookup(setting):
            for fault in _faults(phases.union(range(first % 3, 4, 3 if stride > 1 else 1))):
                yield _abort_case(grid, setting, forcing.lookup_accept(grid.pair), "target", fault, max_tokens)


def _faults(calls: set[int]) -> Iterator[Fault]:
    for call in sorted(calls):
        yield Fault(call, "before")
        yield Fault(call, "after")


def _abort_case(grid: Grid, setting: Setting, models: forcing.Models, model: str, fault: Fault, max_tokens: int,
                label: str = "") -> Case:  # fmt: skip
    if model == "target":
        faulty = replace(models, target=replace(models.target, fault=fault))
    else:
        assert models.draft is not None
        faulty = replace(models, draft=replace(models.draft, fault=fault))
    prompt = grid.prompt(1) if models.draft else grid.recited_prompt
    return grid.case("abort", setting, f"{label or f'{model}{fault.call}'}-{fault.when}", faulty, prompt, max_tokens)


REGIMES: Mapping[str, Regime] = {
    found.name: found
    for found in (
        Regime("plain", "the pair as it is", (), _plain),
        Regime("all_reject", "no proposal is ever accepted", ("transforms",), _all_reject),
        Regime("mixed", "proposals are accepted or not by a script", ("transforms",), _mixed),
        Regime("all_accept", "every proposal is accepted", ("transforms",), _all_accept),
        Regime("empty", "rounds without proposals in between", ("transforms",), _empty),
        Regime("budget", "max_tokens falls inside a block", ("transforms",), _budget),
        Regime("stop", "a stop token as accepted, rejected, correction and bonus", ("transforms",), stop_cases),
        Regime("close", "the token stream is closed after every token", ("transforms", "early_close"), _close),
        Regime("abort", "a model raises, in every phase of a round", ("transforms", "faults"), _abort),
    )
}
"""Every regime, by name."""
