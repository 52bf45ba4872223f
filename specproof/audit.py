"""One audit: every selected check on every engine, and all that they found.

Knows which cases and checks there are and collects violations; how a case is run, what a check looks at and
how a result is shown is left to `runner`, `invariants`, `laws` and `report`.
"""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from reference.errors import InvalidSetting
from specproof.engine import Case, Engine
from specproof.invariants import RUN_INVARIANTS, RunInvariant
from specproof.invariants.base import look
from specproof.laws import LAWS, Law
from specproof.pairs import Pair, tiny, toy
from specproof.regimes import REGIMES, regime
from specproof.results import CheckResult, Violation
from specproof.runner import ENGINE_ERRORS, Run, error_text, observed_run


@dataclass(frozen=True)
class Settings:
    """What to audit with. Empty selections mean all.

    Attributes:
        pair: the checkpoints; laws that enumerate outcomes take the tiny pair instead.
        quick: fewer cases of every kind.
        seed: every case and every law derives its own from it.
        regimes: names of the regimes to run; a selection leaves out the laws, which have no regime.
        checks: names of the invariants and laws to check.
        case_id: the one case to run; leaves out the laws.
        peers: engines whose failures are findings about them, and do not make the audit fail.

    Raises:
        UnknownRegime: no regime of that name.
        InvalidSetting: no check of that name, or a law together with a selection of cases.
    """

    pair: Pair = field(default_factory=toy)
    quick: bool = False
    seed: int = 0
    regimes: tuple[str, ...] = ()
    checks: tuple[str, ...] = ()
    case_id: str | None = None
    peers: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        for name in self.regimes:
            regime(name)
        for name in self.checks:
            if name not in CHECKS:
                raise InvalidSetting(f"no check is named {name!r}; give one of {', '.join(CHECKS)}")
            if name in LAWS and self._selects_cases:
                raise InvalidSetting(f"check {name!r} is a law and has no cases to select; drop --regime and --case")

    @property
    def _selects_cases(self) -> bool:
        return bool(self.regimes) or self.case_id is not None

    def cases(self, engine: Engine) -> list[Case]:
        """The cases of this audit that the engine is able to run; none where only laws are selected."""
        if not self.invariants():
            return []
        every = (
            case
            for name in self.regimes or REGIMES
            for case in regime(name).cases(self.pair, engine.capabilities, self.seed, self.quick)
        )
        return [case for case in every if self.case_id in (None, case.id)]

    def invariants(self) -> list[RunInvariant]:
        """The selected checks that look at single runs."""
        return [check for name, check in RUN_INVARIANTS.items() if name in (self.checks or RUN_INVARIANTS)]

    def laws(self) -> list[Law]:
        """The selected checks that look at many runs at once."""
        if self._selects_cases:
            return []
        return [law for name, law in LAWS.items() if name in (self.checks or LAWS)]


@dataclass(frozen=True)
class Progress:
    """How far the audit of one engine is: `done` of `total` steps; `doing` is the case or law begun now."""

    engine: str
    done: int
    total: int
    doing: str


@dataclass(frozen=True)
class Witness:
    """The violation that stands for all of a failed check.

    Attributes:
        violation: the first one, in the order of the cases.
        case: the case it was found in; None for a law.
        reproduce: the command that shows it again.
        further: how many other violations the check found.
    """

    violation: Violation
    case: Case | None
    reproduce: str
    further: int


@dataclass(frozen=True)
class CheckReport:
    """The result of one check of one engine, and its witness if it fails."""

    result: CheckResult
    witness: Witness | None

    @property
    def failed_cases(self) -> int:
        """How many cases hold a violation."""
        return len({violation.case_id for violation in self.result.violations})


@dataclass(frozen=True)
class EngineReport:
    """All results of one engine. `name` is the one it was asked for by."""

    name: str
    version: str
    checks: Mapping[str, CheckReport]

    @property
    def failed(self) -> tuple[str, ...]:
        """Names of the checks that fail."""
        return tuple(name for name, check in self.checks.items() if check.result.status == "fails")


@dataclass(frozen=True)
class AuditReport:
    """What an audit found: the engines' reports in the order they were asked for."""

    engines: Mapping[str, EngineReport]
    settings: Settings

    @property
    def passed(self) -> bool:
        """Whether no check fails, other than a peer's."""
        return not any(engine.failed for name, engine in self.engines.items() if name not in self.settings.peers)


