"""Sessions for `reference.decoder` and `mlx_impl.decoder`, which have one shape: state, `prefill`, `generate`, `step`.

A decoder runs as it is and decides everything; its `step` is observed, to note each round boundary. A round is
committed as a whole before its first token is handed out, so the caches are at the boundary then. How caches and
distributions are read is each adapter's to know: two kinds of session, with the readings left open.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, Self, TypeVar

import numpy as np

from reference.values import DraftDistribution, Round
from specproof.engine import Boundary, DrafterKind, Observation

OnRound = Callable[[Any, Round], None]
"""Called with the state that a step leaves, and the round it did."""

Processors = Sequence[Callable[[Any, Any], Any]]
MakeDecoder = Callable[[OnRound, Processors], Any]
SomeDecoder = TypeVar("SomeDecoder")


class DecoderSession(ABC):
    """One turn of a decoder: a `Session`. Prefill runs with the first token asked for.

    Args:
        make_decoder: makes the decoder, given what to call after each of its steps, and its logits processors.
        drafter: with its cache.
        target_cache: empty, or with the rows of a prefix of the history.
        history: all tokens before this turn's first.
        max_tokens: budget of this turn.
        shows_contexts: whether a processor that changes nothing notes what the target's processors are shown.
    """

    def __init__(
        self,
        make_decoder: MakeDecoder,
        drafter: Any,
        target_cache: Any,
        history: Sequence[int],
        max_tokens: int,
        shows_contexts: bool,
    ) -> None:
        self.boundaries: list[Boundary] = []
        self.drafter = drafter
        self.target_cache = target_cache
        self._contexts: list[tuple[int, ...]] = []
        self._shows_contexts = shows_contexts
        self._decoder = make_decoder(self._note_boundary, [self._note_context] if shows_contexts else [])
        self._tokens = self._run(history, max_tokens)

    @abstractmethod
    def observe(self) -> Observation:
        """The caches as they are now."""

    @abstractmethod
    def distributions(self, state: Any) -> tuple[DraftDistribution, ...]:
        """The q of the last round's proposals."""

    def log_probabilities(self, state: Any, done: Round | None) -> tuple[float, ...] | None:
        """Those of the tokens that prefill or a round emitted; None where the decoder knows one of them not."""
        known = len(state.tokens) - (len(state.tokens) if done is None else len(done.emitted))
        figures = [item.log_probability for item in state.tokens[known:]]
        return None if None in figures else tuple(figures)

    def allowed(self) -> int | None:
        """The most proposals that the last round might draft, where the decoder chooses that for each round."""
        return None

    def proposer(self) -> DrafterKind | None:
        """Which kind of drafter made the last block, where there are several."""
        return None

    def __iter__(self) -> Iterator[int]:
        """The tokens, as the decoder's `generate` hands them out; every call goes on with the same turn."""
        return self._tokens

    def close(self) -> None:
        """Close the decoder's iterator. After the end: nothing."""
        self._tokens.close()

    def _run(self, history: Sequence[int], max_tokens: int) -> Generator[int, None, None]:
        state = self._decoder.prefill(history, self.drafter, max_tokens, self.target_cache)
        self._note_boundary(state, None)
        generated = self._decoder.generate(state)
        try:
            for item in generated:
                yield item.token
        finally:
            generated.close()

    def _note_context(self, tokens: Any, logits: Any) -> Any:
        self._contexts.append(tuple(np.array(tokens).tolist()))
        return logits

    def _note_boundary(self, state: Any, done: Round | None) -> None:
        contexts, self._contexts = tuple(self._contexts), []
        self.boundaries.append(
            Boundary(
                emitted=tuple(state.emitted),
                round=done,
                observation=self.observe(),
                draft_distributions=None if done is None else self.distributions(state),
                contexts=contexts if self._shows_contexts else None,
                log_probabilities=self.log_probabilities(state, done),
                allowed=None if done is None else self.allowed(),
                proposer=None if done is None else self.proposer(),
            )
        )


class DecoderExactSession(ABC):
    """A decode whose choices the harness makes: an `ExactSession` that steps by one round."""

    def __init__(self, decoder: Any, state: Any) -> None:
        self._decoder = decoder
        self._state = state

    @abstractmethod
    def key(self) -> bytes:
        """History, ending and caches, rounded."""

    @property
    def emitted(self) -> tuple[int, ...]:
        """Tokens of this turn so far."""
        return tuple(self._state.emitted)

    @property
    def finished(self) -> bool:
        """Whether the turn ended."""
        return self._state.finish is not None

    def step(self) -> None:
        """One round."""
        self._decoder.step(self._state)

    def copy(self) -> Self:
        """The same decode in a copied state; models and choices are shared."""
        return type(self)(self._decoder, self._state.copy())

    def extend(self, tokens: Sequence[int], max_tokens: int) -> Self:
        """The next turn, on the caches of this one, which is used up."""
        return type(self)(self._decoder, self._decoder.extend(self._state, tokens, max_tokens))


def observed(decoder_class: type[SomeDecoder], on_round: OnRound) -> type[SomeDecoder]:
    """`decoder_class`, calling `on_round` with the state that each step leaves."""

    class Observed(decoder_class):  # type: ignore[misc, valid-type]  # a base class known only now
        def step(self, state: Any) -> Round:
            done: Round = super().step(state)
            on_round(state, done)
            return done

    return Observed
