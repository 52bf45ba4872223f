"""What may happen in a life: the strategies that rules draw from, and methods that fail on purpose."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from strategies import scripts

from specproof.engine import Fault, ModelSpec
from specproof.errors import InjectedFault
from specproof.pairs import toy
from specproof.transforms import BanArgmax, Scripted

VOCAB_SIZE = 32
TOKENS = st.lists(st.integers(0, VOCAB_SIZE - 1), max_size=3).map(tuple)
BUDGETS = st.one_of(st.integers(6, 20), st.integers(0, 5))
STOPS = st.sampled_from((frozenset(), frozenset(range(0, VOCAB_SIZE, 3)), frozenset(range(1, VOCAB_SIZE, 5))))
"""None, or so many that a block often holds one."""
DRAFTS = st.one_of(
    st.sampled_from(
        (
            ModelSpec(toy().target),  # its twin: everything is accepted
            ModelSpec(toy().target, BanArgmax()),  # never agrees
            ModelSpec(toy().draft),
            None,  # prompt lookup
        )
    ),
    scripts().map(lambda script: ModelSpec(toy().target, Scripted(script))),
)
MIN_PROBS = st.sampled_from((0.0, 0.0, 0.05, 0.2))
WHEN = st.sampled_from(("before", "after"))
FAULTS = st.one_of(
    st.tuples(st.just("draft"), st.builds(Fault, st.integers(0, 5), WHEN)),
    st.tuples(st.sampled_from(("target", "choice", "commit")), st.builds(Fault, st.integers(0, 1), WHEN)),
)
"""Where a fault strikes (a forward of a model, a random choice of the decoder, the drafter's commit), and which one."""


class Failing:
    """A method, or all methods of an object, that raises at its `call`-th use, before or after it did its work."""

    def __init__(self, inner: Any, fault: Fault) -> None:
        self._inner, self._fault, self._calls = inner, fault, 0

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: self(*arguments, method=getattr(self._inner, name))

    def __call__(self, *arguments: Any, method: Any = None) -> Any:
        strikes = self._calls == self._fault.call
        self._calls += 1
        if strikes and self._fault.when == "before":
            raise InjectedFault("injected fault, before the call")
        result = (method or self._inner)(*arguments)
        if strikes:
            raise InjectedFault("injected fault, after the call")
        return result
