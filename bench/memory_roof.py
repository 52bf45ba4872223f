"""The most that plain decoding could reach: every weight is read once a token, as fast as this machine reads memory."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from mlx.utils import tree_flatten

FLOATS = 2**26
"""Of the array that is read to measure the bandwidth: 256 MiB, more than any cache holds."""


def weight_bytes(model: Any) -> int:
    """What a forward must read: every weight once (the embedding is the head, too)."""
    return sum(weight.nbytes for _, weight in tree_flatten(model.parameters()))


def bandwidth(repeats: int = 7) -> float:
    """Bytes per second that this machine reads: the best of some sums of squares, by one thread for each core."""
    parts = np.array_split(np.ones(FLOATS, dtype=np.float32), os.cpu_count() or 1)
    best = float("inf")
    with ThreadPoolExecutor(len(parts)) as threads:
        for _ in range(repeats):
            start = time.perf_counter()
            list(threads.map(lambda part: np.dot(part, part), parts))
            best = min(best, time.perf_counter() - start)
    return 4 * FLOATS / best
