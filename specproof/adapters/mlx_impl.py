"""`mlx_impl.decoder` as an engine.

The decoder runs as it is, and decides everything; `decoder_sessions` notes its round boundaries. Its models are wrapped
(`mlx_models`), and look repeated forwards up (`remembered`), but in a lean session, which is timed. Where the sampling
has penalties, a logits processor notes what the target's processors are shown; elsewhere there is none, so that the
decoder takes the path that it takes for most users.

A further turn is a warm start: `prefill` of the whole history on the caches that the last turn left.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

import mlx.core as mx
import numpy as np

from mlx_impl.acceptance import RULES, AcceptanceRule, Decide, Decision
from mlx_impl.cache import KVCache, make_cache, offsets
from mlx_impl.decoder import Decoder, DecoderState
from mlx_impl.drafters import Drafter, DraftModel, Schedule
from mlx_impl.model_cache import ModelCache
from mlx_impl.prompt_lookup import PromptLookup
from mlx_impl.randomness import KeyedRandomness, Randomness
from mlx_impl.transformer import Transformer, load
from reference.errors import InvalidSetting
from reference.values import DraftDistribution, SamplingParams
from specproof.adapters.decoder_sessions import (
    DecoderExactSession,
    DecoderSession,
    OnRound,
    Processors,
    observed,
)
from specproof.adapters.mlx_drafting import NotedLength, proposer_of
from specproof.adapters.mlx_models import ObservedModel, PromptCache, observation, state_key
from specproof.adapters.remembered import Models
from specproof.bad_input import PROBES
from specproof.engine import Capabilities, Case, Choices, DrafterKind, Floats, Observation, Session

LoadModel = Callable[[Path], Any]

NOT_REFUSED = {"vocabulary_content", "target_context", "draft_context"}
"""Bad inputs that cannot be given to it: it knows tokenizers only if it is handed them, and computes any position."""


class MlxImplSession(DecoderSession):
    """One turn of the MLX decoder."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._length = self._decoder.draft_length = NotedLength(self._decoder.draft_length)

    def observe(self) -> Observation:
        """The caches as they are now."""
        return _observe(self.target_cache, self.drafter)

    def distributions(self, state: DecoderState) -> tuple[DraftDistribution, ...]:
        """The q of the last round's proposals, from the device."""
        return tuple(DraftDistribution.from_dense(q) for q in np.array(state.block.probabilities).astype(np.float64))

    def allowed(self) -> int | None:
        """What the decoder's draft length chose; None for a fixed one, which never pauses."""
        return self._length.allowed

    def proposer(self) -> DrafterKind | None:
        """As a chain tells it."""
        return proposer_of(self.drafter)


class LeanMlxImplSession(MlxImplSession):
    """A turn that can be timed: nothing is copied from the device at its boundaries."""

    def observe(self) -> Observation:
        """The offsets alone."""
        draft_cache = self.drafter.cache
        return Observation(offsets(self.target_cache), None if draft_cache is None else offsets(draft_cache.layers))

    def distributions(self, state: DecoderState) -> tuple[DraftDistribution, ...]:
        """None."""
        return ()


class HostChoices:
    """A source of randomness for the decoder that asks `Choices` on the host, row by row."""

    def __init__(self, choices: Choices) -> None:
        self.choices = choices

    def bernoulli(self, probabilities: mx.array) -> mx.array:
        """Coins: [n] -> bool [n]."""
        return mx.array([self.choices.bernoulli(float(p)) for p in np.array(probabilities)], mx.bool_)

    def categorical(self, probabilities: mx.array) -> mx.array:
        """Draws: [n, V] -> uint32 [n]."""
        return mx.array([self.choices.categorical(row) for row in _normalised(probabilities)], mx.uint32)

    def coupled_categorical(self, probabilities: mx.array, position: int) -> mx.array:
        """Always refused.

        Raises:
            InvalidSetting: the noise of `coupled` is continuous, there are no outcomes to choose from.
        """
        raise InvalidSetting(
            "the coupled rule draws by continuous noise, which nobody can choose; compare its output with plain "
            "sampling under the same seed instead"
        )


