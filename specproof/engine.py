"""What an engine offers to be audited: a small protocol, and what it declares that it can show.

An engine runs a `Case` and hands out tokens; beside them it may show what its caches hold at every round
boundary, what its drafter drew from, and so on. `Capabilities` says which of these it can show. What an
engine cannot show is reported as *not observable*, never as passed.

Which engines there are, and how one is loaded by its name, is in `registry`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from reference.values import DraftDistribution, Round, SamplingParams

Floats = NDArray[np.float64]
Schedule = Literal["catch_up", "eager", "deferred"]
DrafterKind = Literal["draft_model", "prompt_lookup"]


class LogitTransform(Protocol):
    """A change of a model's logits that depends on nothing but the logits and their positions.

    Applied by every adapter to what the model's forward returns, after its caches were really filled:
    this is how a regime is forced without touching the decoder.
    """

    def __call__(self, logits: Floats, positions: NDArray[np.int64]) -> Floats:
        """Logits [T, V] of the rows at `positions` [T] -> logits [T, V]."""
        ...


@dataclass(frozen=True)
class Fault:
    """An exception to be raised by a model: at its `call`-th forward (from 0, prefill included).

    `when` is "before" the real forward (nothing was written) or "after" it (rows were written).
    Adapters raise `specproof.errors.InjectedFault`.
    """

    call: int
    when: Literal["before", "after"]


@dataclass(frozen=True)
class ModelSpec:
    """A model of a case: a Hugging Face Llama folder, what is done to its forward, and what is made of its weights.

    `architecture` is a name in `specproof.architectures`.
    """

    folder: Path
    transform: LogitTransform | None = None
    fault: Fault | None = None
    architecture: str = "llama"


@dataclass(frozen=True)
class Case:
    """One decode for an engine to run; everything its outcome may depend on.

    Attributes:
        id: unique within an audit, made of regime, rule, k and the rest; names the case on the command line.
        regime: the name of the regime it belongs to.
        target, draft: the two models. `draft` is None for a drafter without a model (`prompt_lookup`).
        prompt: token ids, at least one.
        rule: an acceptance rule's name.
        sampling: serves target and drafter alike.
        num_draft_tokens: k, the most proposals in a round.
        max_tokens: the most tokens to emit in this turn.
        stop_tokens: emitting one of them ends the turn.
        seed: for the engine's own random numbers.
        drafter: which kind of drafter.
        min_prob: the drafter stops the block where its most probable token is below this.
        close_after: close the token stream after so many tokens; None lets it run to its end.
    """

    id: str
    regime: str
    target: ModelSpec
    draft: ModelSpec | None
    prompt: tuple[int, ...]
    rule: str
    sampling: SamplingParams
    num_draft_tokens: int
    max_tokens: int
    stop_tokens: frozenset[int] = frozenset()
    seed: int = 0
    drafter: DrafterKind = "draft_model"
    min_prob: float = 0.0
    close_after: int | None = None


@dataclass(frozen=True)
class Capabilities:
    """What an engine knows and what it can show. The defaults claim nothing beyond tokens and rounds.

    Attributes:
        rules: acceptance rules it knows, by their names in `reference.acceptance.RULES`.
        drafters: kinds of drafter it knows.
        precision: of its logits and caches; decides the tolerances.
        offset_convention: its constant distance from prompt + emitted - 1.
        draft_schedule: when its drafter forwards the last proposal (DESIGN: `deferred` is one row short
            after a full acceptance, by design; the other two never are).
        target_offsets, draft_offsets: it shows how many rows every layer holds at a boundary.
        cache_contents: it shows the keys and values too.
        rounds: it shows its rounds (what was drafted, how much accepted). Otherwise only tokens are checked.
        draft_distributions: it shows the q of each proposal.
        injectable_choices: its random choices can be made by the harness (`ExactEngine`).
        transforms: its models can be wrapped by a `LogitTransform`: forced regimes can be run.
        faults: its models can be made to raise (`Fault`).
        early_close: its token stream can be closed before its end.
        resumable: a further turn can be run on the caches that a turn left (`resume`).
        min_prob: it honours `Case.min_prob`.
        sampling: fields of `SamplingParams` it honours; a case that sets any other is not run.
        contexts: it shows which tokens its logits processors saw.
        architecture: what it makes of the weights of a checkpoint, by its name in `specproof.architectures`: the oracle
            does the same, without a cache.
        block_tables: its caches are paged, and it shows their tables.
        log_probabilities: it shows the log-probability of every token that prefill or a round emitted.
        injectable_uniforms: the uniforms in [0, 1) that its coins and draws are made from can be given to it
            (`UniformEngine`).
        refusals: bad inputs that it can be given, and must refuse: names of `specproof.bad_input.PROBES`.
        lossy: it declares that its output is not the target's distribution; the audit measures how far.
    """

    rules: frozenset[str]
    drafters: frozenset[DrafterKind] = frozenset({"draft_model"})
    precision: Literal["float64", "float32"] = "float32"
    offset_convention: int = 0
    draft_schedule: Schedule = "catch_up"
    target_offsets: bool = False
    draft_offsets: bool = False
    cache_contents: bool = False
    rounds: bool = True
    draft_distributions: bool = False
    injectable_choices: bool = False
    transforms: bool = False
    faults: bool = False
    early_close: bool = False
    resumable: bool = False
    min_prob: bool = False
    sampling: frozenset[str] = frozenset({"temperature"})
    contexts: bool = False
    architecture: str = "llama"
    block_tables: bool = False
    log_probabilities: bool = False
    injectable_uniforms: bool = False
    refusals: frozenset[str] = frozenset()
    lossy: bool = False


@dataclass(frozen=True)
class CacheRows:
    """The live rows of one layer: keys and values, float64 [n_kv_heads, rows, head_dim] (positions applied).

    `first` is the position of row 0: not 0 for a layer that forgets. A layer with a state in place of rows shows one
    row, at the last position: the state, [n_kv_heads, 1, size], as `keys`, and that of its convolution as `values`.
    """

    keys: Floats
    values: Floats
    first: int = 0


@dataclass(frozen=True)
class BlockTable:
    """Where a paged cache has its rows.

    Attributes:
        blocks: ids, in the order of the rows.
        block_size: rows in each.
        in_use: blocks of the pool that are taken, by this table or by nobody.
    """

    blocks: tuple[int, ...]
    block_size: int
    in_use: int


@dataclass(frozen=True)
class Observation:
    """What the caches hold, layer by layer. None: cannot be seen (or, for the drafter, it has no cache)."""

    target_offsets: tuple[int, ...] | None = None
    draft_offsets: tuple[int, ...] | None = None
    target_rows: tuple[CacheRows, ...] | None = None
    draft_rows: tuple[CacheRows, ...] | None = None
    target_blocks: BlockTable | None = None
    draft_blocks: BlockTable | None = None


@dataclass(frozen=True)
class Boundary:
    """One round boundary.

    Attributes:
        emitted: all tokens of this turn up to here, those of prefill included. E is its length.
        round: the round that led here; None for the boundary that prefill leaves.
        draft_distributions: q of each proposal of that round, as it was drawn from; None: cannot be seen.
        contexts: the token sequences that the target's logits processors saw in that round (in the first
            boundary: in prefill), in order; None: cannot be seen.
        observation: the caches, here.
        log_probabilities: log p of each token that the round (in the first boundary: prefill) emitted, p being what
            plain decoding draws it from, after temperature, penalties and truncation; None: cannot be seen.
        allowed: the most proposals that the engine let the drafter make in that round, where it chooses that for each
            round: 0 in a pause. None: it does not say, and k and the budget alone limit a round.
        proposer: the kind of drafter that made the round's proposals, where several take turns; None: the case's.
    """

    emitted: tuple[int, ...]
    round: Round | None
    observation: Observation = field(default_factory=Observation)
    draft_distributions: tuple[DraftDistribution, ...] | None = None
    contexts: tuple[tuple[int, ...], ...] | None = None
    log_probabilities: tuple[float, ...] | None = None
    allowed: int | None = None
    proposer: DrafterKind | None = None


@runtime_checkable
class Session(Protocol):
    """One decode in progress."""

    @property
    def boundaries(self) -> Sequence[Boundary]:
        """Every boundary passed so far, prefill's first. Empty where rounds cannot be seen."""
        ...

    def __iter__(self) -> Iterator[int]:
        """The tokens, as they are emitted. Raises whatever the engine raises."""
        ...

    def close(self) -> None:
        """End the turn now, in the engine's own way. After the end: nothing."""
        ...

    def observe(self) -> Observation:
        """The caches as they are now: asked for after the end, a close or an exception."""
        ...


