"""Known defects once more, on MLX: mistakes of storage, of views, or of rows of arrays that are written in place.

The oracle's arrays are never written to, so that such mistakes cannot be made with it as engines make them. The ids are
those of the catalogue with "-mlx" behind them. What MLX needs is imported when an engine is made.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import cast

from specproof.defects.base import Defect
from specproof.engine import Engine

MUTATIONS = "specproof.defects.mlx_mutations"


def _made(name: str) -> Engine:
    make = cast(Callable[[str], Engine], getattr(import_module(MUTATIONS), name))
    return make(name)


def _right() -> Engine:
    return cast(Engine, import_module("specproof.adapters.mlx_impl").ENGINE)


def _defect(id_: str, kind: str, engine_found_in: str, reference: str, cause: str, made_by: str, expected: str,
            silent: str) -> Defect:  # fmt: skip
    return Defect(
        f"{id_}-mlx",
        kind,
        engine_found_in,
        reference,
        cause,
        make=lambda: _made(made_by),
        right=_right,
        expected=frozenset(expected.split()),
        silent=frozenset(silent.split()),
        needs="mlx",
    )


OFFSETS = "target_cache_offset draft_cache_offset emitted_block"
"""What rows that are wrong and complete leave right."""

DEFECTS = (
    _defect(
        "D07", "draft_cache", "vLLM", "vllm-project/vllm#14649",
        "The drafter's rows are stored in half precision, and those of accepted proposals are kept so.",
        "drafter_in_half_precision", "cache_content", f"{OFFSETS} greedy_parity processor_history exact_law",
    ),
    _defect(
        "D27", "target_cache", "vLLM", "vllm-project/vllm#43996",
        "Storage that is full to the edge of a block grows by one, and its first block is lost on the way.",
        "loses_first_block", "cache_content greedy_parity exit_state", f"{OFFSETS} honest_q processor_history",
    ),
    _defect(
        "D28", "draft_cache", "TensorRT-LLM", "NVIDIA/TensorRT-LLM#15251",
        "The drafter is given the storage of the target's last layer, and both write into it.",
        "shares_storage", "cache_content honest_q", f"{OFFSETS} processor_history",
    ),
    _defect(
        "D30", "target_cache", "mlx-vlm", "Blaizzy/mlx-vlm#1715",
        "A trim takes the offset back and leaves the place of the next write where it was.",
        "leaves_write_index", "cache_content exact_law", f"{OFFSETS} honest_q processor_history",
    ),
    _defect(
        "D31", "target_cache", "mlx-vlm", "Blaizzy/mlx-vlm#2093",
        "Having a drafter brings another cache factory, which ignores the precision that was asked for.",
        "target_in_half_precision", "cache_content exact_law", f"{OFFSETS} honest_q processor_history",
    ),
    _defect(
        "D44", "recurrent", "ik_llama.cpp", "ikawrakow/ik_llama.cpp#1728",
        "Attention goes on reading the cache through a view that was made before the rows were written.",
        "reads_old_view", "cache_content exact_law", f"{OFFSETS} honest_q processor_history",
    ),
    _defect(
        "D74", "acceptance", "transformers", "huggingface/transformers#28166",
        "After a rejection the residual is gathered from the row before.",
        "gathers_row_before", "exact_law", f"{OFFSETS} cache_content honest_q processor_history counters",
    ),
    _defect(
        "D115", "positions", "AITER", "ROCm/aiter#2720",
        "A verification of a number of rows that is no power of two returns the first row's result for all of them.",
        "broadcasts_first_row", "greedy_parity exact_law", f"{OFFSETS} cache_content honest_q processor_history",
    ),
)  # fmt: skip
"""In the order of their ids."""
