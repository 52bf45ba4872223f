"""Rounds of `mlx_lm.generate.speculative_generate_step`, seen from inside.

It is one generator: it hands out tokens and says nothing about rounds. But whatever it does, it does through objects
that its caller supplies (two models, two caches, a sampler, logits processors), and `RoundRecorder` listens to all:

- the first drafter forward after a verify pass starts a round, and what the caches hold just before it is the state
  at the boundary, its rewind included (without proposals, k = 0, the target's forward starts the round);
- sampler calls between a drafter forward and the next target forward are proposals, with their q; sampler calls
  after the target forward are the target's answers, with their p;
- tokens and their `from_draft` flags are taken as the generator hands them out.

Which forwards are prefill follows from the number of tokens fed: all but the last, in steps of `PREFILL_STEP`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import mlx.core as mx
import numpy as np
from mlx_lm.sample_utils import greedy_sampler

from reference.sampling import distribution
from reference.values import DraftDistribution, Finish, Round, SamplingParams
from specproof.engine import Boundary, Choices, Floats, Observation

PREFILL_STEP = 512
"""`prefill_step_size` of `speculative_generate_step`: its default, passed explicitly."""

Phase = Literal["prefill", "draft", "verify"]
Context = tuple[int, ...]
LogitsProcessor = Callable[[mx.array, mx.array], mx.array]
Sampler = Callable[[mx.array], mx.array]
"""Log-probabilities [n, V] -> tokens [n]."""


@dataclass
class _OpenRound:
    """What was seen of the round in progress; `q` and `p` are dense distributions [V], one a sampler row."""

    drafted: list[int] = field(default_factory=list)
    q: list[Floats] = field(default_factory=list)
    answers: list[int] = field(default_factory=list)
    p: list[Floats] = field(default_factory=list)
    contexts: list[Context] = field(default_factory=list)
    delivered: list[int] = field(default_factory=list)
    complete: bool = False

    @property
    def num_agreeing(self) -> int:
        """Proposals before the first that differs from the target's answer: what sampler match accepts."""
        for index, (token, answer) in enumerate(zip(self.drafted, self.answers, strict=False)):
            if token != answer:
                return index
        return min(len(self.drafted), len(self.answers))

    @property
    def is_reachable(self) -> bool:
        """Whether the next answer can be emitted: no earlier one differed from its proposal."""
        return self.num_agreeing == len(self.answers)

    def as_round(self, finish: Finish | None) -> Round:
        """The round as it is reported.

        A complete round says itself how many proposals were accepted: all it handed out but the last token. One that
        was cut says only how far it came; then the answers tell how many would have been accepted.

        p is left out where there are processors: behind the first mismatch they are shown the target's answers in
        place of the proposals, so that the engine has no p of the proposals there (and needs none).
        """
        accepted = len(self.delivered) - 1 if self.complete else self.num_agreeing
        tested = min(accepted + 1, len(self.drafted))
        pairs = list(zip(self.p, self.q, self.drafted, strict=False))
        return Round(
            drafted=tuple(self.drafted),
            num_accepted=accepted,
            emitted=tuple(self.delivered),
            p=() if self.contexts else tuple(float(p[token]) for p, _, token in pairs),
            q=tuple(float(q[token]) for _, q, token in pairs),
            sum_min=tuple(float(np.minimum(p, q).sum()) for p, q, _ in pairs[:tested]),
            sum_prod=tuple(float(p @ q) for p, q, _ in pairs[:tested]),
            finish=finish,
        )


