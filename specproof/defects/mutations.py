"""What the catalogue's modules share: a defect of the oracle is the oracle with one of its parts exchanged."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from reference.acceptance import RULES, AcceptanceRule, Decision
from reference.decoder import Decoder, DecoderState
from reference.drafters import DraftModel
from specproof.adapters.reference import ENGINE, ReferenceEngine
from specproof.defects.base import Defect
from specproof.engine import Engine


def oracle_defect(
    id_: str,
    kind: str,
    engine_found_in: str,
    reference: str,
    cause: str,
    *,
    expected: str,
    silent: str = "",
    make: Callable[[], Engine] | None = None,
    **parts: Any,
) -> Defect:
    """A defect of the oracle.

    Args:
        id_, kind, engine_found_in, reference, cause: as in `Defect`.
        expected, silent: names of checks, with spaces in between.
        make: makes the engine, where it keeps something between turns and must be a new one every time.
        parts: else, the arguments of `ReferenceEngine` that are exchanged.
    """
    return Defect(
        id_,
        kind,
        engine_found_in,
        reference,
        cause,
        make=make or partial(ReferenceEngine, id_, **parts),
        right=_oracle,
        expected=frozenset(expected.split()),
        silent=frozenset(silent.split()),
    )


def _oracle() -> Engine:
    return ENGINE


def with_drafter(drafter_class: type[DraftModel]) -> ReferenceEngine:
    """The oracle with another drafter."""
    return ReferenceEngine(drafter_class.__name__, drafter_class=drafter_class)


def with_decoder(decoder_class: type[Decoder]) -> ReferenceEngine:
    """The oracle with another decode loop."""
    return ReferenceEngine(decoder_class.__name__, decoder_class=decoder_class)


def with_decision(decision: Decision, name: str = "rejection") -> type[Decoder]:
    """The decoder whose rule of that name decides by `decision`."""
    rule = replace(RULES[name], decision=decision)

    class Wrong(Decoder):
        @property
        def acceptance(self) -> AcceptanceRule:
            return rule if self.rule == name else super().acceptance

    return Wrong


class NeverChecks(Decoder):
    """A decode loop that goes on whatever its caches hold, as most do; the oracle's refuses to."""

    def prefill(self, *arguments: Any, **named: Any) -> DecoderState:
        """As the oracle's; the state does not look at its cache."""
        state = super().prefill(*arguments, **named)
        vars(state)["check_boundary"] = lambda: None
        return state
