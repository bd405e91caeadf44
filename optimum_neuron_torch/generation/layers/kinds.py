"""Which layer of ours stands for which layer type of Transformers, and what it stores."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedConfig
from transformers.cache_utils import CacheLayerMixin, get_layer_types_and_kwargs

from .block import Block
from .full_length import FullLengthLayer


@dataclass(frozen=True)
class LayerKind:
    """What is static about a cache layer of a step.

    layer: its class, made as `layer(block, *stored, **options)`; `stored` is empty in a step that makes the store.
    Its `tensors()` are what is stored afterwards, None where the model leaves one out. A step that finds them stored
    writes them in place.
    row_axes: for each stored tensor the axis of the store's rows; None for one whose size does not depend on them.
    """

    layer: type[CacheLayerMixin]
    row_axes: tuple[int | None, ...]
    options: tuple[tuple[str, Any], ...] = ()

    def make(self, block: Block, stored: Sequence[torch.Tensor | None]) -> CacheLayerMixin:
        return self.layer(block, *stored, **dict(self.options))


_FULL_LENGTH = LayerKind(FullLengthLayer, row_axes=(2, 2))

# A sliding or chunked window lives in the mask: its keys are kept whole.
_KINDS = {
    "full_attention": _FULL_LENGTH,
    "sliding_attention": _FULL_LENGTH,
    "chunked_attention": _FULL_LENGTH,
}


class UnknownLayerError(NotImplementedError):
    """A layer type of Transformers for which there is no static form."""


def layer_kinds(text_config: PreTrainedConfig) -> tuple[LayerKind, ...]:
    """The kind of every cache layer of a decoder. Raises UnknownLayerError with the types that have none."""
    types, _ = get_layer_types_and_kwargs(text_config)
    unknown = sorted(set(types) - _KINDS.keys())
    if unknown:
        raise UnknownLayerError(f"cache layers of type {unknown} have no static form")
    return tuple(_KINDS[name] for name in types)
