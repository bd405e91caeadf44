"""Layers that have attention and a recurrent state side by side."""

import torch

from .block import Block
from .full_length import FullLengthLayer
from .recurrent import RecurrentLayer


class HybridLayer(RecurrentLayer, FullLengthLayer):
    """Keys and values of all positions, then the states of `RecurrentLayer`."""

    def __init__(self, block: Block, *stored: torch.Tensor | None, states: int = 1) -> None:
        FullLengthLayer.__init__(self, block, *stored[:2])
        RecurrentLayer.__init__(self, block, *stored[2:], states=states)

    def lazy_initialization(self, *keys_and_values: torch.Tensor, **states) -> None:
        if keys_and_values:
            FullLengthLayer.lazy_initialization(self, *keys_and_values)
        else:
            RecurrentLayer.lazy_initialization(self, **states)

    def get_max_length(self) -> int:
        return FullLengthLayer.get_max_length(self)

    def tensors(self) -> list[torch.Tensor | None]:
        return [*FullLengthLayer.tensors(self), *self.states()]
