"""How long `specproof fuzz` takes to find each known defect: cases (or bets) and seconds until the first finding.

    python bench/fuzz_times.py [--only ID ...] [--minutes M] [--seed N ...]

One engine at a time, on one core. For every seed a campaign begins anew and ends with its first finding; making the
case smaller is not counted. The table gives the median over the seeds, and which check found it in how many of them.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import Counter
from collections.abc import Iterable

from specproof.defects import CATALOGUE, Defect
from specproof.engine import Engine
from specproof.fuzzing import hunt
from specproof.fuzzing.campaign import Campaign, Finding


def first_finding(engine: Engine, seed: int, minutes: float) -> Finding | None:
    """The first thing that a campaign on one engine finds."""
    deadline = time.monotonic() + 60 * minutes
    campaign = Campaign({engine.name: engine}, seed, lambda efforts: time.monotonic() > deadline)
    return next(campaign.findings(), None)


def row(defect: Defect, seeds: Iterable[int], minutes: float) -> str:
    """A line of the table."""
    found = [first_finding(defect.make(), seed, minutes) for seed in seeds]
    hits = [finding for finding in found if finding is not None]
    start = f"| {defect.id} | {defect.kind} | {len(hits)} of {len(found)} |"
    if not hits:
        return f"{start} | | |"
    checks = Counter(finding.violation.invariant for finding in hits)
    cases = statistics.median(finding.examples for finding in hits)
    seconds = statistics.median(finding.seconds for finding in hits)
    named = "; ".join(f"{name} ({count})" for name, count in checks.most_common())
    return f"{start} {named} | {cases:g} | {seconds:.1f} |"


def main() -> None:
    """Print the table, line by line as it comes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=list(CATALOGUE), metavar="ID", help="these defects only")
    parser.add_argument("--minutes", type=float, default=2.0, help="the most time for each defect and seed")
    parser.add_argument("--seed", nargs="+", type=int, default=[0, 1, 2], metavar="N", help="a campaign for each")
    arguments = parser.parse_args()
    hunt.SHRINKING_SECONDS = 0.0
    print("| defect | kind | found | by | cases or bets | seconds |\n|---|---|---|---|---|---|")
    for name in arguments.only:
        print(row(CATALOGUE[name], arguments.seed, arguments.minutes), flush=True)


if __name__ == "__main__":
    main()
