"""The oracle as an engine: `reference.decoder` as it is, seen through `reference_sessions`.

`ReferenceEngine` takes the classes to run as arguments: that is where negative controls come in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from importlib.metadata import version
from typing import cast

from reference.acceptance import RULES
from reference.cache import KVCache
from reference.decoder import Decoder
from reference.drafters import Drafter, DraftModel
from reference.prompt_lookup import PromptLookup
from reference.randomness import Randomness, SeededRandomness
from reference.values import SamplingParams
from specproof.adapters.decoder_sessions import OnRound, Processors, observed
from specproof.adapters.reference_sessions import (
    LeanReferenceSession,
    ReferenceExactSession,
    ReferenceSession,
    WrappedModel,
)
from specproof.bad_input import PROBES
from specproof.engine import Capabilities, Case, Choices, Schedule, Session

__all__ = ["DEFERRED", "EAGER", "ENGINE", "ReferenceEngine", "ReferenceExactSession", "ReferenceSession"]

VERSION = version("specproof")


@dataclass(frozen=True)
class ReferenceEngine:
    """The oracle, as an `Engine` that can show everything.

    Attributes:
        name: in reports.
        schedule: when the draft model forwards its last proposal.
        decoder_class, drafter_class, lookup_class, randomness_class: what to run: the oracle's own, or one that is
            wrong on purpose. `lookup_class` is called with the vocabulary size, `randomness_class` with a case's seed.
        target_class, draft_class: the models that it is run on, as `WrappedModel`.
        architecture: what is made of the weights.
        session_class: what is noted at round boundaries.
    """

    name: str = "reference"
    schedule: Schedule = "catch_up"
    decoder_class: type[Decoder] = Decoder
    drafter_class: type[DraftModel] = DraftModel
    lookup_class: Callable[[int], PromptLookup] = PromptLookup
    randomness_class: Callable[[int], SeededRandomness] = SeededRandomness
    target_class: type[WrappedModel] = WrappedModel
    draft_class: type[WrappedModel] = WrappedModel
    architecture: str = "llama"
    session_class: type[ReferenceSession] = ReferenceSession

    @property
    def version(self) -> str:
        """That of the package."""
        return VERSION

    @property
    def capabilities(self) -> Capabilities:
        """Everything."""
        return Capabilities(
            rules=frozenset(RULES),
            drafters=frozenset({"draft_model", "prompt_lookup"}),
            precision="float64",
            draft_schedule=self.schedule,
            target_offsets=True,
            draft_offsets=True,
            cache_contents=True,
            draft_distributions=True,
            injectable_choices=True,
            transforms=True,
            faults=True,
            early_close=True,
            resumable=True,
            min_prob=True,
            sampling=frozenset(field.name for field in fields(SamplingParams)),
            contexts=True,
            architecture=self.architecture,
            block_tables=self.architecture == "paged",
            log_probabilities=True,
            injectable_uniforms=True,
            refusals=frozenset(PROBES),
        )

    def start(self, case: Case) -> ReferenceSession:
        """A decode on fresh caches, with random numbers from the case's seed."""
        return self._session(case, case.prompt, None, None, self.randomness_class(case.seed))

    def start_lean(self, case: Case) -> ReferenceSession:
        """As `start`; the boundaries show rounds, distributions and offsets, and no rows."""
        return replace(self, session_class=LeanReferenceSession).start(case)

    def start_uniform(self, case: Case, uniform: Callable[[], float]) -> ReferenceSession:
        """As `start`, with the uniforms that are given."""
        randomness = self.randomness_class(case.seed)
        randomness.uniform = uniform
        return self._session(case, case.prompt, None, None, randomness)

    def resume(self, session: Session, emitted: Sequence[int], tokens: Sequence[int], case: Case) -> ReferenceSession:
        """A warm start on the caches of `session`: prefill forwards what they do not hold.

        Raises:
            CacheLengthError: they hold more than the history without its last token (at the first token asked for).
        """
        ended = cast(ReferenceSession, session)
        history = (*case.prompt, *emitted, *tokens)
        randomness = self.randomness_class(case.seed)
        return self._session(case, history, ended.target_cache, ended.drafter.cache, randomness)

    def start_exact(self, case: Case, choices: Choices) -> ReferenceExactSession:
        """A decode whose every choice is made by `choices`, prefill's draw included."""
        randomness = cast(Randomness, choices)  # `coupled_categorical` is asked for by the coupled rule alone
        decoder = self._decoder(case, randomness, self.decoder_class, [])
        drafter = self._drafter(case, randomness, None)
        return ReferenceExactSession(decoder, decoder.prefill(case.prompt, drafter, case.max_tokens))

    def _session(
        self, case: Case, history: Sequence[int], target_cache: KVCache | None, draft_cache: KVCache | None,
        randomness: Randomness,
    ) -> ReferenceSession:  # fmt: skip
        def make_decoder(on_round: OnRound, processors: Processors) -> Decoder:
            return self._decoder(case, randomness, observed(self.decoder_class, on_round), processors)

        cache = self.target_class(case.target).new_cache() if target_cache is None else target_cache
        drafter = self._drafter(case, randomness, draft_cache)
        return self.session_class(make_decoder, drafter, cache, history, case.max_tokens, shows_contexts=True)

    def _decoder(
        self, case: Case, randomness: Randomness, decoder_class: type[Decoder], processors: Processors
    ) -> Decoder:
        return decoder_class(
            self.target_class(case.target),
            rule=case.rule,
            sampling=case.sampling,
            randomness=randomness,
            num_draft_tokens=case.num_draft_tokens,
            stop_tokens=case.stop_tokens,
            processors=processors,
        )

    def _drafter(self, case: Case, randomness: Randomness, cache: KVCache | None) -> Drafter:
        if case.draft is None:
            return self.lookup_class(self.target_class(case.target).vocab_size)
        return self.drafter_class(
            self.draft_class(case.draft),
            case.sampling,
            randomness,
            schedule=self.schedule,
            min_prob=case.min_prob,
            draw=randomness.coupled_categorical if case.rule == "coupled" else None,
            cache=cache,
        )


ENGINE = ReferenceEngine()
EAGER = ReferenceEngine("reference-eager", "eager")
DEFERRED = ReferenceEngine("reference-deferred", "deferred")
