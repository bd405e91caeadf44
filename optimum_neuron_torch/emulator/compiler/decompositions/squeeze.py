"""`squeeze.dims`, which torch-mlir does not legalise, as a reshape: shapes are static."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def _squeeze_dims(x: Tensor, dims: Sequence[int]) -> Tensor:
    removed = {dim % x.dim() for dim in dims} if x.dim() else set()
    shape = [size for axis, size in enumerate(x.shape) if not (axis in removed and size == 1)]
    return torch.ops.aten.reshape.default(x, shape)


DECOMPOSITIONS = {torch.ops.aten.squeeze.dims: _squeeze_dims}
