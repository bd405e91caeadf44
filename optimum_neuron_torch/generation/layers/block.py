"""Where a step's block of tokens lies in the store."""

from dataclasses import dataclass

import torch


@dataclass
class Block:
    """`slots_Q`: the rows of the store to write. `offset` (0-d): the position of the block's first row.

    `rows`: how many rows the store has. `is_first`: there is no store yet; the step makes it, and attention sees the
    block alone.
    """

    slots_Q: torch.Tensor
    offset: torch.Tensor
    rows: int
    is_first: bool

    @property
    def dump_slot(self) -> int:
        """The slot of pads: the last row, which no mask shows; -1 where the store has no rows."""
        return self.rows - 1
