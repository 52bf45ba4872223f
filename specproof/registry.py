"""Which engines there are: those that come with the package, by name, and any other as `module:attribute`."""

from __future__ import annotations

import importlib
from collections.abc import Mapping

from specproof.engine import Capabilities, Engine
from specproof.errors import MissingExtra, UnknownEngine

ENGINES: Mapping[str, str] = {
    "reference": "specproof.adapters.reference:ENGINE",
    "mlx_impl": "specproof.adapters.mlx_impl:ENGINE",
    "mlx_lm": "specproof.adapters.mlx_lm:ENGINE",
}
"""The engines that come with the package: name -> where it is. A new engine is one line here."""

FAMILIES: Mapping[str, str] = {
    f"mlx_impl-{family}": f"specproof.adapters.mlx_families:{family.upper()}"
    for family in (
        "llama", "llama_rotating", "llama_quantised", "llama4", "gemma3_text", "gemma4_text", "mamba2", "lfm2",
        "qwen3_next", "falcon_h1",
    )
}  # fmt: skip
"""The MLX decoder on models of mlx-lm with all kinds of caches: engines that are audited where they are asked for."""

_EXTRAS = {"mlx_impl": "mlx", "mlx_lm": "mlx-lm"} | dict.fromkeys(FAMILIES, "mlx-lm")


def load_engine(name: str) -> Engine:
    """The engine of that name, or the one at `module:attribute` (an `Engine`, or a class or function making one).

    Raises:
        UnknownEngine: no such name, module or attribute, or what is there is not an engine.
        MissingExtra: the engine is known but a package it needs is not installed.
    """
    module_name, colon, attribute = {**ENGINES, **FAMILIES}.get(name, name).partition(":")
    if not colon:
        raise UnknownEngine(
            f"no engine is named {name!r}; give one of {', '.join((*ENGINES, *FAMILIES))}, or module:attribute"
        )
    if not module_name or not attribute:
        raise UnknownEngine(f"engine {name!r} lacks a module or an attribute; give module:attribute")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        if name in _EXTRAS:
            raise MissingExtra(
                f"engine {name!r} needs a package that is not installed ({error}); "
                f"pip install 'specproof[{_EXTRAS[name]}]'"
            ) from error
        raise UnknownEngine(
            f"engine {name!r}: cannot import {module_name!r} ({error}); check the spelling and PYTHONPATH"
        ) from error
    except (Exception, SystemExit) as error:
        raise UnknownEngine(f"engine {name!r}: importing {module_name!r} raised {error!r}; mend the module") from error
    if not hasattr(module, attribute):
        raise UnknownEngine(
            f"engine {name!r}: module {module_name!r} has no attribute {attribute!r}; check the spelling"
        )
    found = getattr(module, attribute)
    # A class that has the attributes of an engine is not one: it still has to be made.
    try:
        engine = found() if isinstance(found, type) or (callable(found) and not isinstance(found, Engine)) else found
    except (Exception, SystemExit) as error:
        raise UnknownEngine(f"engine {name!r}: making it raised {error!r}; it is called without arguments") from error
    if not isinstance(engine, Engine) or not isinstance(engine.capabilities, Capabilities):
        raise UnknownEngine(
            f"engine {name!r} is a {type(engine).__name__}; it needs name, version, capabilities (a Capabilities) and "
            "start(case)"
        )
    return engine


def installed_engines() -> tuple[dict[str, Engine], dict[str, str]]:
    """The engines of the package by name, and for those whose packages are not installed, why they are left out."""
    found: dict[str, Engine] = {}
    missing: dict[str, str] = {}
    for name in ENGINES:
        try:
            found[name] = load_engine(name)
        except MissingExtra as error:
            missing[name] = str(error)
    return found, missing
