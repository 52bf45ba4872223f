"""A finding as a colleague would report it: the smallest case, the first bad round, expected and actual, the defect
that it looks like, and the command that shows it again. All of it is in the text; nothing has to be looked up.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import fields
from pathlib import Path

from reference.values import Round, SamplingParams
from specproof.audit import CHECKS
from specproof.engine import Case, LogitTransform, ModelSpec, Observation
from specproof.exact_turns import TwoTurnCase
from specproof.fuzzing.campaign import Finding
from specproof.fuzzing.case_files import folder_name
from specproof.invariants.base import boundary_points, exit_point, rows_expected
from specproof.invariants.signatures import Signature, offsets_of, predicted
from specproof.runner import Run
from specproof.transforms import Scripted


def bug_report(finding: Finding, file: Path | None) -> str:
    """The report, in lines that are not wrapped. `file`: where the finding was saved."""
    violation, run = finding.violation, finding.run
    lines = [
        f"{finding.engine} breaks {violation.invariant}: {CHECKS[violation.invariant].statement}.",
        "",
        f"  {_what_happened(finding)}",
        "",
        f"  smallest case   {_effort(finding)}",
        *(f"    {line}" for line in case_lines(finding.case)),
    ]
    if run is not None:
        lines += [f"  {line}" for line in (*_round_lines(run, violation.round), *_offset_table(run, finding.known))]
    for known in finding.known:
        lines.append(f"  known defect    {known.id}: {known.meaning} ({known.source})")
    if finding.also:
        lines.append(f"  also broken     {', '.join(finding.also)}")
    if file is not None:
        lines.append(f"  again           specproof fuzz --replay {file}")
    return "\n".join(lines)


def _what_happened(finding: Finding) -> str:
    """The message; without the defects that this one run matches, where all wrong runs together tell which it is."""
    message = finding.violation.message
    return message.partition(" Matches ")[0] if finding.known else message


def _effort(finding: Finding) -> str:
    end = "nothing smaller fails" if finding.shrunk else "time ran out before all smaller ones were tried"
    return (
        f"(found with the {_ordinal(finding.examples)} {finding.kind}, after {finding.seconds:.1f} s; "
        f"{finding.attempts} more were tried to make it smaller: {end})"
    )


def _ordinal(number: int) -> str:
    ending = "th" if 10 <= number % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def case_lines(case: Case) -> Iterator[str]:
    """A case in words: everything that its outcome depends on."""
    yield f"prompt {_tokens(case.prompt)}"
    yield f"k = {case.num_draft_tokens}, rule {case.rule}, {sampling_words(case.sampling)}"
    yield f"at most {case.max_tokens} tokens, seed {case.seed}{_endings(case)}"
    yield f"target: {model_words(case.target)}"
    yield f"drafter: {'prompt lookup' if case.draft is None else model_words(case.draft)}"
    if isinstance(case, TwoTurnCase):
        yield f"then {_tokens(case.added)} is added, and at most {case.second} tokens follow"


def _endings(case: Case) -> str:
    parts = [f", stop tokens {_tokens(sorted(case.stop_tokens))}"] if case.stop_tokens else []
    parts += [f", drafter stops below {case.min_prob:g}"] if case.min_prob else []
    parts += [f", closed after {case.close_after} tokens"] if case.close_after is not None else []
    return "".join(parts)


def sampling_words(sampling: SamplingParams) -> str:
    """The parameters that do something."""
    plain = SamplingParams()
    changed = [f for f in fields(sampling) if getattr(sampling, f.name) != getattr(plain, f.name)]
    others = [f"{f.name} {_value(getattr(sampling, f.name))}" for f in changed if f.name != "temperature"]
    return ", ".join([f"temperature {sampling.temperature:g}", *others])


def _value(value: object) -> str:
    return f"{value:g}" if isinstance(value, int | float) else str(value)


def model_words(spec: ModelSpec) -> str:
    """A model, what is done to its logits, and whether it raises."""
    words = folder_name(spec.folder)
    if spec.transform is not None:
        words += f", {transform_words(spec.transform)}"
    if spec.fault is not None:
        words += f", raises {spec.fault.when} its forward {spec.fault.call}"
    return words


def transform_words(transform: LogitTransform) -> str:
    """A transform; of a script, the script and what happens on either side."""
    if not isinstance(transform, Scripted):
        return f"logits through {transform!r}"
    script = " ".join("1" if agrees else "0" for agrees in transform.script)
    return f"by position, script {script} over and over: at 1 {transform.agree!r}, at 0 {transform.differ!r}"


def _round_lines(run: Run, index: int | None) -> Iterator[str]:
    """The first bad round, or the end of the turn."""
    if index is None or index + 1 >= len(run.boundaries):
        yield f"first bad place  the end of the turn, by {run.ending}; received {_tokens(run.emitted)}"
        if run.error is not None:
            yield f"raised          {run.error}"
        return
    done = run.boundaries[index + 1].round
    if done is not None:
        yield f"first bad round {index}: {round_words(done)}"


def round_words(done: Round) -> str:
    """What a round did."""
    finish = f"; the turn ends by {done.finish}" if done.finish else ""
    proposed = _tokens(done.drafted) if done.drafted else "nothing"
    return f"proposed {proposed}, accepted {done.num_accepted}, emitted {_tokens(done.emitted)}{finish}"


def _offset_table(run: Run, known: Iterable[object]) -> Iterator[str]:
    """The rows of both caches at every boundary, beside what they must be and what known defects predict."""
    points = [*boundary_points(run), exit_point(run)]
    if all(offsets_of(point.observation, "target") is None for point in points):
        return
    signatures = [found for found in known if isinstance(found, Signature)]
    names = [f"{found.cache} by {found.id}" for found in signatures]
    guesses = [predicted(found, run) or () for found in signatures]
    yield "rows            " + "".join(f"{title:>16}" for title in ("k", "a", "expected", "target", "drafter", *names))
    for index, point in enumerate(points):
        done = None if point.boundary is None else point.boundary.round
        counts = ("", "") if done is None else (str(len(done.drafted)), str(done.num_accepted))
        name = "at the end" if point.boundary is None else f"round {index - 1}" if index else "after prefill"
        cells = [*counts, str(rows_expected(run, point)[0]), *_held(point.observation)]
        cells += [_layers(guess[index]) if index < len(guess) else "" for guess in guesses]
        yield f"  {name:<14}" + "".join(f"{cell:>16}" for cell in cells)


def _held(observation: Observation) -> tuple[str, str]:
    return _layers(offsets_of(observation, "target")), _layers(offsets_of(observation, "draft"))


def _layers(rows: tuple[int, ...] | None) -> str:
    """One number where all layers agree."""
    if not rows:
        return "?"
    return str(rows[0]) if len(set(rows)) == 1 else " ".join(map(str, rows))


def _tokens(tokens: Iterable[int]) -> str:
    return " ".join(map(str, tokens)) or "nothing"
