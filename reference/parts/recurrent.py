"""A recurrent state: layers 0, 2, .. are gated linear recurrences over convolved keys; the others attend.

A recurrence cannot be run backwards, and there are no rows to trim. So a layer keeps a checkpoint from before the last
block and the inputs since: going back means to start at the checkpoint and advance by the inputs that stay, that is
the pending token and the accepted proposals.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from reference.cache import KVCache, LayerCache
from reference.errors import CacheLengthError
from reference.parts.rows import Rows, cache_of
from reference.parts.short_convolution import convolve, convolve_next, empty_tail, tails
from reference.transformer import Layer, Transformer, WholePass, rotary_angles

Floats = NDArray[np.float64]

ROOM = 8
"""Inputs behind the checkpoint, and so tokens that can be taken back, besides all those of the last forward: what
a drafter needs, whose block is several forwards."""


@dataclass(frozen=True)
class RecurrentState:
    """What a recurrent layer knows after `offset` tokens.

    Attributes:
        offset: how many tokens it has seen.
        memory: [n_kv_heads, d, d]: M after `M = diag(gate) M + convolved key x value` for every token.
        tail: [n_kv_heads, TAPS - 1, d], the state of the convolution over keys.
    """

    offset: int
    memory: Floats
    tail: Floats

    @classmethod
    def empty(cls, num_kv_heads: int, head_dim: int) -> RecurrentState:
        """Before any token."""
        return cls(0, np.zeros((num_kv_heads, head_dim, head_dim)), empty_tail(num_kv_heads, head_dim))

    def advanced(self, key: Floats, value: Floats) -> RecurrentState:
        """After one token more, its key and value [n_kv_heads, d]."""
        mixed, tail = convolve_next(self.tail, key)
        memory = gate(key)[:, :, None] * self.memory + mixed[:, :, None] * value[:, None, :]
        return RecurrentState(self.offset + 1, memory, tail)


def gate(keys: Floats) -> Floats:
    """How much of each entry of the memory a token keeps, in (1/2, 1). Any shape -> the same."""
    kept: Floats = 0.75 + 0.25 * np.tanh(0.5 * keys)
    return kept


@dataclass(frozen=True)
class RecurrentLayer:
    """A state that can go back: a checkpoint and the inputs since.

    Attributes:
        checkpoint: the state that a rollback starts from.
        state: the state now.
        staged_keys, staged_values: [n_kv_heads, S, d], the inputs between the two.
        room: inputs that stay staged when others come.
        latest: the states after each of the tokens that came last; what their queries read.
    """

    checkpoint: RecurrentState
    state: RecurrentState
    staged_keys: Floats
    staged_values: Floats
    room: int
    latest: tuple[RecurrentState, ...] = ()

    @classmethod
    def empty(cls, num_kv_heads: int, head_dim: int, room: int = ROOM) -> Self:
        """Before any token."""
        start, nothing = RecurrentState.empty(num_kv_heads, head_dim), np.zeros((num_kv_heads, 0, head_dim))
        return cls(start, start, nothing, nothing, room)

    @property
    def offset(self) -> int:
        """How many tokens the state has seen."""
        return self.state.offset

    @property
    def first(self) -> int:
        """The position it shows: only the last, for a state has no rows of earlier ones."""
        return max(self.offset - 1, 0)

    @property
    def keys(self) -> Floats:
        """The memory as one row [n_kv_heads, 1, d * d]; no row before the first token."""
        return _as_row(self.state.memory, self.offset)

    @property
    def values(self) -> Floats:
        """The tail of the convolution as one row [n_kv_heads, 1, (TAPS - 1) * d]."""
        return _as_row(self.state.tail, self.offset)

    def with_rows(self, keys: Floats, values: Floats) -> Self:
        """Itself after T more tokens [n_kv_heads, T, d]. The checkpoint stays before all T of them."""
        surplus = max(int(self.staged_keys.shape[1]) - self.room, 0)
        *_, checkpoint = self.run(self.checkpoint, self.staged_keys[:, :surplus], self.staged_values[:, :surplus])
        _, *states = self.run(self.state, keys, values)
        return replace(
            self,
            checkpoint=checkpoint,
            state=states[-1],
            latest=tuple(states),
            staged_keys=np.concatenate([self.staged_keys[:, surplus:], keys], axis=1),
            staged_values=np.concatenate([self.staged_values[:, surplus:], values], axis=1),
        )

    def first_rows(self, length: int) -> Self:
        """Itself as it was after `length` tokens: from the checkpoint on through the inputs that stay.

        Raises:
            CacheLengthError: that is before the checkpoint.
        """
        if length >= self.offset:
            return self
        if length == 0:
            return self.empty(len(self.staged_keys), self.staged_keys.shape[-1], self.room)
        keep = length - self.checkpoint.offset
        if keep < 0:
            raise CacheLengthError(
                f"a recurrent layer after {self.offset} tokens cannot go back to {length}: its checkpoint is at "
                f"{self.checkpoint.offset}; trim to 0 and forward the tokens again"
            )
        keys, values = self.staged_keys[:, :keep], self.staged_values[:, :keep]
        *_, state = self.run(self.checkpoint, keys, values)
        return replace(self, state=state, staged_keys=keys, staged_values=values)

    def run(self, state: RecurrentState, keys: Floats, values: Floats) -> Iterator[RecurrentState]:
        """`state`, and the state after each of T inputs [n_kv_heads, T, d]."""
        yield state
        for row in range(keys.shape[1]):
            state = state.advanced(keys[:, row], values[:, row])
            yield state


def _as_row(array: Floats, offset: int) -> Floats:
    """[n, a, b] -> [n, 1, a * b], or [n, 0, a * b] where no token was seen."""
    return array.reshape(len(array), 1, -1)[:, : min(offset, 1)]


class RecurrentTransformer(Transformer):
    """A Llama whose layers 0, 2, .. are recurrences over their keys and values; the others attend to rows."""

    layer_class: type[RecurrentLayer] = RecurrentLayer
    """What a recurrent layer keeps its state in."""
    room: int = ROOM
    """Inputs that such a layer keeps staged."""

    def is_recurrent(self, index: int) -> bool:
        """Whether a layer has a state in place of rows."""
        return index % 2 == 0

    def new_cache(self) -> KVCache:
        """States for the recurrent layers, plain rows for the others."""
        shape = (self.config.num_kv_heads, self.config.head_dim)
        nothing = np.zeros((shape[0], 0, shape[1]))
        layers: list[Rows | LayerCache] = [
            self.layer_class.empty(*shape, self.room) if self.is_recurrent(index) else LayerCache(nothing, nothing)
            for index in range(self.config.num_layers)
        ]
        return cache_of(layers)

    def _read(self, index: int, layer: Layer, x: Floats, queries: Floats, held: LayerCache,
              positions: NDArray[np.int64]) -> Floats:  # fmt: skip
        """As `Transformer._read`; a recurrent layer recalls from the memories of its last T tokens."""
        if isinstance(held, RecurrentLayer):
            memories = np.stack([state.memory for state in held.latest], axis=1)  # [n_kv, T, d, d]
            return self._recall(layer, x, queries, memories)
        return super()._read(index, layer, x, queries, held, positions)

    def forward_without_cache(self, tokens: Sequence[int]) -> WholePass:
        """As `Transformer.forward_without_cache`; a recurrent layer gives for every token the state behind it.

        No recurrence is run: a memory is the sum over earlier tokens of what each left, times all gates since.
        """
        x = self._embed(tokens)  # [T] -> [T, D]
        causal = np.tri(len(x), dtype=np.bool_)  # [T, T]
        angles = rotary_angles(np.arange(len(x)), self.config)  # [T, d/2]
        rows = []
        for index, layer in enumerate(self.layers):
            queries, keys, values = self._project(layer, x, angles)
            if self.is_recurrent(index):
                memories, behind = all_memories(keys, values), tails(keys)
                rows.append(
                    (memories.reshape(*keys.shape[:2], -1), behind.reshape(*keys.shape[:2], -1))
                )  # [n_kv, T, ...]
                x = self._recall(layer, x, queries, memories)
            else:
                rows.append((keys, values))
                x = self._mix(layer, x, queries, keys, values, causal)  # [T, D]
        return WholePass(self._finish(x).logits, tuple(rows))

    def _recall(self, layer: Layer, x: Floats, queries: Floats, memories: Floats) -> Floats:
        """The rest of a recurrent layer: each query reads its token's memory, then SwiGLU. [T, D] -> [T, D].

        It is attention of every token to the d rows of its own memory, without a softmax.
        """
        n_heads, length, d = queries.shape
        grouped = queries.reshape(len(memories), -1, length, 1, d)  # [n_kv, group, T, 1, d]
        read = (grouped @ memories[:, None] / np.sqrt(d)).reshape(n_heads, length, d)  # [n_heads, T, d]
        x = x + read.transpose(1, 0, 2).reshape(length, n_heads * d) @ layer["self_attn.o_proj"].T
        return self._feed_forward(layer, x)

    def _feed_forward(self, layer: Layer, x: Floats) -> Floats:
        """SwiGLU alone: `_mix` with attention that reads zeros. [T, D] -> [T, D]."""
        c = self.config
        nothing = np.zeros((c.num_kv_heads, 1, c.head_dim))
        return self._mix(layer, x, np.zeros((c.num_heads, len(x), c.head_dim)), nothing, nothing,
                         np.ones((len(x), 1), dtype=np.bool_))  # fmt: skip


class RecurrentTarget(RecurrentTransformer):
    """As a target, whose block is one forward: the checkpoint is the state before the last block."""

    room = 0


def all_memories(keys: Floats, values: Floats) -> Floats:
    """The memory behind every token, without a recurrence: [n_kv, T, d] twice -> [n_kv, T, d, d]."""
    since = np.cumsum(np.log(gate(keys)), axis=1)  # [n_kv, T, d]
    kept = np.exp(since[:, :, None] - since[:, None])  # [n_kv, T, S, d]: gates of the tokens behind S, up to T
    kept *= np.tri(keys.shape[1])[:, :, None]
    memories: Floats = np.einsum("ntsd,nsd,nse->ntde", kept, convolve(keys), values)
    return memories
