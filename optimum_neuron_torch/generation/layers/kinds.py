"""Which layer of ours stands for which layer type of Transformers, and what it stores."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedConfig
from transformers.cache_utils import CacheLayerMixin, get_layer_types_and_kwargs

from .absent import AbsentLayer
from .block import Block
from .cross import CrossAttentionLayer
from .full_length import FullLengthLayer
from .hybrid import HybridLayer
from .recurrent import RecurrentLayer


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

    @property
    def is_recurrent(self) -> bool:
        """Whether it holds a state into which pads would enter."""
        return issubclass(self.layer, RecurrentLayer)

    @property
    def has_rows(self) -> bool:
        """Whether it stores something for each token."""
        return any(axis is not None for axis in self.row_axes)


_FULL_LENGTH = LayerKind(FullLengthLayer, row_axes=(2, 2))
CROSS_ATTENTION = LayerKind(CrossAttentionLayer, row_axes=(None, None))

# A sliding or chunked window lives in the mask: its keys are kept whole. Indexed attention is left out: its choice of
# positions is among scores that are often equal, and which of them are taken depends on how many keys there are.
_KINDS = {
    "full_attention": _FULL_LENGTH,
    "sliding_attention": _FULL_LENGTH,
    "chunked_attention": _FULL_LENGTH,
    "dummy": LayerKind(AbsentLayer, row_axes=()),
}
_RECURRENT = frozenset({"linear_attention", "conv"})
_HYBRID = frozenset({"hybrid", "hybrid_sliding"})


class UnknownLayerError(NotImplementedError):
    """A layer type of Transformers for which there is no static form."""


def layer_kinds(text_config: PreTrainedConfig) -> tuple[LayerKind, ...]:
    """The kind of every cache layer of a decoder. Raises UnknownLayerError with the types that have none."""
    types, options = get_layer_types_and_kwargs(text_config)
    unknown = sorted(set(types) - _KINDS.keys() - _RECURRENT - _HYBRID)
    if unknown:
        raise UnknownLayerError(f"cache layers of type {unknown} have no static form")
    return tuple(_kind(name, layer.get("number_of_states", 1)) for name, layer in zip(types, options, strict=True))


def _kind(name: str, states: int) -> LayerKind:
    if name in _KINDS:
        return _KINDS[name]
    own = (None, None) * states
    if name in _RECURRENT:
        return LayerKind(RecurrentLayer, own, (("states", states),))
    return LayerKind(HybridLayer, (2, 2, *own), (("states", states),))
