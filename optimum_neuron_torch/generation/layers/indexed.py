"""Keys and values of all positions, and the keys by which an indexer chooses the positions that attention sees.

Shape legend: B batch, Q block length, C rows of the store, E size of an indexer's key.
"""

import torch

from .block import Block
from .full_length import FullLengthLayer


class IndexedLayer(FullLengthLayer):
    """A `FullLengthLayer` with an indexer's keys, stored as (B, C, E)."""

    # Some indexers keep positions beside their keys: none that is served here.
    indexer_position_ids = None

    def __init__(
        self,
        block: Block,
        keys_BKCD: torch.Tensor | None = None,
        values_BKCD: torch.Tensor | None = None,
        indexer_keys_BCE: torch.Tensor | None = None,
    ) -> None:
        super().__init__(block, keys_BKCD, values_BKCD)
        self.indexer_keys = indexer_keys_BCE

    def update_indexer(self, indexer_key_states: torch.Tensor) -> torch.Tensor:
        """Write the block (B, Q, E); returns what the indexer sees: the block at first, later the store."""
        if self.indexer_keys is None:
            batch, _, size = indexer_key_states.shape
            self.indexer_keys = indexer_key_states.new_zeros((batch, self.block.rows, size))
        self.indexer_keys.index_copy_(1, self.block.slots_Q, indexer_key_states)
        return indexer_key_states if self.block.is_first else self.indexer_keys

    def tensors(self) -> list[torch.Tensor | None]:
        return [*super().tensors(), self.indexer_keys]
