"""How a step's cache enters a block that is compiled for itself (`compile="blocks"`)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers.cache_utils import Cache

from ...buckets.flat import NotFlatError
from .block import Block
from .full_length import FullLengthLayer


class OneLayerCache(Cache):
    """The cache that a compiled block sees: the layer it asks for, under the index it uses, and no other."""

    def __init__(self, layer: FullLengthLayer, index: Any) -> None:
        super().__init__(layers=[layer])
        self.index = index

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args, **kwargs
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if layer_idx is not self.index and layer_idx != self.index:
            raise IndexError("a block asks for the cache of another one")
        return self.layers[0].update(key_states, value_states, *args, **kwargs)

    def get_seq_length(self, layer_idx: int = 0) -> torch.Tensor | int:
        return self.layers[0].get_seq_length()

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        return self.layers[0].get_mask_sizes(query_length)


@dataclass(frozen=True)
class CacheForm:
    """What is static about a layer that enters a block: see `Block`; `is_new`: the block makes its keys and values."""

    rows: int
    is_first: bool
    is_new: bool


@dataclass(frozen=True)
class CacheCrossing:
    """A step's cache enters a compiled block as the tensors of the one layer that the block uses (see `Crossing`)."""

    def take(self, cache: Cache, index: int | None) -> tuple[CacheForm, list[torch.Tensor]]:
        layer = cache.layers[index] if index is not None and index < len(cache.layers) else None
        if type(layer) is not FullLengthLayer:
            raise NotFlatError("it is not known which entry of the cache it uses")
        block = layer.block
        state = layer.tensors() if layer.is_initialized else []
        return CacheForm(block.rows, block.is_first, not state), [block.slots_Q, block.offset, *state]

    def make(self, form: CacheForm, tensors: Sequence[torch.Tensor], index: Any) -> OneLayerCache:
        slots_Q, offset, *state = tensors
        return OneLayerCache(FullLengthLayer(Block(slots_Q, offset, form.rows, form.is_first), *state), index)

    def gains(self, form: CacheForm) -> int:
        return 2 if form.is_new else 0

    def made(self, form: CacheForm, cache: OneLayerCache) -> list[torch.Tensor]:
        return cache.layers[0].tensors() if form.is_new else []

    def put(self, cache: Cache, index: int, tensors: Sequence[torch.Tensor]) -> None:
        if tensors:
            layer = cache.layers[index]
            layer.keys, layer.values = tensors
            layer.is_initialized = True
