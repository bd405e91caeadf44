"""`any` over several axes, one axis after the other: torch-mlir has it over one axis and over all."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


aten = torch.ops.aten


def _any_dims(x: Tensor, dim: Sequence[int] | None = None, keepdim: bool = False) -> Tensor:
    axes = range(x.dim()) if dim is None else {axis % x.dim() for axis in dim}
    result = x != 0
    for axis in sorted(axes, reverse=True):
        result = aten.any.dim(result, axis, keepdim)
    return result


DECOMPOSITIONS = {aten.any.dims: _any_dims}
