"""mlx-lm's rotating cache, with a mask that is right for several tokens at once and kept first rows.

mlx-lm's `RotatingKVCache(max_size, keep)` shows a single new token the `keep` first rows and the newest others,
`max_size` in all. Of several tokens at once only the first sees them all: for the others its mask moves on over the
kept rows, and lets as many older ones in. A verify pass must see what single steps see.
"""

# mypy: allow-untyped-calls
# (mlx-lm carries no annotations)

from __future__ import annotations

from typing import Any

import mlx.core as mx
from mlx_lm.models import cache as mlx_lm_cache

from reference.errors import InvalidSetting


class RotatingKVCache(mlx_lm_cache.RotatingKVCache):
    """A window of `max_size` rows, the first `keep` of all among them. Its name is mlx-lm's, by which it is saved."""

    def make_mask(self, N: int, window_size: int | None = None, return_array: bool = False) -> Any:  # noqa: N803
        """The mask of N new rows over those that an update will return: as mlx-lm's, and right for kept rows.

        Raises:
            InvalidSetting: the model asks for a window of its own that is narrower, and first rows are kept.
        """
        if self.keep and window_size is not None and window_size < self.max_size:
            # mlx-lm's mask takes the storage for a ring, and shows of the kept rows what happens to lie in the way.
            raise InvalidSetting(
                f"the model asks for a window of {window_size} rows, and its cache of {self.max_size} keeps the first "
                f"{self.keep}, which lie outside; use the model's own make_cache(), or caches with keep=0"
            )
        if self.keep == 0 or N == 1 or self.offset + N <= self.max_size:
            return super().make_mask(N, window_size=window_size, return_array=return_array)
        held = min(self.max_size - 1, self.offset)
        rows, columns = mx.arange(held, held + N)[:, None], mx.arange(held + N)[None]
        seen = (columns < self.keep) | (columns > rows - (self.max_size - self.keep))
        return seen & (columns <= rows)  # kept rows, too: a first pass may be longer than the window


def with_right_masks(layer: Any) -> Any:
    """The layer; a rotating one that keeps first rows as a `RotatingKVCache` of ours, which shares its arrays.

    A composite layer is the same object, with its parts treated so.
    """
    if isinstance(layer, mlx_lm_cache.CacheList):
        layer.caches = type(layer.caches)(map(with_right_masks, layer.caches))
        return layer
    if not isinstance(layer, mlx_lm_cache.RotatingKVCache) or layer.keep == 0 or isinstance(layer, RotatingKVCache):
        return layer
    twin = RotatingKVCache(max_size=layer.max_size, keep=layer.keep)
    twin.state = layer.state
    return twin
