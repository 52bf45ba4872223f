"""What the machine needs of a decoder that it drives step by step: how its parts are made, read, trimmed and stored.

The oracle and the MLX decoder have one shape (`prefill`, `step`, `extend`, `generate` on a state), so a driver is only
what differs. Each takes the classes to run: the package's own, or ones that are wrong on purpose.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol, get_args

import numpy as np

from reference import decoder as reference_decoder
from reference import drafters as reference_drafters
from reference.cache import KVCache, LayerCache
from reference.prompt_lookup import PromptLookup
from reference.randomness import SeededRandomness
from reference.values import DraftDistribution
from specproof.adapters import reference as reference_adapter
from specproof.adapters.decoder_sessions import observed
from specproof.adapters.reference_sessions import WrappedModel, observe
from specproof.engine import Capabilities, Case, ModelSpec, Observation, Schedule


class Driver(Protocol):
    """One kind of decoder. Models, caches, drafters and states are its own, and opaque to the machine."""

    name: str
    capabilities: Capabilities

    def model(self, name: str, spec: ModelSpec) -> Any:
        """A model with the transform and the fault of its spec."""

    def randomness(self, seed: int) -> Any:
        """A source of random choices."""

    def decoder(self, case: Case, target: Any, randomness: Any, processors: Sequence[Any],
                on_round: Callable[[Any, Any], None]) -> Any:  # fmt: skip
        """A decoder that calls `on_round(state, round)` after each step."""

    def drafter(self, case: Case, randomness: Any) -> Any:
        """A drafter with an empty cache, or none."""

    def schedule(self, case: Case) -> Schedule:
        """When its drafter forwards the last proposal, in the life of this case."""

    def set_sampling(self, drafter: Any, case: Case) -> None:
        """Let a drafter draw by another rule, sampling and `min_prob`."""

    def observe(self, target_cache: Any, draft_cache: Any) -> Observation:
        """What the caches hold."""

    def distributions(self, state: Any) -> tuple[DraftDistribution, ...]:
        """The q of the last round's proposals."""

    def trim(self, cache: Any, length: int) -> None:
        """Cut a cache to at most `length` rows, as a user does who edits the history."""

    def stored(self, cache: Any) -> Any:
        """The cache after a journey through a file."""


@dataclass(frozen=True)
class OracleDriver:
    """The oracle. A life has one of the three schedules, by its seed."""

    decoder_class: type = reference_decoder.Decoder
    drafter_class: type = reference_drafters.DraftModel
    name: str = "reference"
    capabilities: Capabilities = reference_adapter.ENGINE.capabilities

    def model(self, name: str, spec: ModelSpec) -> WrappedModel:
        return WrappedModel(spec)

    def randomness(self, seed: int) -> SeededRandomness:
        return SeededRandomness(seed)

    def decoder(self, case, target, randomness, processors, on_round):
        return observed(self.decoder_class, on_round)(
            target,
            rule=case.rule,
            sampling=case.sampling,
            randomness=randomness,
            num_draft_tokens=case.num_draft_tokens,
            stop_tokens=case.stop_tokens,
            processors=processors,
        )

    def drafter(self, case, randomness):
        if case.draft is None:
            return PromptLookup(WrappedModel(case.target).vocab_size)
        drafter = self.drafter_class(
            self.model("draft", case.draft), case.sampling, randomness, schedule=self.schedule(case)
        )
        self.set_sampling(drafter, case)
        return drafter

    def schedule(self, case: Case) -> Schedule:
        return get_args(Schedule)[case.seed % 3]

    def set_sampling(self, drafter, case):
        drafter.sampling, drafter.min_prob = case.sampling, case.min_prob
        drafter.draw = drafter.randomness.coupled_categorical if case.rule == "coupled" else None

    def observe(self, target_cache, draft_cache):
        return observe(target_cache, draft_cache)

    def distributions(self, state):
        return state.block.distributions

    def trim(self, cache: KVCache, length: int) -> None:
        cache.trim_to(length)

    def stored(self, cache: KVCache) -> KVCache:
        """By `numpy.savez`."""
        file = BytesIO()
        np.savez(file, *(array for layer in cache.layers for array in (layer.keys, layer.values)))
        file.seek(0)
        arrays = np.load(file)
        rows = [arrays[f"arr_{i}"] for i in range(2 * len(cache.layers))]
        return KVCache([LayerCache(keys, values) for keys, values in zip(rows[::2], rows[1::2], strict=True)])


