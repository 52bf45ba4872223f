"""How long `specproof fuzz` takes to find each known defect: cases and seconds of CPU until the first finding.

    python bench/fuzz_times.py [--only ID ...] [--minutes M] [--seed N ...]

One engine at a time. For every seed a campaign begins anew and ends with its first finding; making the
case smaller is not counted. The first table gives, for every defect, the median over the seeds, and which check found
it in how many of them; the second, for every kind of defect, how many were found with every seed.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from specproof.defects import CATALOGUE, KINDS, Defect
from specproof.engine import Engine
from specproof.fuzzing import hunt, sources
from specproof.fuzzing.campaign import Campaign, Finding

Found = Sequence[Finding | None]
"""The first finding of every seed; None where there was none."""


def first_finding(engine: Engine, seed: int, minutes: float) -> Finding | None:
    """The first thing that a campaign on one engine finds."""
    deadline = time.process_time() + 60 * minutes
    is_over = lambda efforts: time.process_time() > deadline  # noqa: E731
    campaign = Campaign({engine.name: engine}, seed, is_over, now=time.process_time)
    return next(campaign.findings(), None)


def row(defect: Defect, found: Found) -> str:
    """A line of the first table."""
    hits = [finding for finding in found if finding is not None]
    start = f"| {defect.id} | {defect.kind} | {len(hits)} of {len(found)} |"
    if not hits:
        return f"{start} | | |"
    checks = Counter(finding.violation.invariant for finding in hits)
    named = "; ".join(f"{name} ({count})" for name, count in checks.most_common())
    cases = statistics.median(finding.examples for finding in hits)
    kinds = "/".join(dict.fromkeys(finding.kind for finding in hits))
    return f"{start} {named} | {cases:g} {kinds} | {_seconds(found):.1f} |"


def _seconds(found: Found) -> float:
    """The median over the seeds that found it."""
    return statistics.median(finding.seconds for finding in found if finding is not None)


def kind_rows(by_defect: Mapping[str, Found]) -> list[str]:
    """The lines of the second table."""
    kinds: dict[str, list[Found]] = defaultdict(list)
    for name, found in by_defect.items():
        kinds[CATALOGUE[name].kind].append(found)
    lines = []
    for kind in (kind for kind in KINDS if kind in kinds):
        every = [found for found in kinds[kind] if None not in found]
        times = [_seconds(found) for found in every]
        spread = f"{statistics.median(times):.1f} | {max(times):.1f}" if times else " | "
        lines.append(f"| {kind} | {len(every)} of {len(kinds[kind])} | {spread} |")
    return lines


def main() -> None:
    """Print the first table, line by line as it comes, and then the second."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=list(CATALOGUE), metavar="ID", help="these defects only")
    parser.add_argument("--minutes", type=float, default=2.0, help="the most CPU time for each defect and seed")
    parser.add_argument("--seed", nargs="+", type=int, default=[0, 1, 2], metavar="N", help="a campaign for each")
    arguments = parser.parse_args()
    hunt.SHRINKING_SECONDS = sources.EVIDENCE_SECONDS = -1.0  # the time until something is caught is all that counts
    print("| defect | kind | found | by | cases | seconds |\n|---|---|---|---|---|---|")
    by_defect: dict[str, Found] = {}
    for name in arguments.only:
        found = [first_finding(CATALOGUE[name].make(), seed, arguments.minutes) for seed in arguments.seed]
        by_defect[name] = found
        print(row(CATALOGUE[name], found), flush=True)
    print("\n| kind | found | median seconds | slowest |\n|---|---|---|---|")
    print("\n".join(kind_rows(by_defect)))


if __name__ == "__main__":
    main()
