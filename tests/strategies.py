"""Everything Hypothesis draws for the tests: it is what `specproof fuzz` draws, and lives in the package."""

from specproof.fuzzing.strategies import block_sizes, budgets, cases, prompts, samplings, scripts, stop_sets

__all__ = ["block_sizes", "budgets", "cases", "prompts", "samplings", "scripts", "stop_sets"]
