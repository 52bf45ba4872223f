"""One module per engine that comes with the package; each has an `ENGINE` (see `specproof.registry.ENGINES`).

A module here imports its engine at its top, so that a missing package shows as an `ImportError` when, and only
when, that engine is asked for.
"""