@runtime_checkable
class Engine(Protocol):
    """A speculative decoder under audit."""

    @property
    def name(self) -> str:
        """In reports."""
        ...

    @property
    def version(self) -> str:
        """In reports."""
        ...

    @property
    def capabilities(self) -> Capabilities:
        """What it knows and can show."""
        ...

    def start(self, case: Case) -> Session:
        """Begin a decode on fresh caches. May prefill at once or at the first token."""
        ...


@runtime_checkable
class ResumableEngine(Engine, Protocol):
    """An engine that can run a further turn on the caches that an ended, closed or aborted turn left."""

    def resume(self, session: Session, emitted: Sequence[int], tokens: Sequence[int], case: Case) -> Session:
        """Continue after `case.prompt + emitted + tokens` on the caches of `session`.

        Args:
            session: the one that ended; it is used up.
            emitted: the tokens that the caller received from it.
            tokens: what the next turn adds to the history; may be empty.
            case: settings of the next turn; its `prompt` is that of the first turn.
        """
        ...


class Choices(Protocol):
    """Who makes the random choices: `reference.randomness` has a seeded and an enumerating one."""

    def bernoulli(self, probability: float) -> bool:
        """One coin."""
        ...

    def categorical(self, probabilities: Floats) -> int:
        """One draw from a distribution [V]."""
        ...


class ExactSession(Protocol):
    """A decode whose random choices are made by the harness."""

    @property
    def emitted(self) -> tuple[int, ...]:
        """Tokens of this turn so far."""
        ...

    @property
    def finished(self) -> bool:
        """Whether the turn ended."""
        ...

    def step(self) -> None:
        """One round (or whatever the engine's smallest unit is)."""
        ...

    def copy(self) -> ExactSession | None:
        """An independent copy of the decode, caches included; None where the engine cannot copy."""
        ...

    def key(self) -> bytes:
        """Equal for two states that behave alike: history and caches, after rounding."""
        ...


@runtime_checkable
class ExactEngine(Engine, Protocol):
    """An engine whose random choices can be made by the harness."""

    def start_exact(self, case: Case, choices: Choices) -> ExactSession:
        """Begin a decode (prefill's draw included) whose every random choice is made by `choices`."""
        ...


@runtime_checkable
class UniformEngine(Engine, Protocol):
    """An engine whose uniforms can be given to it: the end points 0 and just under 1 are never met by chance."""

    def start_uniform(self, case: Case, uniform: Callable[[], float]) -> Session:
        """Begin a decode whose every coin and draw is made, by the engine itself, from `uniform()` in [0, 1)."""
        ...
