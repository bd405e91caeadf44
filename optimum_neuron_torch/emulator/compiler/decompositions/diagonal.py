"""Diagonals, which torch-mlir does not know, as reads and writes by index."""

from __future__ import annotations

import torch
from torch import Tensor


aten = torch.ops.aten


def _positions(x: Tensor, offset: int, dim1: int, dim2: int) -> tuple[Tensor, Tensor]:
    """Row and column of each element of the diagonal."""
    rows, columns = x.size(dim1), x.size(dim2)
    first_row, first_column = max(-offset, 0), max(offset, 0)
    count = max(min(rows - first_row, columns - first_column), 0)
    along = torch.arange(count, device=x.device)
    return along + first_row, along + first_column


def _diagonal(x: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    row, column = _positions(x, offset, dim1, dim2)
    return x.movedim((dim1, dim2), (-2, -1))[..., row, column]


def _diagonal_scatter(x: Tensor, source: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    row, column = _positions(x, offset, dim1, dim2)
    last = x.movedim((dim1, dim2), (-2, -1))
    indices = [None] * (x.dim() - 2) + [row, column]
    return aten.index_put.default(last, indices, source).movedim((-2, -1), (dim1, dim2))


DECOMPOSITIONS = {
    aten.diagonal.default: _diagonal,
    aten.diagonal_copy.default: _diagonal,
    aten.diagonal_scatter.default: _diagonal_scatter,
}
