"""`block_table`: a paged cache has as many blocks as its rows need, none of them twice, and no other is in use."""

from __future__ import annotations

from collections.abc import Iterator

from specproof.engine import BlockTable, Capabilities
from specproof.invariants.base import Point, RunInvariant, boundary_points, exit_point, place, rows
from specproof.invariants.signatures import CacheName, offsets_of
from specproof.results import Violation
from specproof.runner import Run

NAME = "block_table"
CACHES: tuple[CacheName, ...] = ("target", "draft")


def _check(run: Run) -> list[Violation]:
    found: list[Violation] = []
    for point in (*boundary_points(run), exit_point(run)):
        for cache in CACHES:
            table = _table(point, cache)
            held = offsets_of(point.observation, cache)
            if table is not None and held:
                problems = _problems(table, max(held))
                found += [
                    Violation(NAME, run.case.id, point.round, f"{cache} cache: {problem} ({place(run, point)}).")
                    for problem in problems
                ]
    return found


def _problems(table: BlockTable, held: int) -> Iterator[str]:
    needed = -(-held // table.block_size)
    formula = f"{needed} = {rows(held)} / {table.block_size}, rounded up"
    if len(table.blocks) != needed:
        yield f"the table names {len(table.blocks)} blocks, expected {formula}: give back what no row needs, once"
    if len(set(table.blocks)) != len(table.blocks):
        yield f"the table {table.blocks} names a block twice: rows overwrite each other"
    if table.in_use != len(table.blocks):
        yield (
            f"{table.in_use} blocks of the pool are in use, expected the {len(table.blocks)} of the table: a block "
            "that is taken must be in a table, and one that is given back in none"
        )


def _table(point: Point, cache: CacheName) -> BlockTable | None:
    return point.observation.target_blocks if cache == "target" else point.observation.draft_blocks


def _observable(capabilities: Capabilities) -> bool:
    return capabilities.block_tables


def _applies(run: Run) -> bool:
    points = (*boundary_points(run), exit_point(run))
    return any(_table(point, cache) is not None for point in points for cache in CACHES)


BLOCK_TABLE = RunInvariant(
    name=NAME,
    statement="every paged cache has exactly the blocks that its rows need, no block twice, and no other block of its "
    "pool is in use, at every round boundary and after every exit",
    blind_spot="what is in the blocks (cache_content), and pools that several sequences share",
    observable=_observable,
    applies=_applies,
    check=_check,
)
