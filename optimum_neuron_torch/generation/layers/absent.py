"""Layers that store nothing: their attention reads the keys of another layer, or they have none."""

import torch
from transformers.cache_utils import DummyLayer

from .block import Block


class AbsentLayer(DummyLayer):
    """An entry of the cache without tensors."""

    def __init__(self, block: Block) -> None:
        super().__init__()

    def tensors(self) -> list[torch.Tensor | None]:
        return []
