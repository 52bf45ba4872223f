"""What is unusual and right is not accused: the checks pass it, or only measure it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from reference.cache import KVCache
from reference.decoder import Decoder
from reference.drafters import DraftModel
from reference.transformer import Activations
from reference.values import DraftBlock, DraftDistribution
from specproof import exact_law, forcing
from specproof.adapters.reference import ReferenceEngine, ReferenceSession
from specproof.adapters.reference_sessions import WrappedModel
from specproof.defects.acceptance import redraw_from_p
from specproof.defects.kill_table import examine
from specproof.defects.mutations import with_decision
from specproof.defects.plan import cases
from specproof.engine import Capabilities, Case, Engine, Observation
from specproof.invariants import RUN_INVARIANTS
from specproof.law_cases import GREEDY, Setting, law_case
from specproof.pairs import tiny, toy
from specproof.runner import run_case
from specproof.transforms import Constant

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Declares(ReferenceEngine):
    """The oracle with parts exchanged, and declaring other things."""

    declared: dict[str, Any] = field(default_factory=dict)

    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, **self.declared)


def accused_by(engine: Engine, plan: Sequence[Case], laws: Sequence[str] = ()) -> set[str]:
    """The checks that see something in an engine."""
    assert plan or laws
    cells = examine(lambda: engine, plan, laws)
    return {name for name, cell in cells.items() if cell.status == "caught"}


def plan_of(engine: Declares, rule: str) -> list[Case]:
    return [case for case in cases(engine.capabilities) if case.rule == rule]


def test_accepting_a_proposal_that_equals_a_fresh_draw_of_the_target_is_lossless() -> None:
    """It accepts less than rejection could; that is all."""
    engine = Declares(declared={"rules": frozenset({"sampler_match"})})
    assert not accused_by(engine, plan_of(engine, "sampler_match"))
    settings = {f"exact_law/sampler_match/{name}" for name in ("k1/T1", "k2/T0.7-top_k2", "k3/T0.7-top_p0.75")}
    laws = exact_law.cases(engine.capabilities, tiny(), 0, quick=False)
    result = exact_law.judge(engine, [case for case in laws if case.id in settings])
    assert (result.status, result.cases) == ("holds", 3)


class ArgmaxWithoutProbabilities(DraftModel):
    """Proposes argmaxes, and is certain of them: its q is a point mass."""

    def propose(self, history: Sequence[int], target_hidden: Floats | None, budget: int) -> DraftBlock:
        block = super().propose(history, target_hidden, budget)
        size = self.model.vocab_size
        return DraftBlock(block.tokens, tuple(DraftDistribution.point_mass(token, size) for token in block.tokens))

    def _draw(self, q: Floats, position: int) -> int:
        return int(np.argmax(q))


def test_argmax_proposals_without_probabilities_are_lossless() -> None:
    """Such an engine has no q to show, and what it emits is the target's (vllm-project/vllm#40149)."""
    declared = {"draft_distributions": False, "rules": frozenset({"rejection"})}
    engine = Declares(drafter_class=ArgmaxWithoutProbabilities, declared=declared)
    assert not accused_by(engine, plan_of(engine, "rejection"))
    assert not accused_by(engine, (), ("exact_law",))


class RoundsByBatch(WrappedModel):
    """A pass over several tokens rounds otherwise than one over a single token."""

    def forward(self, tokens: Sequence[int], cache: KVCache) -> Activations:
        done = super().forward(tokens, cache)
        noise = 1e-5 * np.sin(np.arange(done.logits.size)).reshape(done.logits.shape)
        return Activations(done.logits + noise * (len(tokens) > 1), done.hidden)


def test_another_rounding_for_every_batch_size_is_noise_and_no_defect() -> None:
    """ggml-org/llama.cpp#23335: judged with the tolerances of float32."""
    engine = Declares(target_class=RoundsByBatch, declared={"precision": "float32"})
    assert not accused_by(engine, cases(engine.capabilities))
    exact = Declares(target_class=RoundsByBatch)
    assert accused_by(exact, cases(engine.capabilities)), "in float64 it would be one"


