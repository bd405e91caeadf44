"""Keys and values of all positions.

Shape legend: B batch, K key/value heads, Q block length, C rows of the store, D head size.
"""

import torch
from transformers.cache_utils import CacheLayerMixin

from .block import Block


class FullLengthLayer(CacheLayerMixin):
    """Keys and values of all positions, stored as (B, K, C, D).

    The last row is the dump row: pads of a block are written there and no mask ever shows it.
    """

    is_sliding = False

    def __init__(
        self, block: Block, keys_BKCD: torch.Tensor | None = None, values_BKCD: torch.Tensor | None = None
    ) -> None:
        super().__init__()
        self.block = block
        self.keys, self.values = keys_BKCD, values_BKCD
        self.is_initialized = keys_BKCD is not None

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self.keys, self.values = (
            x.new_zeros((*x.shape[:2], self.block.rows, x.shape[3])) for x in (key_states, value_states)
        )
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args, **kwargs
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write the block (B, K, Q, D); returns what attention sees: the block at first, later the store."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        self.keys.index_copy_(2, self.block.slots_Q, key_states)
        self.values.index_copy_(2, self.block.slots_Q, value_states)
        return (key_states, value_states) if self.block.is_first else (self.keys, self.values)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return (query_length if self.block.is_first else self.block.rows), 0

    def get_seq_length(self) -> torch.Tensor | int:
        # A number where it is one in all calls: attention leaves out what a causal mask hides.
        return 0 if self.block.is_first else self.block.offset

    def get_max_length(self) -> int:
        return self.block.rows

    def tensors(self) -> list[torch.Tensor]:
        return [self.keys, self.values]
