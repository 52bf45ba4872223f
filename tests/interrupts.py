"""An interrupt before any line of given functions, as a signal would raise it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from types import FrameType
from typing import Any


@contextmanager
def interrupted_at(line: int, *functions: Callable[..., Any]) -> Iterator[None]:
    """Raise KeyboardInterrupt before the n-th line that these functions run, and only there."""
    codes, seen = {function.__code__ for function in functions}, count()

    def on_line(frame: FrameType, event: str, argument: object) -> Any:
        if event == "line" and next(seen) == line:
            raise KeyboardInterrupt
        return on_line

    before = sys.gettrace()
    sys.settrace(lambda frame, event, argument: on_line if frame.f_code in codes else None)
    try:
        yield
    finally:
        sys.settrace(before)
