"""Distances between the rows of two matrices, which torch-mlir does not know, from all differences."""

from __future__ import annotations

import torch
from torch import Tensor


aten = torch.ops.aten


def _distances(a: Tensor, b: Tensor, p: float, compute_mode: int | None = None) -> Tensor:
    return torch.linalg.vector_norm(a.unsqueeze(-2) - b.unsqueeze(-3), p, dim=-1)


DECOMPOSITIONS = {aten._cdist_forward.default: _distances}
