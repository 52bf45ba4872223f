"""A session for engines that are Python generators of tokens: the shortest way to have a decoder audited."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass

from specproof.engine import Boundary, Observation


@dataclass(frozen=True)
class GeneratorSession:
    """One decode of a generator: a `Session`.

    Attributes:
        tokens: yields the tokens as they are emitted; closed where the harness closes early.
        observe: what the caches hold at the moment of the call. The default shows nothing.
        boundaries: a list to which the engine adds a `Boundary` after prefill and after every round, before it yields
            that round's tokens; empty where it shows no rounds.
    """

    tokens: Generator[int, None, None]
    observe: Callable[[], Observation] = Observation
    boundaries: Sequence[Boundary] = ()

    def __iter__(self) -> Iterator[int]:
        """The tokens, once."""
        return self.tokens

    def close(self) -> None:
        """Close the generator."""
        self.tokens.close()
