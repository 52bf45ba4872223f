"""The harness's engine for `mlx_impl` with other drafters or block lengths, held against every invariant."""

from dataclasses import replace

from mlx_impl import Chain, PromptLookup
from specproof.adapters.mlx_impl import ENGINE, MlxImplEngine
from specproof.invariants import RUN_INVARIANTS
from specproof.pairs import toy
from specproof.regimes import REGIMES
from specproof.runner import run_case


class ChainEngine(MlxImplEngine):
    """A lookup before the draft model."""

    chain_class = Chain

    def _drafter(self, case, randomness, cache, models):
        model = super()._drafter(case, randomness, cache, models)
        return self.chain_class([PromptLookup(model.vocab_size, min_ngram=2, max_ngram=2), model])


def some_cases(count):
    """Cases of every regime, spread over those in which a draft model proposes."""
    capabilities = replace(ENGINE.capabilities, drafters=frozenset({"draft_model"}))
    for regime in REGIMES.values():
        cases = [case for case in regime.cases(toy(), capabilities, 0, quick=True) if case.draft is not None]
        yield from (cases[len(cases) * (2 * index + 1) // (2 * count)] for index in range(count))


def violations(engine, case):
    """What the invariants find in a run of a case, and the run: ({invariant: violations}, run)."""
    run = run_case(engine, case)
    found = {name: invariant.check(run) for name, invariant in RUN_INVARIANTS.items()}
    return {name: wrong for name, wrong in found.items() if wrong}, run
