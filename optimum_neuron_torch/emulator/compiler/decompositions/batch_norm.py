"""Batch norm, which torch-mlir legalises neither in its inference nor in its functional training form."""

from __future__ import annotations

import torch
from torch import Tensor
from torch._decomp import get_decompositions


def _inference(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    shape = [1, -1] + [1] * (x.dim() - 2)
    scale = torch.rsqrt(running_var + eps)
    if weight is not None:
        scale = scale * weight
    result = (x - running_mean.reshape(shape)) * scale.reshape(shape)
    if bias is not None:
        result = result + bias.reshape(shape)
    statistics = x.new_zeros((0,))
    return result.to(x.dtype), statistics, statistics.clone()


aten = torch.ops.aten
DECOMPOSITIONS = {
    **get_decompositions(
        [
            aten._native_batch_norm_legit,
            aten._native_batch_norm_legit_functional,
            aten.native_batch_norm,
            aten.native_batch_norm_backward,
            aten.batch_norm_backward,
        ]
    ),
    aten._native_batch_norm_legit_no_training.default: _inference,
}
