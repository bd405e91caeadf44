"""Hidden states and attention weights of a step, cut to their true sizes on the host.

Shape legend: B batch, Q block length, K keys, H heads, D hidden size.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedConfig
from transformers.cache_utils import get_layer_types_and_kwargs

from .layers.kinds import LayerKind


# What is asked for, and the fields of a decoder's output that hold it; those of an encoder-decoder have a prefix.
FIELDS = {"output_hidden_states": ("hidden_states",), "output_attentions": ("attentions",)}
CROSS = "cross_attentions"


def asked_of(arguments: dict[str, Any], config: Any) -> list[str]:
    """What a call asks for by its flags, or the model's configuration where the call says nothing."""
    given = {name: arguments.get(name) for name in FIELDS}
    return [name for name, flag in given.items() if (getattr(config, name, False) if flag is None else flag)]


def fields_of(asked: Sequence[str], prefix: str, has_cross: bool) -> tuple[str, ...]:
    """The fields of a model's output that hold what `asked` names."""
    fields = [f"{prefix}{field}" for name in asked for field in FIELDS[name]]
    return (*fields, CROSS) if has_cross and "output_attentions" in asked else tuple(fields)


@dataclass(frozen=True)
class Cut:
    """The true sizes of a step: `batch` rows, `length` tokens behind `lead` pads of a block, `past` tokens before it.

    `windows`: for each cache layer that has rows, its sliding window or None. `source`: encoder positions.
    """

    batch: int
    lead: int
    length: int
    past: int
    is_first: bool
    windows: tuple[int | None, ...]
    source: int

    def apply(self, field: str, tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """The tensors of `field`, compact, on the host."""
        tensors = [tensor.to("cpu")[: self.batch] for tensor in tensors]
        queries = slice(self.lead, self.lead + self.length)
        if field.endswith("hidden_states"):
            return tuple(x_BQD[:, queries].contiguous() for x_BQD in tensors)
        if field == CROSS:
            return tuple(x_BHQK[:, :, queries, : self.source].contiguous() for x_BHQK in tensors)
        windows = self.windows if len(self.windows) == len(tensors) else (None,) * len(tensors)
        return tuple(
            x_BHQK[:, :, queries, self._keys(window)].contiguous()
            for x_BHQK, window in zip(tensors, windows, strict=True)
        )

    def _keys(self, window: int | None) -> slice:
        """The keys that the model's own cache would have: it drops what lies before a sliding window."""
        if self.is_first:
            return slice(self.lead, self.lead + self.length)
        kept = self.past if window is None else min(self.past, window - 1)
        return slice(self.past - kept, self.past + self.length)


def windows_of(text_config: PreTrainedConfig, layers: Sequence[LayerKind]) -> tuple[int | None, ...]:
    """See `Cut.windows`."""
    _, options = get_layer_types_and_kwargs(text_config)
    return tuple(
        further.get("sliding_window") for kind, further in zip(layers, options, strict=False) if kind.has_rows
    )


def join_parts(field: str, parts: Sequence[Sequence[torch.Tensor]]) -> tuple[torch.Tensor, ...]:
    """The tensors of a block that ran as several. Keys of the later parts are 0 for the earlier."""
    if field.endswith("hidden_states") or field == CROSS:
        axis = 1 if field.endswith("hidden_states") else 2
        return tuple(torch.cat(column, axis) for column in zip(*parts, strict=True))
    joined = []
    for column in zip(*parts, strict=True):
        keys = column[-1].shape[3]
        joined.append(
            torch.cat([torch.nn.functional.pad(x_BHQK, (0, keys - x_BHQK.shape[3])) for x_BHQK in column], 2)
        )
    return tuple(joined)
