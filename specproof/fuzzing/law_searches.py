"""What is looked for in many runs of one case: the laws, in small doses, one drawn case at a time.

Each search is about one law, and a law may have several: its parts draw other cases and judge them otherwise. A search
is named by the regime of its cases, so that a saved case tells how it is judged.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from hypothesis.strategies import SearchStrategy

from specproof import acceptance_rate, bad_input, exact_law, independence, output_distribution
from specproof.architectures import is_grammar
from specproof.engine import Capabilities, Case, Engine, ExactEngine, UniformEngine
from specproof.fuzzing import law_strategies
from specproof.fuzzing.bets import Levels, Stake, acceptance_bet, round_bet, sequence_bet
from specproof.fuzzing.hunt import Clock, Wrong
from specproof.law_cases import sampling_rules
from specproof.results import Violation
from specproof.runner import ENGINE_ERRORS, error_text

Look = Callable[[Engine, Case, Stake], str | None]
"""(engine, case, stake) -> what is wrong, in a sentence."""


@dataclass(frozen=True)
class LawSearch:
    """One part of a law.

    Attributes:
        regime: of its cases, and its key in `LAW_SEARCHES`.
        law: the name of the law.
        kind: what its cases are called where they are counted; a "bet" has a level, all else leaves nothing to chance.
        cases: how many are drawn in its turn.
        applies: whether an engine shows enough.
        draw: what is drawn for an engine.
        look: what is wrong in a case.
    """

    regime: str
    law: str
    kind: str
    cases: int
    applies: Callable[[Engine], bool]
    draw: Callable[[Engine, str], SearchStrategy[Case]]
    look: Look

    @property
    def is_bet(self) -> bool:
        """Whether it needs a level."""
        return self.kind == "bet"

    def judge(self, engine: Engine, case: Case, stake: Stake) -> Violation | None:
        """What is wrong in a case; whatever the engine raises is."""
        try:
            problem = self.look(engine, case, stake)
        except ENGINE_ERRORS as error:
            problem = f"the engine raised {error_text(error)}"
        return None if problem is None else Violation(self.law, case.id, None, problem)


@dataclass
class LawJudge:
    """Judges cases of an engine, each bet at a level of its own.

    Attributes:
        search: what is looked for.
        engine: whose output.
        levels: of the campaign.
        clock: ends a bet undecided.
        spent: counts the draws.
    """

    search: LawSearch
    engine: Engine
    levels: Levels
    clock: Clock
    spent: Counter[str]

    def __call__(self, case: Case) -> Wrong | None:
        """What is wrong in a case."""
        level = self.levels.take() if self.search.is_bet else None
        stake = Stake(level or 0.0, self.clock.is_over)
        violation = self.search.judge(self.engine, case, stake)
        if stake.draws:
            self.spent["draw"] += stake.draws
        return None if violation is None else Wrong(violation, level=level)


def _samples(capabilities: Capabilities) -> bool:
    return bool(sampling_rules(capabilities)) and not capabilities.lossy


def _is_drawn(engine: Engine) -> bool:
    return _samples(engine.capabilities)


def _is_enumerated(engine: Engine) -> bool:
    shown = exact_law.observable(engine.capabilities) and isinstance(engine, ExactEngine)
    return shown and bool(law_strategies.exact_rules(engine.capabilities)) and not engine.capabilities.lossy


def _repeats(engine: Engine) -> bool:
    return bool(sampling_rules(engine.capabilities))


def _has_draft_model(engine: Engine) -> bool:
    return "draft_model" in engine.capabilities.drafters


def _takes_uniforms(engine: Engine) -> bool:
    capabilities = engine.capabilities
    given = capabilities.injectable_uniforms and isinstance(engine, UniformEngine) and capabilities.transforms
    return given and _has_draft_model(engine) and bool(law_strategies.exact_rules(capabilities))


def _shows_rounds(engine: Engine) -> bool:
    """A mask that follows from the context leaves no pair of constant distributions."""
    capabilities = engine.capabilities
    shows = capabilities.rounds and capabilities.transforms and _has_draft_model(engine) and _samples(capabilities)
    unmasked = not is_grammar(capabilities.architecture)
    return shows and unmasked and any(rule in capabilities.rules for rule in independence.JOINT_RULES)


def _shows_rates(engine: Engine) -> bool:
    return acceptance_rate.observable(engine.capabilities) and not engine.capabilities.lossy


def _refuses(engine: Engine) -> bool:
    return bad_input.observable(engine.capabilities)


def _enumerate(engine: Engine, case: Case, stake: Stake) -> str | None:
    assert isinstance(engine, ExactEngine), "only such engines have these cases"
    measured = exact_law.measure(engine, case)
    tolerance = exact_law.TOLERANCE[engine.capabilities.precision]
    return exact_law.violation(measured, tolerance).message if measured.variation > tolerance else None


def _repeat(engine: Engine, case: Case, stake: Stake) -> str | None:
    return _first(independence.repeats(engine, case, [case.seed]))


def _give_end_points(engine: Engine, case: Case, stake: Stake) -> str | None:
    return _first(independence.end_points(engine, case))


def _spoil(engine: Engine, case: Case, stake: Stake) -> str | None:
    name = case.id.rpartition("/")[2]
    with tempfile.TemporaryDirectory() as folder:
        spoilt = bad_input.PROBES[name].spoil(case, Path(folder))
        return _first(bad_input.probed(engine, name, replace(spoilt, id=case.id)))


def _first(violations: list[Violation]) -> str | None:
    return violations[0].message if violations else None


LAW_SEARCHES: Mapping[str, LawSearch] = {
    search.regime: search
    for search in (
        LawSearch("refusals", bad_input.NAME, "bad input", 48, _refuses, law_strategies.bad_input_cases, _spoil),
        LawSearch("repetitions", independence.NAME, "repetition", 10, _repeats, law_strategies.repeated_cases, _repeat),
        LawSearch(
            "end_points", independence.NAME, "end point", 4, _takes_uniforms, law_strategies.end_point_cases,
            _give_end_points,
        ),
        LawSearch(
            "exact_law", exact_law.NAME, "enumeration", 6, _is_enumerated, law_strategies.exact_cases, _enumerate
        ),
        LawSearch("joint_law", independence.NAME, "bet", 1, _shows_rounds, law_strategies.joint_cases, round_bet),
        LawSearch("rates", acceptance_rate.NAME, "bet", 2, _shows_rates, law_strategies.rate_cases, acceptance_bet),
        LawSearch(
            "output_law", output_distribution.NAME, "bet", 1, _is_drawn, law_strategies.output_cases, sequence_bet
        ),
    )
}  # fmt: skip
"""By regime, in the order of their turns: what is cheap first."""
