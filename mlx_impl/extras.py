"""Packages that only some parts need: imported where they are used, and missed with the command that installs them."""

from __future__ import annotations

import importlib
from typing import Any

from reference.errors import MissingExtra


def needed(module: str, extra: str, why: str) -> Any:
    """The module of that name.

    Args:
        module: its dotted name.
        extra: the extra of specproof that installs it.
        why: what needs it; begins the message.

    Raises:
        MissingExtra: it, or something that it imports, is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise MissingExtra(
            f"{why} needs {package}, which is not installed ({error}); pip install 'specproof[{extra}]'"
        ) from error
