"""Engines to be fuzzed: known-bad ones, by the id of their defect, their class, or the law that they break."""

from collections.abc import Mapping

from invariants.mutants import (
    AcceptsEverything,
    DropsBonus,
    ForgetsRollback,
    ReadsPOneRowLate,
    ReportsUnnormalisedQ,
    SpoilsOneRow,
)
from laws.law_controls import PlainSampler, too_much_of_q

from reference.decoder import Decoder
from specproof.defects import CATALOGUE
from specproof.defects.draft_cache import NeverCatchesUp, NeverTrims, TrimsRejectedPlusOne
from specproof.defects.exit import EndsByItsLastToken
from specproof.defects.mutations import with_decoder, with_drafter
from specproof.defects.processors import ShowsLastTokenOnly
from specproof.defects.target_cache import KeepsRejectedRows, TrimsFirstLayerOnly
from specproof.engine import Engine

BY_DEFECT: Mapping[str, Engine] = {
    "D01": with_drafter(TrimsRejectedPlusOne),
    "D02": with_drafter(NeverCatchesUp),
    "D04": with_drafter(NeverTrims),
    "D17": with_decoder(TrimsFirstLayerOnly),
    "D23": with_decoder(KeepsRejectedRows),
}
"""Engines whose offsets tell the defect from the first wrong round on."""

BY_INVARIANT: Mapping[str, Engine] = {
    "cache_content": with_drafter(SpoilsOneRow),
    "emitted_block": with_decoder(DropsBonus),
    "greedy_parity": with_decoder(AcceptsEverything),
    "honest_q": with_drafter(ReportsUnnormalisedQ),
    "processor_history": with_decoder(ShowsLastTokenOnly),
    "counters": with_decoder(ReadsPOneRowLate),
}
"""Engines whose offsets are right, by the first invariant in the catalogue's order that they break."""

BY_ENDING: Mapping[str, Engine] = {
    "abort": with_decoder(ForgetsRollback),
    "stop": with_decoder(EndsByItsLastToken),
}
"""Engines that are wrong only where a turn ends in a special way."""

BY_LAW_PART: Mapping[str, Engine] = {
    "refusals": CATALOGUE["D70"].make(),
    "repetitions": CATALOGUE["D92"].make(),
    "end_points": CATALOGUE["D79"].make(),
    "exact_law": CATALOGUE["D73"].make(),
    "joint_law": CATALOGUE["D90"].make(),
    "rates": CATALOGUE["D34"].make(),
    "output_law": PlainSampler(too_much_of_q),
}
"""Engines that break a law, by the part of it that shows that."""

NEVER_TRIMS = BY_DEFECT["D04"]


class InterruptedDecoder(Decoder):
    """Stands for somebody who presses Ctrl-C in the middle of a run."""

    def step(self, state):
        raise KeyboardInterrupt


INTERRUPTED = with_decoder(InterruptedDecoder)
