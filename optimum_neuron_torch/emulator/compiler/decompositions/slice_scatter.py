"""`slice_scatter` as a concatenation: torch-mlir exhausts memory on its open end (`end = 2**63 - 1`)."""

from __future__ import annotations

import torch
from torch import Tensor


aten = torch.ops.aten


def _slice_scatter(
    x: Tensor, source: Tensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Tensor:
    start, end, step = slice(start, end, step).indices(x.size(dim))
    if step != 1:
        index = torch.arange(start, end, step, device=x.device)
        return aten.index_put.default(x, [None] * (dim % x.dim()) + [index], source)
    middle = source.expand(*x.shape[: dim % x.dim()], max(end - start, 0), *x.shape[dim % x.dim() + 1 :])
    parts = [x.narrow(dim, 0, start), middle.to(x.dtype), x.narrow(dim, end, x.size(dim) - end)]
    return torch.cat([part for part in parts if part.size(dim)], dim)


DECOMPOSITIONS = {aten.slice_scatter.default: _slice_scatter}
