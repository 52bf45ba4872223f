"""Known defects of speculative decoders, each as a small mutation of a right one: what the harness is for.

`CATALOGUE` has them by id, `LEFT_OUT` those that no engine here can express. Messages of the checks name defects by
these ids. The table of which check sees which is made by `kill_table`.
"""

from collections.abc import Mapping
from itertools import chain
from types import MappingProxyType

from specproof.defects import (
    acceptance,
    batch,
    draft_cache,
    exit,
    grammar,
    metrics,
    on_mlx,
    positions,
    processors,
    randomness,
    recurrent,
    stop,
    target_cache,
    target_cache_parts,
    vocabulary,
)
from specproof.defects.base import KINDS, Defect

__all__ = ["CATALOGUE", "KINDS", "LEFT_OUT", "Defect"]

_MODULES = (
    draft_cache,
    target_cache,
    target_cache_parts,
    recurrent,
    batch,
    exit,
    stop,
    acceptance,
    randomness,
    processors,
    grammar,
    positions,
    vocabulary,
    metrics,
    on_mlx,
)


def _place(found: Defect) -> tuple[int, str]:
    """By number; the same defect on another engine behind it."""
    number, _, engine = found.id[1:].partition("-")
    return int(number), engine


def _catalogue() -> dict[str, Defect]:
    every = sorted(chain.from_iterable(module.DEFECTS for module in _MODULES), key=_place)
    by_id = {found.id: found for found in every}
    assert len(by_id) == len(every), "an id is used twice"
    return by_id


CATALOGUE: Mapping[str, Defect] = MappingProxyType(_catalogue())
"""Every defect, by id, in the order of the ids."""

LEFT_OUT: Mapping[str, str] = MappingProxyType(
    {
        "D14": "the same mistake as D13 in another language: one test of the window, one result that nobody looks at",
        "D32": "the same mistake as D39, first blamed on a quantised cache",
        "D61": "stop strings: turns end by tokens here, and no engine is given text",
        "D87": "trees of proposals: one sequence is proposed at a time",
        "D88": "several candidates for one position, drawn without replacement: one is drawn here",
        "D116": "another order of tied logits: ties are not judged, since kernels may turn them",
        "D117": "another shape of the prompt's forward: it turns ties only, which are not judged",
        "D118": "a verification of lower precision: below the tolerance of a float32 engine it is no defect",
        "D119": "another kernel for every batch size: a model of rounding, not a mistake of logic",
        "D120": "sums in an order that depends on the batch: a model of rounding, not a mistake of logic",
        "D131": "log-probabilities of the prompt: engines are asked for those of emitted tokens",
    }
)
"""Defects that are known and not in the catalogue: id -> why."""