def audit(
    engines: Mapping[str, Engine], settings: Settings, on_progress: Callable[[Progress], None] = lambda _: None
) -> AuditReport:
    """Run every selected check on every engine. An engine that raises fails a check; it does not end the audit.

    Args:
        engines: by the names to report them under.
        settings: what to audit with.
        on_progress: called before every case and law.

    Raises:
        InvalidSetting: `settings.case_id` names no case of any of the engines.
    """
    cases = {name: settings.cases(engine) for name, engine in engines.items()}
    if settings.case_id is not None and not any(cases.values()):
        raise InvalidSetting(_unknown_case(settings, engines.values()))
    reports = {name: _audit_engine(name, engines[name], cases[name], settings, on_progress) for name in engines}
    return AuditReport(reports, settings)


def _unknown_case(settings: Settings, engines: Iterable[Engine]) -> str:
    known = {case.id for engine in engines for case in Settings(settings.pair, seed=settings.seed).cases(engine)}
    if settings.case_id in known:
        return f"case {settings.case_id!r} is not among those of --regime or --quick; drop that selection"
    close = difflib.get_close_matches(str(settings.case_id), sorted(known), n=3)
    hint = f"did you mean {' or '.join(close)}?" if close else "ids are printed with every witness"
    return f"no case of these engines is named {settings.case_id!r}; {hint}"


def _audit_engine(
    name: str, engine: Engine, cases: Sequence[Case], settings: Settings, on_progress: Callable[[Progress], None]
) -> EngineReport:
    total = len(cases) + len(settings.laws())
    tallies = [_Tally(check, check.observable(engine.capabilities)) for check in settings.invariants()]
    for done, case in enumerate(cases):
        on_progress(Progress(name, done, total, case.id))
        _judge(engine, case, tallies)
    results = {tally.check.name: tally.result() for tally in tallies}
    for done, law in enumerate(settings.laws(), len(cases)):
        on_progress(Progress(name, done, total, law.name))
        results[law.name] = _check_law(law, engine, settings)
    on_progress(Progress(name, total, total, "done"))
    by_id = {case.id: case for case in cases}
    checks = {check: CheckReport(result, _witness(name, result, by_id, settings)) for check, result in results.items()}
    return EngineReport(name, engine.version, checks)


@dataclass
class _Tally:
    """What one invariant found so far on one engine."""

    check: RunInvariant
    observable: bool
    cases: int = 0
    violations: list[Violation] = field(default_factory=list)
    shown: set[str] = field(default_factory=set)
    possible: set[str] = field(default_factory=set)

    def look(self, run: Run) -> None:
        """Count a run that shows what the check looks at, and every run that the engine broke off: none holds."""
        seen = look(self.check, run)
        found, raised = seen.violations, run.error is not None and not run.injected
        if raised and not found:
            problem = f"the engine raised {run.error}; every case is a valid one"
            found = [Violation(self.check.name, run.case.id, None, problem)]
        self.cases += seen.applies or raised
        self.violations += found
        self.shown |= seen.shown
        self.possible |= seen.possible

    def result(self) -> CheckResult:
        if not self.observable:
            return CheckResult.not_observable("the engine cannot show what this looks at")
        if not self.cases:
            return CheckResult.not_observable("no case of this audit shows what this looks at")
        hidden = [part.name for part in self.check.parts if part.name in self.possible - self.shown]
        return CheckResult.judged(self.cases, self.violations, hidden=tuple(hidden))


def _judge(engine: Engine, case: Case, tallies: Iterable[_Tally]) -> None:
    """Run one case and let every invariant look at it."""
    run = observed_run(engine, case)
    for tally in tallies:
        if tally.observable:
            tally.look(run)


def _check_law(law: Law, engine: Engine, settings: Settings) -> CheckResult:
    try:
        return law.check(engine, tiny() if law.enumerates else settings.pair, settings.seed, settings.quick)
    except ENGINE_ERRORS as error:
        return CheckResult.judged(1, [Violation(law.name, law.name, None, f"the engine raised {error_text(error)}")])


def _witness(engine: str, result: CheckResult, cases: Mapping[str, Case], settings: Settings) -> Witness | None:
    if not result.violations:
        return None
    first = result.violations[0]
    case = cases.get(first.case_id)
    selection = ["--check", first.invariant] if case is None else ["--case", first.case_id]
    if settings.pair != toy():
        selection += ["--target", str(settings.pair.target), "--draft", str(settings.pair.draft)]
    command = ["specproof", "audit", engine, *selection, "--seed", str(settings.seed)]
    command += ["--quick"] if settings.quick else []
    return Witness(first, case, shlex.join(command), len(result.violations) - 1)


CHECKS: Mapping[str, RunInvariant | Law] = {**RUN_INVARIANTS, **LAWS}
"""Everything that an audit can check, in the order of its table."""
