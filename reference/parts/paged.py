"""Rows in blocks of a pool: a cache is a table of blocks, taken from the pool as rows come and given back as they go.

The balance, at every moment: the table names as many blocks as its rows need, no block twice, and what the pool says is
in use is what the tables name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import numpy as np
from numpy.typing import NDArray

from reference.cache import KVCache, LayerCache
from reference.errors import CacheLengthError, DecodingFault
from reference.transformer import Transformer

Floats = NDArray[np.float64]

BLOCK_SIZE = 4
NUM_BLOCKS = 48


class OutOfBlocks(DecodingFault):
    """The pool has no block left."""


class BlockPool:
    """Storage in blocks of `BLOCK_SIZE` rows.

    Attributes:
        keys, values: [layers, blocks, n_kv_heads, BLOCK_SIZE, head_dim].
        free: ids of the blocks that nobody uses; the next to be taken is the last.
    """

    def __init__(self, num_layers: int, num_kv_heads: int, head_dim: int) -> None:
        self.keys = np.zeros((num_layers, NUM_BLOCKS, num_kv_heads, BLOCK_SIZE, head_dim))
        self.values = np.zeros_like(self.keys)
        # Pools of models of different depth hand out other blocks, so that a table read with the wrong pool shows.
        self.free = [(5 * turn + 3 * num_layers) % NUM_BLOCKS for turn in range(NUM_BLOCKS)]

    @property
    def in_use(self) -> int:
        """Blocks that were taken and not given back."""
        return NUM_BLOCKS - len(self.free)

    def take(self) -> int:
        """A block of one's own.

        Raises:
            OutOfBlocks: there is none.
        """
        if not self.free:
            raise OutOfBlocks(f"all {NUM_BLOCKS} blocks are in use; release caches that are done with")
        return self.free.pop()

    def give_back(self, block: int) -> None:
        """The block is anybody's again.

        Raises:
            CacheLengthError: it is free already.
        """
        if block in self.free:
            raise CacheLengthError(f"block {block} is given back twice; a table must forget a block that it gives back")
        self.free.append(block)

    def copy(self) -> BlockPool:
        """An independent pool with the same rows and the same free blocks."""
        twin = BlockPool.__new__(BlockPool)
        twin.keys, twin.values, twin.free = self.keys.copy(), self.values.copy(), list(self.free)
        return twin


@dataclass(frozen=True)
class PagedLayer:
    """One layer of a paged cache, read through its table."""

    cache: PagedCache
    index: int

    @property
    def offset(self) -> int:
        """How many rows it holds."""
        return self.cache.lengths[self.index]

    @property
    def keys(self) -> Floats:
        """All its rows, gathered: [n_kv_heads, offset, head_dim]."""
        return self.cache.gather(self.cache.pool.keys[self.index], self.offset)

    @property
    def values(self) -> Floats:
        """As `keys`."""
        return self.cache.gather(self.cache.pool.values[self.index], self.offset)


class PagedCache(KVCache):
    """A `KVCache` in blocks. Its copies have pools of their own.

    Attributes:
        pool: where the rows are.
        table: the blocks of rows 0 .. 3, 4 .. 7, and so on; the same for all layers.
        lengths: rows per layer.
    """

    def __init__(self, pool: BlockPool) -> None:
        self.pool = pool
        self.table: list[int] = []
        self.lengths = [0] * len(pool.keys)
        super().__init__(cast(list[LayerCache], [PagedLayer(self, index) for index in range(len(pool.keys))]))

    def append(self, layer: int, keys: Floats, values: Floats) -> LayerCache:
        """Add T rows [n_kv_heads, T, head_dim] to one layer, and return all its rows.

        Raises:
            OutOfBlocks: they do not fit.
        """
        start = self.lengths[layer]
        self.grow(start + keys.shape[1])
        for row in range(keys.shape[1]):
            block, slot = self.table[(start + row) // BLOCK_SIZE], (start + row) % BLOCK_SIZE
            self.pool.keys[layer, block, :, slot] = keys[:, row]
            self.pool.values[layer, block, :, slot] = values[:, row]
        self.lengths[layer] = start + keys.shape[1]
        return LayerCache(self.layers[layer].keys, self.layers[layer].values)

    def grow(self, length: int) -> None:
        """Take the blocks that `length` rows need."""
        while len(self.table) < blocks_for(length):
            self.table.append(self.pool.take())

    def gather(self, blocks: Floats, length: int) -> Floats:
        """The first rows of a layer [blocks, n_kv_heads, BLOCK_SIZE, head_dim] -> [n_kv_heads, length, head_dim]."""
        if not self.table:
            return np.zeros((blocks.shape[1], 0, blocks.shape[3]))
        return np.concatenate(list(blocks[self.table]), axis=1)[:, :length]

    def trim_to(self, length: int) -> None:
        """As `KVCache.trim_to`; blocks behind the last row go back to the pool.

        Raises:
            CacheLengthError: `length` is negative.
        """
        if length < 0:
            raise CacheLengthError(f"cannot trim a cache to {length} rows; give a length >= 0")
        keep = min(length, *self.lengths)
        self.lengths = [keep] * len(self.lengths)
        self.shrink(keep)

    def shrink(self, length: int) -> None:
        """Give back the blocks that `length` rows do not need."""
        while len(self.table) > blocks_for(length):
            self.pool.give_back(self.table.pop())

    def release(self) -> None:
        """Give everything back: the sequence is done with."""
        self.trim_to(0)

    def copy(self) -> PagedCache:
        """An independent cache with the same rows, in a pool of its own."""
        twin = type(self)(self.pool.copy())
        twin.table, twin.lengths = list(self.table), list(self.lengths)
        return twin


def blocks_for(length: int) -> int:
    """How many blocks hold `length` rows."""
    return -(-length // BLOCK_SIZE)


class PagedTransformer(Transformer):
    """A Llama whose caches are paged. What it computes is the same."""

    cache_class: type[PagedCache] = PagedCache
    """What `new_cache` makes."""

    def new_cache(self) -> KVCache:
        """A paged cache without rows, in a new pool."""
        c = self.config
        return self.cache_class(BlockPool(c.num_layers, c.num_kv_heads, c.head_dim))