def mlx_impl_driver(decoder_class: type | None = None, drafter_class: type | None = None) -> Driver:
    """The MLX decoder, of its own classes unless others are given.

    Raises:
        ImportError: MLX is not installed.
    """
    import mlx.core as mx

    from mlx_impl import cache as caches
    from mlx_impl.decoder import Decoder
    from mlx_impl.drafters import DraftModel
    from mlx_impl.model_cache import ModelCache
    from mlx_impl.prompt_lookup import PromptLookup
    from mlx_impl.randomness import KeyedRandomness
    from mlx_impl.transformer import load
    from specproof.adapters import mlx_impl as adapter
    from specproof.adapters.mlx_models import ObservedModel, observation

    made_of, drafts_by = decoder_class or Decoder, drafter_class or DraftModel
    loaded: dict[Path, Any] = {}

    class MlxImplDriver:
        name = "mlx_impl"
        capabilities = adapter.ENGINE.capabilities

        def model(self, name, spec):
            if spec.folder not in loaded:
                loaded[spec.folder] = load(spec.folder)
            return ObservedModel(loaded[spec.folder], name, spec)

        def randomness(self, seed):
            return KeyedRandomness(seed)

        def decoder(self, case, target, randomness, processors, on_round):
            return observed(made_of, on_round)(
                target,
                rule=case.rule,
                sampling=case.sampling,
                randomness=randomness,
                num_draft_tokens=case.num_draft_tokens,
                stop_tokens=case.stop_tokens,
                # Without penalties there is none, so that the decoder takes the path that it takes for most users.
                processors=processors if case.sampling.has_penalties else [],
            )

        def drafter(self, case, randomness):
            if case.draft is None:
                return PromptLookup(self.model("target", case.target).args.vocab_size)
            drafter = drafts_by(self.model("draft", case.draft), case.sampling, randomness)
            self.set_sampling(drafter, case)
            return drafter

        def schedule(self, case):
            return self.capabilities.draft_schedule

        def set_sampling(self, drafter, case):
            drafter.sampling, drafter.min_prob = case.sampling, case.min_prob
            drafter.draw = drafter.randomness.coupled_categorical if case.rule == "coupled" else None

        def observe(self, target_cache, draft_cache):
            return observation(target_cache, draft_cache)

        def distributions(self, state):
            return tuple(
                DraftDistribution.from_dense(q) for q in np.array(state.block.probabilities).astype(np.float64)
            )

        def trim(self, cache, length):
            cache.rollback(length)

        def stored(self, cache):
            """By MLX's own safetensors: what is stored is each layer's `state`."""
            held = [layer.state for layer in cache]
            with TemporaryDirectory() as folder:
                file = str(Path(folder) / "cache.safetensors")
                mx.save_safetensors(file, {f"{i}.{j}": a for i, state in enumerate(held)
                                           for j, a in enumerate(state[:2]) if a is not None})  # fmt: skip
                arrays = mx.load(file)
                mx.eval(arrays)
            fresh = [caches.KVCache() for _ in held]
            for i, (layer, (_, _, offset)) in enumerate(zip(fresh, held, strict=True)):
                layer.state = (arrays.get(f"{i}.0"), arrays.get(f"{i}.1"), offset)
            return ModelCache(cache.name, fresh)

    return MlxImplDriver()
