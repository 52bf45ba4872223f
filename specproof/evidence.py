"""How statistical evidence becomes a violation: found twice, on different seeds, within one family-wise level.

Knows nothing of what was measured; that is told by the `finding` of each piece of evidence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from specproof.engine import Case
from specproof.law_cases import raised
from specproof.results import Violation
from specproof.statistics import FAMILY_LEVEL, CellTest, CoinTest, holm


@dataclass(frozen=True)
class Evidence:
    """One test of one case.

    Attributes:
        case: what was run; its seed and prompt may have differed from turn to turn.
        about: which of the case's tests this is.
        test: its numbers.
        finding: what was found and what was expected, by which formula, with the numbers of `test`.
        advice: where to look if it fails.
    """

    case: Case
    about: str
    test: CellTest | CoinTest
    finding: str
    advice: str

    @property
    def name(self) -> tuple[str, str]:
        """Unique among the tests of a check, and the same for a repetition."""
        return self.case.id, self.about


Gather = Callable[[Case, int], Iterable[Evidence]]
"""(case, repetition) -> its evidence, from seeds that no other case and repetition shares."""


@dataclass(frozen=True)
class Gathered:
    """The evidence on all cases, and a violation for each that raised."""

    evidence: tuple[Evidence, ...]
    errors: tuple[Violation, ...]


def gather_all(law: str, cases: Iterable[Case], gather: Gather, repetition: int = 0) -> Gathered:
    """Gather evidence on every case. What an engine raises ends its case, not the check."""
    evidence: list[Evidence] = []
    errors: list[Violation] = []
    for case in cases:
        try:
            evidence.extend(list(gather(case, repetition)))  # all of a case, or nothing
        except Exception as error:
            errors.append(raised(law, case, error))
    return Gathered(tuple(evidence), tuple(errors))


def confirm(law: str, evidence: Sequence[Evidence], gather: Gather) -> list[Violation]:
    """Gather anew where Holm rejects, and report what is rejected again.

    A right engine is accused with a probability of about the square of `FAMILY_LEVEL`.
    """
    suspected = {piece.name: piece for piece in _rejected(evidence)}
    again = gather_all(law, {piece.case.id: piece.case for piece in suspected.values()}.values(), gather, repetition=1)
    repeated = _rejected([piece for piece in again.evidence if piece.name in suspected])
    confirmed = [_violation(law, suspected[piece.name], piece, len(evidence)) for piece in repeated]
    return [*again.errors, *confirmed]


def _rejected(evidence: Sequence[Evidence]) -> list[Evidence]:
    """Those that Holm's procedure rejects within this family."""
    return [piece for piece, out in zip(evidence, holm([p.test.p_value for p in evidence]), strict=True) if out]


def _violation(law: str, first: Evidence, again: Evidence, family: int) -> Violation:
    message = (
        f"{first.finding}; on fresh seeds {again.finding} "
        f"(family-wise level {FAMILY_LEVEL:g} over {family} tests, Holm). {first.advice}"
    )
    numbers = first.test.numbers() | {f"repeated_{name}": number for name, number in again.test.numbers().items()}
    return Violation(law, first.case.id, None, message, numbers)
