"""The harness: audits any speculative decoder against an executable specification.

- `engine`: what an engine offers to be audited. Begin here to write an adapter; those that exist are in `adapters`.
- `regimes`: the cases it is put under, forced through its models by `transforms`.
- `runner`: one case on one engine, with all that was seen of it.
- `invariants` and `laws`: what must hold in every run, and over all runs. `oracle` knows the truth.
- `audit`, `report`, `cli`: everything at once, and how it is shown.
"""

import os

if os.environ.get("SPECPROOF_BLAS"):  # it must be loaded before MLX is, and so before the adapters are
    import mlx_impl  # noqa: F401

from specproof.engine import Boundary, CacheRows, Capabilities, Case, Engine, Observation, Session
from specproof.registry import load_engine

__all__ = [
    "Boundary",
    "CacheRows",
    "Capabilities",
    "Case",
    "Engine",
    "Observation",
    "Session",
    "load_engine",
]