class CoinsToTheFirstRejection(HostChoices):
    """For a rule that judges proposals one by one: coins behind the first that fails decide nothing.

    They are not tossed but fixed at success, or the same round would be enumerated once for each of their outcomes.
    (Fixed at failure, they would hide a decoder that counts them.)
    """

    def bernoulli(self, probabilities: mx.array) -> mx.array:
        """Coins: [n] -> bool [n]."""
        wanted = np.array(probabilities)
        coins = (wanted > 0).tolist()
        for index, probability in enumerate(wanted):
            coins[index] = self.choices.bernoulli(float(probability))
            if not coins[index]:
                break
        return mx.array(coins, mx.bool_)


class DrawsToTheFirstMismatch(HostChoices):
    """For a rule that draws from every p at once: draws behind the first that differs from its proposal decide nothing.

    They are not drawn but fixed at the most probable token, as in `mlx_lm_rounds`. A decoder that used one would
    thereby emit tokens that are not distributed as the target's.
    """

    def __init__(self, choices: Choices, drafted: Sequence[int]) -> None:
        super().__init__(choices)
        self._drafted = drafted

    def categorical(self, probabilities: mx.array) -> mx.array:
        """Draws: [n, V] -> uint32 [n]."""
        rows = _normalised(probabilities)
        tokens = [int(row.argmax()) for row in rows]
        for index, row in enumerate(rows):
            tokens[index] = self.choices.categorical(row)
            if index < len(self._drafted) and tokens[index] != self._drafted[index]:
                break
        return mx.array(tokens, mx.uint32)


def _normalised(probabilities: mx.array) -> Floats:
    """Rows [n, V] in float64, normalised again there, or weights would not add up to 1."""
    dense = np.array(probabilities).astype(np.float64)
    rows: Floats = dense / dense.sum(axis=-1, keepdims=True)
    return rows


def enumerable(rule: AcceptanceRule) -> AcceptanceRule:
    """The rule, spared the choices that decide nothing; one that is not known by name is left all of them.

    `block` is left all, too: whichever coins of it were not tossed, some decoder that is wrong in them would be hidden.
    """

    def decide(p: mx.array, q: mx.array, drafted: mx.array, randomness: HostChoices, position: int) -> Decision:
        if rule.name == "rejection":
            randomness = CoinsToTheFirstRejection(randomness.choices)
        elif rule.name == "sampler_match":
            randomness = DrawsToTheFirstMismatch(randomness.choices, np.array(drafted).tolist())
        return rule.decide(p, q, drafted, randomness, position)

    return replace(rule, decide=cast(Decide, decide))  # the exact session's decoder has `HostChoices`, nothing else


class MlxImplExactSession(DecoderExactSession):
    """A decode of the MLX decoder whose choices the harness makes."""

    def key(self) -> bytes:
        """History, ending and caches, rounded."""
        seen = _observe(self._state.target_cache, self._state.drafter)
        return repr(self._state.finish).encode() + state_key(self._state.history, seen)


