"""Variances in the type of their input, or float32 for shorter ones, and the norms that take them: torch-mlir computes
them in float64.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor


aten = torch.ops.aten

Axes = Sequence[int] | None


def _var_mean(x: Tensor, dim: Axes = None, *, correction: float | None = None, keepdim: bool = False) -> tuple:
    if x.is_complex():
        return NotImplemented
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    axes = list(range(x.dim())) if not dim else [axis % x.dim() for axis in dim]
    mean = wide.mean(axes, keepdim=True) if axes else wide
    count = math.prod(x.size(axis) for axis in axes)
    squares = (wide - mean).square().sum(axes, keepdim=True) if axes else torch.zeros_like(wide)
    variance = squares / max(count - (1 if correction is None else correction), 0)
    results = [variance, mean] if keepdim else [value.squeeze(axes) for value in (variance, mean)]
    return tuple(value.to(x.dtype) for value in results)


def _var(x: Tensor, dim: Axes = None, *, correction: float | None = None, keepdim: bool = False) -> Tensor:
    results = _var_mean(x, dim, correction=correction, keepdim=keepdim)
    return results if results is NotImplemented else results[0]


def _layer_norm(
    x: Tensor, normalized_shape: Sequence[int], weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    axes = list(range(x.dim() - len(normalized_shape), x.dim()))
    normal, mean, scale = _normalised(x, axes, eps)
    return _scaled(normal, weight, bias, normalized_shape).to(x.dtype), mean, scale


def _group_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, N: int, C: int, HxW: int, group: int, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    normal, mean, scale = _normalised(x.reshape(N, group, C // group * HxW), [2], eps)
    result = _scaled(normal.reshape(x.shape), weight, bias, [C, *[1] * (x.dim() - 2)])
    return result.to(x.dtype), mean.reshape(N, group), scale.reshape(N, group)


def _normalised(x: Tensor, axes: Sequence[int], eps: float) -> tuple[Tensor, Tensor, Tensor]:
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    variance, mean = _var_mean(wide, axes, correction=0, keepdim=True)
    scale = torch.rsqrt(variance + eps)
    return (wide - mean) * scale, mean, scale


def _scaled(x: Tensor, weight: Tensor | None, bias: Tensor | None, shape: Sequence[int]) -> Tensor:
    if weight is not None:
        x = x * weight.reshape(shape)
    return x if bias is None else x + bias.reshape(shape)


DECOMPOSITIONS = {
    aten.var_mean.correction: _var_mean,
    aten.var.correction: _var,
    aten.native_layer_norm.default: _layer_norm,
    aten.native_group_norm.default: _group_norm,
}
