"""Pairs of checkpoints: which target with which drafter. Knows folders only; nothing of what is in them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from reference.errors import CheckpointError
from specproof.engine import LogitTransform, ModelSpec


@dataclass(frozen=True)
class Pair:
    """A target and the drafter that goes with it: two Hugging Face Llama folders, and what is made of their weights."""

    target: Path
    draft: Path
    architecture: str = "llama"

    def built_as(self, architecture: str) -> Self:
        """The same weights in another architecture (`Capabilities.architecture`)."""
        return replace(self, architecture=architecture)

    def target_spec(self, transform: LogitTransform | None = None) -> ModelSpec:
        """The target, its logits changed by a transform."""
        return ModelSpec(self.target, transform, architecture=self.architecture)

    def draft_spec(self, transform: LogitTransform | None = None) -> ModelSpec:
        """As `target_spec`, of the drafter."""
        return ModelSpec(self.draft, transform, architecture=self.architecture)


def toy_folder() -> Path:
    """The folder of the toy checkpoints: inside the installed package, or beside it in the repository.

    Raises:
        CheckpointError: neither is there.
    """
    package = Path(__file__).parent
    candidates = [root / "fixtures" / "toy" for root in (package, package.parent)]
    for folder in candidates:
        if folder.is_dir():
            return folder
    looked = " or ".join(str(folder) for folder in candidates)
    raise CheckpointError(f"no toy checkpoints at {looked}; write them with `python fixtures/make_toy.py`")


def toy() -> Pair:
    """Vocabulary 32, three layers and one: for everything but exact laws."""
    return Pair(toy_folder() / "target", toy_folder() / "draft")


def tiny() -> Pair:
    """Vocabulary 3, two layers and one: small enough to enumerate every outcome."""
    return Pair(toy_folder() / "tiny-target", toy_folder() / "tiny-draft")


def trained() -> Pair:
    """Vocabulary 2,048, twelve layers trained on Python and one distilled from them: for rates and speed."""
    folder = toy_folder().parent / "pair"
    return Pair(folder / "target", folder / "draft")
