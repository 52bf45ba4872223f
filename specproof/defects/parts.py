"""What the modules on parts share: a defect of a part is an engine of `reference_parts` with one thing exchanged."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, cast

from specproof.adapters.reference import ReferenceEngine
from specproof.defects.base import Defect
from specproof.engine import Engine


def part_defect(
    right: ReferenceEngine,
    id_: str,
    kind: str,
    engine_found_in: str,
    reference: str,
    cause: str,
    *,
    expected: str,
    silent: str = "",
    make: Callable[..., ReferenceEngine] = replace,
    **parts: Any,
) -> Defect:
    """A defect of an engine with parts.

    Args:
        right: the engine without it.
        id_, kind, engine_found_in, reference, cause: as in `Defect`.
        expected, silent: names of checks, with spaces in between.
        make: an engine class, where it is the engine itself that is wrong; else fields of `right` are exchanged.
        parts: the fields.
    """
    made = partial(make, right, name=id_, **parts) if make is replace else partial(make, id_, **parts)
    return Defect(
        id_,
        kind,
        engine_found_in,
        reference,
        cause,
        make=cast(Callable[[], Engine], made),
        right=lambda: cast(Engine, right),
        expected=frozenset(expected.split()),
        silent=frozenset(silent.split()),
    )
