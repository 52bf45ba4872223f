"""The `mlx_lm` package as it is installed: `mlx_lm.generate.speculative_generate_step` on its own cache classes.

The engine's: prefill, drafting, the verify pass, acceptance, rewinding, clean-up, the order of events, keys and
values, penalties and bias (`mlx_lm.sample_utils.make_logits_processors`), and the draws of ordinary runs: its
`make_sampler`, with the process-wide generator of MLX, which is seeded by `Case.seed` when a turn's first token is
asked for (so two turns must not be read alternately). It serves both models, since the engine takes only one sampler.

The adapter's: the order of temperature and filters (see `mlx_lm_sampling`); and, in an exact law, the draws, which the
harness then makes in place of the sampler.

The distributions p and q are computed beside the sampler, from the log-probabilities that it is given, by
`reference.sampling`: a sampler shows tokens, not what it draws them from. `honest_q` therefore says of this engine that
the drafter's logits are the right ones and that what was drawn has mass; how it was drawn is for
`output_distribution` to see.

Ending at a stop token is the adapter's too, since the engine's generator knows none: as in `mlx_lm.stream_generate`,
iteration ends at the stop token and the generator is closed.

The engine leaves the last prompt token pending: after prefill E = 0 and both caches hold P - 1 rows. A further turn
is asked for by a user with one fixed convention: the caches hold prompt + emitted - 1 rows, so what is fed is the
last token received and the new ones.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, fields
from importlib.metadata import version
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx_lm.generate import speculative_generate_step
from mlx_lm.models.cache import KVCache, make_prompt_cache
from mlx_lm.utils import load_model

from reference.errors import CheckpointError, InvalidSetting
from reference.values import SamplingParams
from specproof.adapters.mlx_lm_rounds import PREFILL_STEP, EnumeratedRecorder, RoundRecorder
from specproof.adapters.mlx_lm_sampling import penalty_processors, sampler_of
from specproof.adapters.mlx_models import ObservedModel, observation, state_key
from specproof.adapters.remembered import Models
from specproof.engine import Boundary, Capabilities, Case, Choices, ExactSession, ModelSpec, Observation, Session

RULES = frozenset({"greedy", "sampler_match"})
"""What the engine does, by name: it has one rule, sampler match, which is greedy at temperature 0."""


@dataclass(frozen=True)
class Caches:
    """The two halves of the prompt cache that the engine is given: `mlx_lm.models.cache.KVCache`, one a layer."""

    target: list[Any]
    draft: list[Any]


class MlxLmSession:
    """One turn of `speculative_generate_step`: a `Session`.

    Args:
        case: what to decode; checked by `MlxLmEngine`.
        fed: the tokens given to the engine as its prompt.
        caches: the caches given to the engine, written in place.
        choices: makes the draws; None leaves them to the package's sampler.
        models: folder -> model; by default with a memory of its forwards.
    """

    def __init__(
        self,
        case: Case,
        fed: Sequence[int],
        caches: Caches,
        choices: Choices | None = None,
        models: Callable[[Path], Any] | None = None,
    ) -> None:
        self.caches = caches
        self._stop_tokens = case.stop_tokens
        self._seed = case.seed
        recorder = (
            RoundRecorder(case.sampling, sampler_of(case.sampling), self.observe, len(fed))
            if choices is None
            else EnumeratedRecorder(case.sampling, choices, self.observe, len(fed))
        )
        self._recorder = recorder
        model_of = models or MODELS.remembered
        self._produced = speculative_generate_step(
            mx.array(list(fed), mx.uint32),
            ObservedModel(model_of(case.target.folder), "target", case.target, recorder.before_target_forward),
            ObservedModel(model_of(_draft(case).folder), "draft", _draft(case), recorder.before_draft_forward),
            num_draft_tokens=case.num_draft_tokens,
            max_tokens=case.max_tokens,
            sampler=recorder.sampler,
            logits_processors=recorder.processors(penalty_processors(case.sampling)),
            prompt_cache=[*caches.target, *caches.draft],
            prefill_step_size=PREFILL_STEP,
        )
        self._tokens = self._deliver()

    @property
    def boundaries(self) -> Sequence[Boundary]:
        """Every boundary passed so far."""
        return tuple(self._recorder.boundaries)

    @property
    def emitted(self) -> tuple[int, ...]:
        """Tokens of this turn so far."""
        return tuple(self._recorder.emitted)

    def __iter__(self) -> Iterator[int]:
        """The tokens of the turn; every call goes on with the same turn."""
        return self._tokens

    def close(self) -> None:
        """Close the engine's generator. After the end: nothing."""
        self._produced.close()
        self._recorder.closed()
        self._tokens.close()

    def observe(self) -> Observation:
        """The caches as they are now."""
        return observation(self.caches.target, self.caches.draft)

    def _deliver(self) -> Generator[int, None, None]:
        mx.random.seed(self._seed)
        for token, _, from_draft in self._produced:
            self._recorder.deliver(int(token), from_draft)
            if int(token) in self._stop_tokens:
                self._produced.close()
                self._recorder.finish("stop")
                yield int(token)
                return
            yield int(token)
        self._recorder.finish("length")


