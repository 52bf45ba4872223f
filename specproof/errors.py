"""Errors of the harness: part of the hierarchy in `reference.errors`."""

from reference.errors import InvalidInput


class UnknownEngine(InvalidInput):
    """No engine of that name, or what is there is not an engine."""


class UnknownRegime(InvalidInput):
    """No regime of that name."""


class MissingExtra(InvalidInput):
    """A package that an optional part needs is not installed."""


class InjectedFault(RuntimeError):
    """Raised on purpose by a wrapped model, to see how an engine leaves its caches."""
