"""The gradient of max pooling as a scatter by the saved indices."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


aten = torch.ops.aten


def _max_pool2d_backward(
    grad: Tensor, x: Tensor, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool, indices: Tensor
) -> Tensor:
    flat = torch.zeros(*x.shape[:-2], x.size(-2) * x.size(-1), dtype=grad.dtype, device=grad.device)
    return flat.scatter_add(-1, indices.flatten(-2), grad.flatten(-2)).reshape(x.shape)


DECOMPOSITIONS = {aten.max_pool2d_with_indices_backward.default: _max_pool2d_backward}