class ExactMlxLmSession:
    """A turn whose draws the harness makes: an `ExactSession` that steps by one token.

    The draws of a round are made when its first token is asked for.
    """

    def __init__(self, session: MlxLmSession) -> None:
        self._session = session
        self._tokens = iter(session)
        self._finished = False

    @property
    def emitted(self) -> tuple[int, ...]:
        """Tokens of this turn so far."""
        return self._session.emitted

    @property
    def finished(self) -> bool:
        """Whether the turn ended: known once a step found no further token."""
        return self._finished

    def step(self) -> None:
        """Ask for one token."""
        self._finished = next(self._tokens, None) is None

    def copy(self) -> ExactSession | None:
        """None: the engine is a generator, and its state cannot be copied."""
        return None

    def key(self) -> bytes:
        """Tokens and caches, rounded. Within a round it does not tell what the engine has decided already."""
        return state_key(self.emitted, self._session.observe())


class MlxLmEngine:
    """`mlx_lm` under audit: a `ResumableEngine` and an `ExactEngine`."""

    name = "mlx_lm"
    version = f"{version('mlx-lm')} (mlx {version('mlx')})"
    capabilities = Capabilities(
        rules=RULES,
        precision="float32",
        offset_convention=0,
        draft_schedule="deferred",
        target_offsets=True,
        draft_offsets=True,
        cache_contents=True,
        rounds=True,
        draft_distributions=True,
        injectable_choices=True,
        transforms=True,
        faults=True,
        early_close=True,
        resumable=True,
        sampling=frozenset(field.name for field in fields(SamplingParams)),
        contexts=True,
    )

    def start(self, case: Case) -> Session:
        """Begin a decode on fresh caches; the engine prefills at the first token."""
        return self._begin(case, None)

    def start_lean(self, case: Case) -> Session:
        """As `start`, on the models themselves: a time is theirs."""
        _check(case)
        return MlxLmSession(case, case.prompt, _fresh_caches(case), models=MODELS.plain)

    def resume(self, session: Session, emitted: Sequence[int], tokens: Sequence[int], case: Case) -> Session:
        """Feed the last token received and the new ones, on the caches of `session`.

        After a failed prefill nothing is committed, and the package promises nothing about the caches: the whole
        history is fed to fresh ones.

        Raises:
            InvalidSetting: the session is another engine's.
        """
        if not isinstance(session, MlxLmSession):
            raise InvalidSetting(f"session is a {type(session).__name__}; give one that this engine started")
        _check(case)
        history = [*case.prompt, *emitted, *tokens]
        if not session.boundaries:
            return MlxLmSession(case, history, _fresh_caches(case))
        held = len(case.prompt) + len(emitted) - 1 + self.capabilities.offset_convention
        return MlxLmSession(case, history[held:], session.caches)

    def start_exact(self, case: Case, choices: Choices) -> ExactSession:
        """Begin a decode whose draws are made by `choices`; the engine tosses no coins."""
        return ExactMlxLmSession(self._begin(case, choices))

    def _begin(self, case: Case, choices: Choices | None) -> MlxLmSession:
        _check(case)
        return MlxLmSession(case, case.prompt, _fresh_caches(case), choices)


ENGINE = MlxLmEngine()


def _check(case: Case) -> None:
    """Refuse what the engine has no notion of, rather than to run something else under its name."""
    if case.rule not in RULES:
        raise InvalidSetting(f"rule is {case.rule!r}; mlx_lm has only sampler_match, which is greedy at temperature 0")
    if case.rule == "greedy" and case.sampling.temperature > 0:
        raise InvalidSetting(
            f"temperature is {case.sampling.temperature} under rule 'greedy'; mlx_lm is greedy at temperature 0 only, "
            "give rule 'sampler_match'"
        )
    if case.min_prob > 0:
        raise InvalidSetting(f"min_prob is {case.min_prob}; mlx_lm always drafts its full block, give 0")


def _fresh_caches(case: Case) -> Caches:
    """The package's own caches for both models."""
    return Caches(
        make_prompt_cache(MODELS.plain(case.target.folder)), make_prompt_cache(MODELS.plain(_draft(case).folder))
    )


def _draft(case: Case) -> ModelSpec:
    if case.draft is None or case.drafter != "draft_model":
        raise InvalidSetting(
            f"drafter is {case.drafter!r}, draft is {case.draft}; mlx_lm needs a draft model, give one"
        )
    return case.draft


def _load(folder: Path) -> Any:
    """A folder's model, in the precision that the capabilities declare, whatever its checkpoint is stored in.

    Raises:
        CheckpointError: `mlx_lm` cannot load it.
    """
    try:
        model, _ = load_model(folder)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"mlx_lm cannot load {folder} ({type(error).__name__}: {error}); give a Hugging Face folder with "
            "config.json and model.safetensors"
        ) from error
    model.set_dtype(mx.float32)
    return model


MODELS = Models(_load, KVCache)
