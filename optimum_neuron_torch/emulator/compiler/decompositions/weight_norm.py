"""Weight normalisation and its gradient, which torch-mlir does not know."""

from __future__ import annotations

import torch
from torch import Tensor


aten = torch.ops.aten


def _forward(direction: Tensor, magnitude: Tensor, dim: int = 0) -> tuple[Tensor, Tensor]:
    norm = direction.square().sum(_other_axes(direction, dim), keepdim=True).sqrt()
    return direction * (magnitude / norm), norm


def _backward(grad: Tensor, direction: Tensor, magnitude: Tensor, norm: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    projection = (grad * direction).sum(_other_axes(direction, dim), keepdim=True)
    ratio = magnitude / norm
    return ratio * (grad - direction * (projection / norm.square())), projection / norm


def _other_axes(x: Tensor, dim: int) -> list[int]:
    return [axis for axis in range(x.dim()) if axis != dim % x.dim()]


DECOMPOSITIONS = {
    aten._weight_norm_interface.default: _forward,
    aten._weight_norm_interface_backward.default: _backward,
}
