"""Padding masks whose rows show one stretch each: looked at on the host, and told to graphs, which know no values.

Attention takes such a row as a range of keys. What is known of a mask is an attribute of the tensor, so that it holds
for as long as the mask is handed on as it is; in the key of a graph it is the names, or the places, of such masks.

Shape legend: B batch, M columns.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from .flat import Form, paths


_WHOLE = "_neuron_rows_are_whole"
_MASK = "attention_mask"
HOLES = "mask with holes"


def rows_are_whole(mask_BM: torch.Tensor) -> bool:
    """Whether what each row shows is one stretch, on a mask whose values can be read."""
    seen_BM = mask_BM != 0
    stretches_B = (seen_BM[:, 1:] & ~seen_BM[:, :-1]).sum(-1) + seen_BM[:, :1].sum(-1)
    return bool((stretches_B <= 1).all())


def mark_whole(mask_BM: torch.Tensor) -> torch.Tensor:
    """`mask_BM` as another tensor, which is known to have no holes."""
    marked = mask_BM.view(mask_BM.shape)
    setattr(marked, _WHOLE, True)
    return marked


def is_whole(mask_BM: torch.Tensor) -> bool:
    """Whether the rows of a mask are known to have no holes."""
    return getattr(mask_BM, _WHOLE, False)


def takes_ranges(module: torch.nn.Module) -> bool:
    """Whether a model inside asks for its attention by name, so that it may be one that takes ranges."""
    return any(getattr(part, "_supports_attention_backend", False) for part in module.modules())


def whole_masks(named: Iterable[tuple[Any, torch.Tensor]], attention: Any) -> tuple[Any, ...]:
    """The names of padding masks among host tensors whose rows have no holes; calls of others are counted in
    `attention`, that of a ledger.
    """
    found = []
    for name, tensor in named:
        if str(name).endswith(_MASK) and tensor.dim() == 2 and tensor.device.type == "cpu":
            if rows_are_whole(tensor):
                found.append(name)
            else:
                attention[HOLES] += 1
    return tuple(found)


def whole_places(form: Form, tensors: Sequence[torch.Tensor], attention: Any) -> tuple[int, ...]:
    """The places, among the flat tensors of a call, of what `whole_masks` finds."""
    named = {".".join(path): place for place, path in enumerate(paths(form))}
    return tuple(named[name] for name in whole_masks(zip(named, tensors, strict=True), attention))


def with_marks(tensors: Sequence[torch.Tensor], places: Sequence[int]) -> list[torch.Tensor]:
    """The tensors, with those at `places` marked whole. It can be traced into a graph."""
    return [mark_whole(tensor) if place in places else tensor for place, tensor in enumerate(tensors)]
