"""What a known defect is: a right engine, the same engine with one mistake, and who must see the mistake.

The catalogue's modules hold the mistakes, one module per kind; `kill_table` runs them all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from reference.errors import InvalidSetting
from specproof.engine import Engine

KINDS = (
    "draft_cache",
    "target_cache",
    "recurrent",
    "batch",
    "exit",
    "stop",
    "acceptance",
    "randomness",
    "processors",
    "positions",
    "vocabulary",
    "metrics",
)
"""Every kind of defect, in the order of the table."""


@dataclass(frozen=True)
class Defect:
    """A mistake that a public engine made, as a small mutation of a right engine.

    Attributes:
        id: its name in messages and tables: "D01".
        kind: one of `KINDS`.
        engine_found_in: whose mistake it was.
        reference: where it is public: "owner/repository#number"; "no public issue" where there is none.
        cause: what goes wrong, in one sentence.
        make: the engine with the mistake. Packages that are optional are imported inside.
        right: the engine without it, in which no check may see anything.
        expected: names of checks; every one of them must catch it.
        silent: names of checks that must not. All others may or may not.
        needs: the extra ("mlx") without which `make` cannot be called; else "".

    Raises:
        InvalidSetting: an unknown kind, no expected check, or a check both expected and silent.
    """

    id: str
    kind: str
    engine_found_in: str
    reference: str
    cause: str
    make: Callable[[], Engine]
    right: Callable[[], Engine]
    expected: frozenset[str]
    silent: frozenset[str] = frozenset()
    needs: str = ""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise InvalidSetting(
                f"defect {self.id} is of the unknown kind {self.kind!r}; give one of {', '.join(KINDS)}"
            )
        if not self.expected:
            raise InvalidSetting(f"defect {self.id} expects no check to see it; name those that must")
        if both := self.expected & self.silent:
            raise InvalidSetting(f"defect {self.id} wants {', '.join(sorted(both))} both to see it and not to; choose")
