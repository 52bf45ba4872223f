"""What is looked for in a single run: the invariants that it breaks."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, field

from specproof.engine import Case, Engine
from specproof.fuzzing.hunt import Wrong
from specproof.invariants import RUN_INVARIANTS
from specproof.invariants.base import exit_point, look, rows_expected
from specproof.invariants.signatures import (
    ENDS_BY_ITS_LAST_TOKEN,
    SIGNATURES,
    CacheName,
    Known,
    Signature,
    distinct,
    ends_by_its_last_token,
    offsets_of,
    refutes,
    shows,
)
from specproof.results import Violation
from specproof.runner import Run, observed_run


@dataclass
class RunJudge:
    """Judges the runs of an engine: the first broken invariant decides what is looked for from then on.

    Attributes:
        engine: whose runs.
        names: the invariants to look at.
        possible: the defects of the catalogue that no run refuted, right or wrong.
        shown: those of them that some wrong run showed.
    """

    engine: Engine
    names: Container[str] = field(default_factory=lambda: RUN_INVARIANTS)
    possible: tuple[Signature, ...] = SIGNATURES
    shown: list[Signature] = field(default_factory=list)

    def __call__(self, case: Case) -> Wrong | None:
        """What is broken in a case, where its run is of use as an example."""
        found = self.note(case)
        return found if found is not None and self.is_example(found.run) else None

    def note(self, case: Case) -> Wrong | None:
        """What is broken in a case. Its run, broken or not, tells which defect it cannot be."""
        run = observed_run(self.engine, case)
        broken = broken_invariants(run, self.names)
        self.possible = tuple(found for found in self.possible if not refutes(run, found))
        if not broken:
            return None
        name, violation = next(iter(broken.items()))
        self.names = (name,)
        self.shown += [found for found in self.possible if found not in self.shown and shows(run, found)]
        return Wrong(violation, run)

    @property
    def suspects(self) -> tuple[Signature, ...]:
        """The defects that all runs agree with, and a wrong one shows."""
        return distinct(found for found in self.possible if found in self.shown)

    def is_example(self, run: Run | None) -> bool:
        """Whether a wrong run shows the defect that it is, if that is known.

        One in which another defect would leave the same rows is no help to who reads it.
        """
        return not self.suspects or (run is not None and any(shows(run, suspect) for suspect in self.suspects))

    def known_defects(self, smallest: Run) -> tuple[Known, ...]:
        """The defects of the catalogue with such offsets: in all runs, or at the end of the smallest wrong one."""
        suspects = self.suspects
        if not all(found.of_ends for found in suspects):
            return suspects
        point = exit_point(smallest)
        expected, _ = rows_expected(smallest, point)
        caches: tuple[CacheName, ...] = ("target", "draft")
        surplus = {cache: {held - expected for held in offsets_of(smallest.exit, cache) or ()} for cache in caches}
        by_end = any(ends_by_its_last_token(smallest, point, cache, n) for cache in caches for n in surplus[cache])
        return (ENDS_BY_ITS_LAST_TOKEN, *suspects) if by_end else suspects


def broken_invariants(run: Run, names: Container[str] = RUN_INVARIANTS) -> Mapping[str, Violation]:
    """The first violation of each invariant that a run breaks, in the order of `RUN_INVARIANTS`; of `names` only."""
    found = {}
    for name, invariant in RUN_INVARIANTS.items():
        if name in names and invariant.observable(run.capabilities):
            violations = look(invariant, run).violations
            if violations:
                found[name] = violations[0]
    return found