class LastOfTies(Decoder):
    """At temperature 0 the last of the highest logits wins, not the first."""

    def _distribution(self, activations: Activations, row: int, context: Sequence[int]) -> Floats:
        logits = activations.logits[row]
        return DraftDistribution.point_mass(int(np.flatnonzero(logits == logits.max())[-1]), len(logits)).dense()


def test_the_last_of_tied_logits_is_as_greedy_as_the_first() -> None:
    engine = Declares(decoder_class=LastOfTies)
    case = law_case("ties", toy(), "greedy", 2, Setting("T0", GREEDY), (1, 2), 6)
    tied = Constant((0.0, 1.0, 1.0))
    run = run_case(engine, replace(case, target=replace(case.target, transform=tied)))
    assert set(run.emitted) == {2}
    assert not RUN_INVARIANTS["greedy_parity"].check(run)
    untied = run_case(engine, replace(case, target=replace(case.target, transform=Constant((0.0, 1.1, 1.0)))))
    other = replace(run, case=untied.case)
    assert RUN_INVARIANTS["greedy_parity"].check(other), "a logit that is lower is another matter"


class RunsOneAhead(Declares):
    """An engine that has forwarded the pending token already: one row more, always."""

    def start(self, case: Case) -> ReferenceSession:
        session = super().start(case)
        observe = session.observe
        vars(session)["observe"] = lambda: one_more(observe())
        return session


def one_more(seen: Observation) -> Observation:
    target, draft = (offsets and tuple(n + 1 for n in offsets) for offsets in (seen.target_offsets, seen.draft_offsets))
    return Observation(target, draft)


def test_one_row_more_everywhere_is_a_convention() -> None:
    """Declared, it holds; undeclared, it does not."""
    hidden: dict[str, Any] = {"cache_contents": False}
    engine = RunsOneAhead(declared={**hidden, "offset_convention": 1})
    plan = [case for case in cases(engine.capabilities) if case.regime != "abort"]
    assert not accused_by(engine, plan)
    assert accused_by(RunsOneAhead(declared=hidden), plan) == {
        "target_cache_offset", "draft_cache_offset", "exit_state",
    }  # fmt: skip


def test_a_rotating_cache_that_is_longer_than_its_window_after_a_write_of_several_tokens_is_right() -> None:
    """ml-explore/mlx-lm#1914: for S tokens at once it holds window + S - 1 rows, so that each sees its whole window."""
    pytest.importorskip("mlx_lm", reason="needs the extra mlx-lm")
    from specproof.adapters.mlx_families import GEMMA3_TEXT
    from specproof.adapters.mlx_family_models import SHARED

    window, k = SHARED["sliding_window"], 4
    models = forcing.all_accept(toy().built_as(GEMMA3_TEXT.capabilities.architecture), "greedy", GREEDY)
    case = Case(id="window", regime="all_accept", target=models.target, draft=models.draft, prompt=tuple(range(20)),
                rule="greedy", sampling=GREEDY, num_draft_tokens=k, max_tokens=21)  # fmt: skip
    boundaries = run_case(GEMMA3_TEXT, case).boundaries[1:]
    held = [boundary.observation.target_rows[0].keys.shape[1] for boundary in boundaries]
    assert held == [window + k] * 4, "the case is another one by now: S is k + 1"
    assert not accused_by(GEMMA3_TEXT, [case])


def test_an_engine_that_says_that_it_is_lossy_is_measured_and_not_accused() -> None:
    decoder = with_decision(redraw_from_p)
    lossy = Declares(decoder_class=decoder, declared={"lossy": True})
    assert not accused_by(lossy, (), ("exact_law", "output_distribution", "randomness"))
    assert accused_by(Declares(decoder_class=decoder), (), ("exact_law",)) == {"exact_law"}