@dataclass(frozen=True)
class MlxImplEngine:
    """The MLX decoder, as an `Engine` that can show everything.

    Attributes:
        name: in reports.
        decoder_class, drafter_class: what to run: the package's own, or one that is wrong on purpose.
        session_class: what is noted at round boundaries.
        schedule: when the draft model forwards its last proposal.
    """

    name: str = "mlx_impl"
    decoder_class: type[Decoder] = Decoder
    drafter_class: type[DraftModel] = DraftModel
    session_class: type[MlxImplSession] = MlxImplSession
    schedule: Schedule = "catch_up"

    @property
    def version(self) -> str:
        """That of the package, and of MLX."""
        return f"{version('specproof')} (mlx {version('mlx')})"

    @property
    def capabilities(self) -> Capabilities:
        """Everything, in float32."""
        return Capabilities(
            rules=frozenset(RULES),
            drafters=frozenset({"draft_model", "prompt_lookup"}),
            precision="float32",
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
            log_probabilities=True,
            refusals=frozenset(PROBES) - NOT_REFUSED,
        )

    def start(self, case: Case) -> MlxImplSession:
        """A decode on fresh caches, with keys from the case's seed."""
        return self._session(case, case.prompt, self._model)

    def start_lean(self, case: Case) -> MlxImplSession:
        """As `start`; the boundaries show rounds and offsets only."""
        lean = replace(self, session_class=LeanMlxImplSession)
        return lean._session(case, case.prompt, self._load)  # a time is that of the model itself

    def resume(self, session: Session, emitted: Sequence[int], tokens: Sequence[int], case: Case) -> MlxImplSession:
        """A warm start on the caches of `session`: prefill forwards what they do not hold.

        Raises:
            InvalidSetting: the session is another engine's.
            CacheLengthError: the caches hold more than the history without its last token (at the first token).
        """
        if not isinstance(session, MlxImplSession):
            raise InvalidSetting(f"session is a {type(session).__name__}; give one that this engine started")
        history = (*case.prompt, *emitted, *tokens)
        draft_cache = session.drafter.cache
        held = None if draft_cache is None else draft_cache.layers
        return self._session(case, history, self._model, session.target_cache, held)

    def start_exact(self, case: Case, choices: Choices) -> MlxImplExactSession:
        """A decode whose every choice is made by `choices`, prefill's draw included."""
        randomness = HostChoices(choices)
        decoder = self._decoder(case, randomness, self.decoder_class, [], self._model)
        decoder.rule = enumerable(decoder.rule)
        drafter = self._drafter(case, randomness, None, self._model)
        return MlxImplExactSession(decoder, decoder.prefill(case.prompt, drafter, case.max_tokens))

    def _session(
        self,
        case: Case,
        history: Sequence[int],
        models: LoadModel,
        target_cache: Sequence[Any] | None = None,
        draft_cache: Sequence[Any] | None = None,
    ) -> MlxImplSession:
        randomness = KeyedRandomness(case.seed)

        def make_decoder(on_round: OnRound, processors: Processors) -> Decoder:
            return self._decoder(case, randomness, observed(self.decoder_class, on_round), processors, models)

        cache = self._cache("target", case.target.folder, target_cache)
        drafter = self._drafter(case, randomness, draft_cache, models)
        return self.session_class(make_decoder, drafter, cache, history, case.max_tokens, case.sampling.has_penalties)

    def _decoder(
        self,
        case: Case,
        randomness: Randomness,
        decoder_class: type[Decoder],
        processors: Processors,
        models: LoadModel,
    ) -> Decoder:
        return decoder_class(
            ObservedModel(models(case.target.folder), "target", case.target),
            rule=case.rule,
            sampling=case.sampling,
            randomness=randomness,
            num_draft_tokens=case.num_draft_tokens,
            stop_tokens=case.stop_tokens,
            processors=processors,
        )

    def _drafter(self, case: Case, randomness: Randomness, cache: Sequence[Any] | None, models: LoadModel) -> Drafter:
        if case.draft is None:
            return PromptLookup(MODELS.plain(case.target.folder).args.vocab_size)
        model = ObservedModel(models(case.draft.folder), "draft", case.draft)
        draw = randomness.coupled_categorical if case.rule == "coupled" else None
        held = self._cache("draft model", case.draft.folder, cache)
        return self.drafter_class(
            model, case.sampling, randomness, min_prob=case.min_prob, draw=draw, cache=held, schedule=self.schedule
        )

    def _load(self, folder: Path) -> Any:
        """The model of a folder."""
        return MODELS.plain(folder)

    def _model(self, folder: Path) -> Any:
        """The same, with its memory."""
        return MODELS.remembered(folder)

    def _cache(self, name: str, folder: Path, layers: Sequence[Any] | None) -> ModelCache:
        """The cache of a folder's model, on the layers that it has already; None: fresh ones."""
        return ModelCache(name, make_cache(self._load(folder)) if layers is None else layers)


ENGINE = MlxImplEngine()
DEFERRED = MlxImplEngine("mlx_impl-deferred", schedule="deferred")


def _observe(target_cache: Sequence[Any], drafter: Drafter) -> Observation:
    draft_cache = None if drafter.cache is None else cast(PromptCache, drafter.cache)
    return observation(cast(PromptCache, target_cache), draft_cache)


def _load(folder: Path) -> Transformer:
    """A folder's model, in the precision that the capabilities declare: the trained pair is stored in float16.

    Raises:
        CheckpointError: it is not a readable Llama checkpoint.
    """
    model = load(folder)
    model.set_dtype(mx.float32)
    return model


MODELS = Models(_load, KVCache)
