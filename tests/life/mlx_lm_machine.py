"""A life of `mlx_lm`, as far as it can be driven: turns on the caches that turns left, and what a user does in between.

It hands out tokens and takes caches, so a life is one of turns, not of rounds. What it is known to do wrong is handled
by the narrowest means:

- What a turn leaves in the caches depends on its last token. `surplus` says what exactly, for every way to end, and
  every turn must leave just that; offset violations at the end are excused where their numbers are these. Then the
  caches are mended as a user who knows it would, and must be right.
- After an exception the package leaves any number of rows (ml-explore/mlx-lm#1528): how the caches are left then is not
  judged, and the next turn has fresh ones.
- Left out: k = 0, with which its drafter is never fed, penalties and bias, whose processors are not shown the prompt
  (ml-explore/mlx-lm#1773), and `min_prob`, which it does not have.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import mlx.core as mx
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule
from life.events import DRAFTS, STOPS, TOKENS, VOCAB_SIZE, WHEN
from life.judging import Life
from mlx_lm.models.cache import load_prompt_cache, make_prompt_cache, save_prompt_cache
from mlx_lm.utils import load_model
from strategies import block_sizes, prompts, samplings

from reference.values import SamplingParams
from specproof.adapters.mlx_lm import ENGINE
from specproof.engine import Capabilities, Case, Fault, ModelSpec, Session
from specproof.pairs import toy
from specproof.results import Violation
from specproof.runner import Run, run_turn

FIELDS = frozenset({"temperature", "top_k", "top_p", "min_p"})
ABOUT_CACHES = ("target_cache_offset", "draft_cache_offset", "cache_content", "exit_state")


def surplus(run: Run) -> tuple[int, int]:
    """Rows beyond prompt + emitted - 1 that a turn leaves in the target's and in the drafter's cache.

    It ends by `n` accepted proposals of a block of k: without the token behind them (cut), the target keeps the row of
    the last one, and so does a drafter that has forwarded it, as it has all but the last of the block. With it, only a
    drafter that should have caught up with the last of the block is short of a row.
    """
    last, done = run.boundaries[-1], run.boundaries[-1].round
    inside = len(run.emitted) - len(last.emitted)
    if inside:
        k, n, cut = min(run.case.num_draft_tokens, run.case.max_tokens - len(last.emitted)), inside, True
    else:
        assert done is not None
        k, cut = len(done.drafted), len(done.emitted) <= done.num_accepted
        n = len(done.emitted) if cut else done.num_accepted
    return (1, 1 if n < k else 0) if cut else (0, -1 if n == k else 0)


def is_known(run: Run, violation: Violation) -> bool:
    """Whether a violation is the known one, by its very numbers: at the end of the turn, the predicted surplus."""
    if run.ending == "abort":
        return violation.invariant in ABOUT_CACHES and violation.round is None
    at_end = violation.round in (None, len(run.boundaries) - 2)
    if not at_end or violation.invariant not in ABOUT_CACHES or "held" not in violation.numbers:
        return False
    cache = 0 if violation.message.startswith("target") else 1
    return violation.numbers["held"] - violation.numbers["expected"] == surplus(run)[cache] != 0


@lru_cache(maxsize=4)
def model_of(folder: Path) -> Any:
    return load_model(folder)[0]


@dataclass(frozen=True)
class Resumed:
    """The engine in the middle of a life: a turn that starts goes on with what the last one left."""

    session: Session | None
    history: tuple[int, ...]
    name: str = "mlx_lm"
    version: str = ENGINE.version
    capabilities: Capabilities = ENGINE.capabilities

    def start(self, case: Case) -> Session:
        if self.session is None:
            return ENGINE.start(case)
        added = case.prompt[len(self.history) :]
        return ENGINE.resume(self.session, (), added, replace(case, prompt=self.history))


class MlxLmLife(Life):
    """A life of turns."""

    @initialize(prompt=prompts(VOCAB_SIZE), draft=DRAFTS.filter(bool), seed=st.integers(0, 2**16))
    def begin(self, prompt, draft, seed):
        self.history, self.session = prompt, None
        self.case = Case(
            id="life",
            regime="life",
            target=ModelSpec(toy().target),
            draft=draft,
            prompt=prompt,
            rule="greedy",
            sampling=SamplingParams(temperature=0.0),
            num_draft_tokens=1,
            max_tokens=1,
            seed=seed,
        )
        self._judge_still()

    @rule(params=samplings(FIELDS, VOCAB_SIZE))
    def change_sampling(self, params):
        self.case = replace(self.case, rule="sampler_match" if params.temperature else "greedy", sampling=params)
        self._judge_still()

    @rule(added=TOKENS, k=block_sizes(), budget=st.integers(1, 14), stops=STOPS,
          close_after=st.one_of(st.none(), st.integers(1, 9)))  # fmt: skip
    def turn(self, added, k, budget, stops, close_after):
        run = self._run(added, num_draft_tokens=k, max_tokens=budget, stop_tokens=stops, close_after=close_after)
        assert run.exit.target_offsets is not None
        assert run.exit.draft_offsets is not None
        held = run.exit.target_offsets[0], run.exit.draft_offsets[0]
        assert held == tuple(len(self.history) - 1 + extra for extra in surplus(run))
        self._mend()

    @rule(added=TOKENS, k=block_sizes(), model=st.sampled_from(("target", "draft")), call=st.integers(0, 6), when=WHEN)
    def failing_turn(self, added, k, model, call, when):
        faulty = replace(getattr(self.case, model), fault=Fault(call, when))
        run = self._run(added, num_draft_tokens=k, max_tokens=12, stop_tokens=frozenset(), close_after=None,
                        **{model: faulty})  # fmt: skip
        if run.ending == "abort":
            self.session = None
        else:
            self._mend()

    @precondition(lambda self: self.session is not None)
    @rule(data=st.data())
    def cut_the_history(self, data):
        self.history = self.history[: data.draw(st.integers(1, len(self.history)), label="kept")]
        self._mend()

    @precondition(lambda self: self.session is not None)
    @rule(draft=DRAFTS.filter(bool))
    def swap_drafter(self, draft):
        self.case = replace(self.case, draft=draft)
        self.session.caches.draft[:] = make_prompt_cache(model_of(draft.folder))
        self._mend()

    @precondition(lambda self: self.session is not None)
    @rule()
    def save_and_load(self):
        caches = self.session.caches
        with TemporaryDirectory() as folder:
            file = str(Path(folder) / "cache.safetensors")
            save_prompt_cache(file, [*caches.target, *caches.draft])
            loaded = load_prompt_cache(file)
            mx.eval([layer.state[:2] for layer in loaded])
        caches.target[:], caches.draft[:] = loaded[: len(caches.target)], loaded[len(caches.target) :]
        self._mend()

    def _run(self, added: tuple[int, ...], **changes: Any) -> Run:
        """One turn, judged."""
        engine = Resumed(self.session, self.history)
        run, self.session = run_turn(engine, replace(self.case, prompt=self.history + added, **changes))
        self._assert_all_hold(run, excused=lambda violation: is_known(run, violation))
        self.history = run.history
        return run

    def _mend(self) -> None:
        """Make both caches hold the history without its last token, and see that they do."""
        rows = len(self.history) - 1
        for spec, cache in (
            (self.case.target, self.session.caches.target),
            (self.case.draft, self.session.caches.draft),
        ):
            for layer in cache:
                layer.trim(max(layer.offset - rows, 0))
            missing = self.history[cache[0].offset : rows]
            if missing:
                model_of(spec.folder)(mx.array(missing)[None], cache=cache)
        self._judge_still()

    def _judge_still(self) -> None:
        """Nothing was emitted; the caches, where there are any yet, must be those of the history all the same."""
        if self.session is None:
            self._judged = True
            return
        still = replace(self.case, prompt=self.history)
        self._assert_all_hold(Run(ENGINE.name, ENGINE.capabilities, still, (), (), "close", self.session.observe()))