class RoundRecorder:
    """Listens to models, sampler and processors of one turn, and keeps its boundaries.

    Args:
        sampling: what p and q are computed by, in `reference.sampling`, from the log-probabilities that the engine
            hands to its sampler. Penalties and bias are in them already: the engine applies them.
        draw: draws the tokens: the package's sampler, log-probabilities [n, V] -> tokens [n].
        observe: reads both caches.
        num_fed: tokens given to the generator as its prompt.
    """

    def __init__(
        self, sampling: SamplingParams, draw: Sampler, observe: Callable[[], Observation], num_fed: int
    ) -> None:
        self.boundaries: list[Boundary] = []
        self.emitted: list[int] = []
        self._sampling = replace(
            sampling,
            repetition_penalty=1.0,
            presence_penalty=0.0,
            frequency_penalty=0.0,
            penalty_window=0,
            logit_bias={},
        )
        self._draw = draw
        self._observe = observe
        prefill_forwards = -(-(num_fed - 1) // PREFILL_STEP)
        self._prefill_left = {"draft": prefill_forwards, "target": prefill_forwards}
        self._shows_contexts = False
        self._phase: Phase = "prefill"
        self._round: _OpenRound | None = None

    def before_draft_forward(self) -> None:
        """The drafter is about to run."""
        if self._is_prefill("draft"):
            return
        if self._phase != "draft":
            self._start_round()
        self._phase = "draft"

    def before_target_forward(self) -> None:
        """The target is about to run."""
        if self._is_prefill("target"):
            return
        if self._phase != "draft":
            self._start_round()
        self._phase = "verify"

    def sampler(self, logprobs: mx.array) -> mx.array:
        """The sampler given to the engine: log-probabilities [n, V] -> tokens [n], uint32.

        n is 1 while drafting, k + 1 in a verify pass (or k + 1 calls with n = 1, when there are processors).
        """
        dense = np.array(logprobs.astype(mx.float32)).astype(np.float64)  # [n, V]
        distributions = [distribution(row, self._sampling, ()) for row in dense]
        tokens = self.drawn(logprobs, distributions)
        drafting = self._phase == "draft"
        (self.open.drafted if drafting else self.open.answers).extend(np.array(tokens).tolist())
        (self.open.q if drafting else self.open.p).extend(distributions)
        return tokens

    def drawn(self, logprobs: mx.array, distributions: Sequence[Floats]) -> mx.array:
        """The tokens [n] for log-probabilities [n, V], the distributions that `sampling` makes of which are given."""
        return self._draw(logprobs)

    def processors(self, penalties: Sequence[LogitsProcessor]) -> list[LogitsProcessor] | None:
        """The processors to give to the engine: first one that notes what it is shown, then `penalties`.

        None where there are no penalties, so that the engine takes the path that it takes for most users;
        contexts cannot be seen then.
        """
        if not penalties:
            return None
        self._shows_contexts = True
        return [self._note_context, *penalties]

    def _note_context(self, tokens: mx.array, logits: mx.array) -> mx.array:
        """A logits processor that changes nothing and notes the tokens [n] it was shown in the verify pass.

        Only for positions whose answer can be emitted: behind the first mismatch it is shown the target's answers in
        place of the proposals, which nothing depends on.
        """
        if self._phase == "verify" and self.open.is_reachable:
            self.open.contexts.append(tuple(np.array(tokens).tolist()))
        return logits

    def deliver(self, token: int, from_draft: bool) -> None:
        """The engine handed out a token; one that is not the drafter's ends its round."""
        self.open.delivered.append(token)
        self.open.complete = not from_draft
        self.emitted.append(token)

    def finish(self, finish: Finish) -> None:
        """The turn ended: its last round, cut or not, leads to the state in which the caches were left."""
        if self._round is not None:
            self._add_boundary(finish)

    def closed(self) -> None:
        """The turn was closed by the caller: a boundary was reached only if the round had handed out all its tokens."""
        if self._round is not None and self._round.complete:
            self._add_boundary(None)

    @property
    def open(self) -> _OpenRound:
        """The round in progress."""
        assert self._round is not None, "the engine drew or handed out a token before any forward of a round"
        return self._round

    def _is_prefill(self, model: Literal["draft", "target"]) -> bool:
        self._prefill_left[model] -= 1
        return self._prefill_left[model] >= 0

    def _start_round(self) -> None:
        self._add_boundary(None)
        self._round = _OpenRound()

    def _add_boundary(self, finish: Finish | None) -> None:
        """Close the open round, or, before the first one, record what prefill left."""
        closing, self._round = self._round, None
        contexts: tuple[Context, ...] = () if closing is None else tuple(closing.contexts)
        self.boundaries.append(
            Boundary(
                emitted=tuple(self.emitted),
                round=None if closing is None else closing.as_round(finish),
                observation=self._observe(),
                draft_distributions=None if closing is None else tuple(map(DraftDistribution.from_dense, closing.q)),
                contexts=contexts if self._shows_contexts else None,
            )
        )


class EnumeratedRecorder(RoundRecorder):
    """A recorder whose draws the harness makes.

    Args:
        choices: makes them, by the distributions that `sampling` gives.
        sampling, observe, num_fed: as for `RoundRecorder`.
    """

    def __init__(
        self, sampling: SamplingParams, choices: Choices, observe: Callable[[], Observation], num_fed: int
    ) -> None:
        super().__init__(sampling, greedy_sampler, observe, num_fed)
        self._choices = choices

    def drawn(self, logprobs: mx.array, distributions: Sequence[Floats]) -> mx.array:
        """Proposals, or the target's answers at the next positions of the block.

        Behind the first answer that differs from its proposal, positions are conditioned on a token that will not be
        emitted: their answers must never be used. They are not drawn but fixed at the most probable token. An engine
        that used one would thereby emit tokens that are not distributed as the target's; and enumerating all choices
        stays affordable.
        """
        tokens = [int(np.argmax(row)) for row in distributions]
        expected = self.open.drafted[len(self.open.answers) :]  # nothing while drafting
        if not self.open.is_reachable:
            expected, distributions = [], []
        for index, row in enumerate(distributions):
            tokens[index] = self._choices.categorical(row)
            if index < len(expected) and tokens[index] != expected[index]:
                break
        return mx.array(tokens, mx.uint32)
