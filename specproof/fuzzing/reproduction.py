"""A finding as a file: what was broken, by which engine, in which case. It can be replayed, by hand and by the suite.

    {"schema": "specproof.found/1", "engine": ..., "invariant": ..., "source": ..., "message": ..., "level": ...,
     "case": {...}}

`level` is that of the bet that was lost, null where nothing was left to chance. The regime of the case tells how it is
judged: what is no part of a law (`law_searches`) is a single run.
"""

from __future__ import annotations

import json
import re
import zlib
from dataclasses import dataclass
from pathlib import Path

from reference.errors import InvalidSetting
from specproof.engine import Case, Engine
from specproof.fuzzing import case_files
from specproof.fuzzing.bets import Stake
from specproof.fuzzing.campaign import Finding
from specproof.fuzzing.law_searches import LAW_SEARCHES
from specproof.fuzzing.runs import broken_invariants
from specproof.invariants import RUN_INVARIANTS
from specproof.results import Violation
from specproof.runner import observed_run

SCHEMA = "specproof.found/1"
FIELDS = frozenset({"schema", "engine", "invariant", "source", "message", "level", "case"})
REPLAYABLE = tuple(dict.fromkeys((*RUN_INVARIANTS, *(search.law for search in LAW_SEARCHES.values()))))
"""What a file may be about."""


@dataclass(frozen=True)
class Reproduction:
    """All that is needed to see a finding again.

    Attributes:
        engine: the name to load it by.
        invariant: what was broken: an invariant of single runs, or a law.
        source: where it is public what is wrong: the defect's, if it is a known one, else the section of docs/ that
            states the invariant.
        message: what was found then.
        level: of the bet; None where nothing was left to chance.
        case: the case.
    """

    engine: str
    invariant: str
    source: str
    message: str
    level: float | None
    case: Case

    @classmethod
    def of(cls, finding: Finding) -> Reproduction:
        """What to save of a finding."""
        stated = "docs/design.md#laws" if finding.run is None else "docs/design.md#invariants"
        return cls(
            engine=finding.engine,
            invariant=finding.violation.invariant,
            source=finding.known[0].source if finding.known else stated,
            message=finding.violation.message,
            level=finding.level,
            case=finding.case,
        )

    @property
    def file_name(self) -> str:
        """Its own, for any engine and case."""
        engine = re.sub(r"[^\w.-]+", "_", self.engine)
        case = json.dumps(case_files.to_json(self.case), sort_keys=True)
        return f"{engine}-{self.invariant}-{zlib.crc32(case.encode()):08x}.json"

    def save(self, folder: Path) -> Path:
        """Write it into a folder, which is made if need be, and return the file.

        Raises:
            OSError: it cannot be written.
        """
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / self.file_name
        file.write_text(json.dumps(self.to_json(), indent=1) + "\n", encoding="utf-8")
        return file

    def to_json(self) -> dict[str, object]:
        """As it is written."""
        plain = {name: value for name, value in vars(self).items() if name != "case"}
        return {"schema": SCHEMA, **plain, "case": case_files.to_json(self.case)}

    def replay(self, engine: Engine) -> Violation | None:
        """What an engine breaks of it; None if it holds."""
        search = LAW_SEARCHES.get(self.case.regime)
        if search is not None:
            return search.judge(engine, self.case, Stake(self.level or 0.0))
        return broken_invariants(observed_run(engine, self.case), {self.invariant}).get(self.invariant)


def load(file: Path) -> Reproduction:
    """The reproduction in a file.

    Raises:
        InvalidSetting: it cannot be read, or is not one; the message says why.
    """
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidSetting(f"cannot read {file} ({error}); give a file that `specproof fuzz` wrote") from error
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        raise InvalidSetting(f"{file} is not of the form {SCHEMA}; give a file that `specproof fuzz` wrote")
    if odd := data.keys() ^ FIELDS:
        raise InvalidSetting(f"{file} has other fields than {', '.join(sorted(FIELDS))}: {', '.join(sorted(odd))}")
    for name in ("engine", "invariant", "source", "message"):
        if not isinstance(data[name], str):
            raise InvalidSetting(f"{file}: {name} is {data[name]!r}; expected a text")
    if data["invariant"] not in REPLAYABLE:
        raise InvalidSetting(f"{file}: invariant is {data['invariant']!r}; expected one of {', '.join(REPLAYABLE)}")
    case = case_files.from_json(data["case"])
    search = LAW_SEARCHES.get(case.regime)
    shown = search.law == data["invariant"] if search else data["invariant"] in RUN_INVARIANTS
    if not shown:
        raise InvalidSetting(f"{file}: a case of the regime {case.regime!r} does not show {data['invariant']}")
    level, is_bet = data["level"], search is not None and search.is_bet
    if not (isinstance(level, float) and 0 < level < 1 if is_bet else level is None):
        raise InvalidSetting(f"{file}: level is {level!r}; expected a number between 0 and 1 for a bet, else null")
    return Reproduction(data["engine"], data["invariant"], data["source"], data["message"], level, case)
