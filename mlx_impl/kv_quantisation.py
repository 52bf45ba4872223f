"""Key-value rows in few bits: of which caches, and when. mlx-lm's `kv_bits`, for speculative decoding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mlx_impl.layers import kind_of
from reference.errors import InvalidSetting
from reference.values import checked_integer

BITS = (2, 3, 4, 5, 6, 8)
GROUP_SIZES = (32, 64, 128)


@dataclass(frozen=True)
class KVQuantisation:
    """Quantise key-value rows once so many tokens are committed.

    Attributes:
        bits, group_size: of `mlx.core.quantize`.
        start: tokens from which on a cache is quantised.

    Raises:
        InvalidSetting: values that MLX does not know.
    """

    bits: int
    group_size: int = 64
    start: int = 0

    def __post_init__(self) -> None:
        for name, value, allowed in (("bits", self.bits, BITS), ("group_size", self.group_size, GROUP_SIZES)):
            if checked_integer(name, value, 0) not in allowed:
                raise InvalidSetting(f"{name} is {value}; MLX quantises with {', '.join(map(str, allowed))}")
        checked_integer("start", self.start, 0)

    def check(self, layers: Sequence[Any], name: str) -> None:
        """Refuse caches that cannot be quantised.

        Raises:
            InvalidSetting: naming the first such layer's, of the model of that name.
        """
        for layer in layers:
            able = hasattr(layer, "to_quantized") or hasattr(layer, "bits")
            if not able or kind_of(layer) != "plain":
                raise InvalidSetting(
                    f"a {type(layer).__name__} cannot be quantised; give the {name}'s cache no quantisation"
                )

    def of(self, layers: Sequence[Any]) -> list[Any]:
        """The caches with quantised ones in the places of those that are not; the old ones stay as they are."""
        return [
            layer.to_quantized(group_size=self.group_size, bits=self.bits) if hasattr(layer, "to_quantized") else layer
            for layer in layers
        ]

    def check_rows(self, layers: Sequence[Any]) -> None:
        """Refuse rows that are no whole number of groups, be it long before they are due.

        Raises:
            InvalidSetting: naming their size.
        """
        for layer in layers:
            held = (layer.keys, layer.values) if hasattr(layer, "to_quantized") else ()
            for size in (rows.shape[-1] for rows in held if rows is not None):
                if size % self.group_size:
                    raise InvalidSetting(
                        f"rows of {size} numbers cannot be quantised in groups of {self.group_size}; give a group_size "
                        "that divides them, or no quantisation"
                    )
