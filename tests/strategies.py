"""What Hypothesis draws for tests of several folders: what `specproof fuzz` draws, which lives in the package.

Tests take it from here, as they take `points` and `subjects`: this list is all that they share of it.
"""

from specproof.fuzzing.strategies import block_sizes, cases, prompts, samplings, scripts

__all__ = ["block_sizes", "cases", "prompts", "samplings", "scripts"]
