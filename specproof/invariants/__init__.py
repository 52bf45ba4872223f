"""The invariants of a single run: what must hold in every decode, whatever was drawn.

Each states its law and what it cannot see. `RUN_INVARIANTS` is the list that audits and tests go through; the
laws that take many runs, or all outcomes at once, are in `specproof.laws`.
"""

from collections.abc import Mapping

from specproof.invariants.base import RunInvariant
from specproof.invariants.block_table import BLOCK_TABLE
from specproof.invariants.blocks import EMITTED_BLOCK
from specproof.invariants.content import CACHE_CONTENT
from specproof.invariants.contexts import PROCESSOR_HISTORY
from specproof.invariants.counting import COUNTERS
from specproof.invariants.exits import EXIT_STATE
from specproof.invariants.honesty import HONEST_Q
from specproof.invariants.log_probabilities import LOG_PROBABILITIES
from specproof.invariants.offsets import DRAFT_CACHE_OFFSET, TARGET_CACHE_OFFSET
from specproof.invariants.parity import GREEDY_PARITY

RUN_INVARIANTS: Mapping[str, RunInvariant] = {
    invariant.name: invariant
    for invariant in (
        TARGET_CACHE_OFFSET,
        DRAFT_CACHE_OFFSET,
        CACHE_CONTENT,
        BLOCK_TABLE,
        EMITTED_BLOCK,
        GREEDY_PARITY,
        HONEST_Q,
        EXIT_STATE,
        PROCESSOR_HISTORY,
        COUNTERS,
        LOG_PROBABILITIES,
    )
}

__all__ = ["RUN_INVARIANTS", "RunInvariant"]
