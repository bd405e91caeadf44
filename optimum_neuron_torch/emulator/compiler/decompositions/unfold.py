"""`unfold`, overlapping windows along an axis, which torch-mlir does not know, as a selection of rows."""

from __future__ import annotations

import torch
from torch import Tensor


aten = torch.ops.aten


def _unfold(x: Tensor, dim: int, size: int, step: int) -> Tensor:
    if x.dim() == 0:
        return x.expand(size)
    dim = dim % x.dim()
    count = (x.size(dim) - size) // step + 1
    first = torch.arange(count, device=x.device).unsqueeze(1) * step
    index = (first + torch.arange(size, device=x.device)).flatten()
    return x.index_select(dim, index).unflatten(dim, (count, size)).movedim(dim + 1, -1)


def _unfold_backward(grad: Tensor, input_sizes: list[int], dim: int, size: int, step: int) -> Tensor:
    if not input_sizes:
        return grad.sum()
    dim = dim % len(input_sizes)
    first = torch.arange(grad.size(dim), device=grad.device).unsqueeze(1) * step
    index = (first + torch.arange(size, device=grad.device)).flatten()
    rows = grad.movedim(-1, dim + 1).flatten(dim, dim + 1)
    zeros = torch.zeros(input_sizes, dtype=grad.dtype, device=grad.device)
    return aten.index_put.default(zeros, [None] * dim + [index], rows, True)


DECOMPOSITIONS = {aten.unfold.default: _unfold, aten.unfold_backward.default: _unfold_backward}
