"""An interrupt before any line of given functions, as a signal would raise it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from types import FrameType
from typing import Any


@contextmanager
def _before_lines(functions: tuple[Callable[..., Any], ...], act: Callable[[], None]) -> Iterator[None]:
    """Call `act` before every line that these functions run."""
    codes = {function.__code__ for function in functions}

    def on_line(frame: FrameType, event: str, argument: object) -> Any:
        if event == "line":
            act()
        return on_line

    before = sys.gettrace()
    sys.settrace(lambda frame, event, argument: on_line if frame.f_code in codes else None)
    try:
        yield
    finally:
        sys.settrace(before)


@contextmanager
def interrupted_at(line: int, *functions: Callable[..., Any]) -> Iterator[None]:
    """Raise KeyboardInterrupt before the n-th line that these functions run, and only there."""
    seen = count()

    def interrupt() -> None:
        if next(seen) == line:
            raise KeyboardInterrupt

    with _before_lines(functions, interrupt):
        yield


def lines_run(call: Callable[[], object], *functions: Callable[..., Any]) -> int:
    """How many lines of these functions a call runs: what `interrupted_at` may be given for it."""
    seen = 0

    def one_more() -> None:
        nonlocal seen
        seen += 1

    with _before_lines(functions, one_more):
        call()
    return seen
