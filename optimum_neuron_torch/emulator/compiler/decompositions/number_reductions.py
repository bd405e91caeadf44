"""Reductions of a number along its axis, and its running sum.

torch-mlir ends the process when the axis is to be kept, and lowers no sum along an axis that is not there.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


aten = torch.ops.aten


def _of_number(x: Tensor, dim: Sequence[int] | None = None, keepdim: bool = False) -> Tensor:
    return NotImplemented if x.dim() else x.clone()


def _sum_of_number(
    x: Tensor, dim: int | Sequence[int] | None = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Tensor:
    if x.dim():
        return NotImplemented
    return x.to(dtype or (x.dtype if x.is_floating_point() else torch.int64))


DECOMPOSITIONS = {
    aten.sum.dim_IntList: _sum_of_number,
    aten.cumsum.default: _sum_of_number,
    aten.mean.dim: _sum_of_number,
    aten.amax.default: _of_number,
    aten.amin.default: _of_number,
}
