"""Cache layers as they exist inside a compiled step: built on stored tensors, with positions as tensors.

Shape legend: B batch, K key/value heads, Q block length, C rows of the store, D head size.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers.cache_utils import Cache, CacheLayerMixin

from ..buckets.blocks import CROSSINGS
from ..buckets.flat import NotFlatError


# Layer types of Transformers whose keys are kept whole; a sliding or chunked window lives in the mask.
FULL_LENGTH_TYPES = frozenset({"full_attention", "sliding_attention", "chunked_attention"})


@dataclass
class Block:
    """Where a step's block lies: `slots_Q` rows of the store to write, `offset` (0-d) position of its first row.

    `rows` is C. `is_first`: there is no store yet; the step makes it, and attention sees the block alone.
    """

    slots_Q: torch.Tensor
    offset: torch.Tensor
    rows: int
    is_first: bool


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

    def get_seq_length(self) -> torch.Tensor:
        return self.block.offset

    def get_max_length(self) -> int:
        return self.block.rows

    def tensors(self) -> list[torch.Tensor]:
        return [self.keys, self.values]


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

    def get_seq_length(self, layer_idx: int = 0) -> torch.Tensor:
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


CROSSINGS[Cache] = CacheCrossing()
