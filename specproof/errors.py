"""Errors of the harness: part of the hierarchy in `reference.errors`."""

from reference.errors import InvalidInput, MissingExtra

__all__ = ["InjectedFault", "MissingExtra", "UnknownEngine", "UnknownRegime"]


class UnknownEngine(InvalidInput):
    """No engine of that name, or what is there is not an engine."""


class UnknownRegime(InvalidInput):
    """No regime of that name."""


class InjectedFault(RuntimeError):
    """Raised on purpose by a wrapped model, to see how an engine leaves its caches."""
