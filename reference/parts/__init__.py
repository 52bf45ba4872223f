"""Parts that a Llama with a plain cache does not have, each small and right: one file, one idea.

- `rows`: what a layer of a cache is.
- `rotating`: layers with a sliding window, whose rows live in a ring; rejected rows never enter it.
- `recurrent`: layers with a recurrent state and a short convolution, rolled back by replaying from a checkpoint;
  `short_convolution` is the latter by itself.
- `prefix`: recurrent states kept on the way, so that a later turn can begin inside an earlier one.
- `quantised`: rows kept in eight bits.
- `paged`: rows in blocks of a pool, found through a block table.
- `grammar`, `matcher`: a mask on the logits, from the context, or from an automaton that advances and rolls back.
- `batch`, `batch_decoder`: several sequences of unequal length, verified in one forward.

All use the decode loop, the drafters and the transformer of `reference` as they are. Each model also has a pass without
a cache, in code of its own, to compare with.
"""
