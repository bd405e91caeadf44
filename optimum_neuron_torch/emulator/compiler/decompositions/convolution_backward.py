"""The gradient of a convolution as convolutions: torch-mlir legalises it only without strides and groups.

Shape suffixes: B batch, O output channels, C input channels, X spatial axes.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


aten = torch.ops.aten


def _convolution_backward(
    grad_BOX: Tensor,
    x_BCX: Tensor,
    weight: Tensor,
    bias_sizes: Sequence[int] | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    output_mask: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    axes = x_BCX.dim() - 2
    stride, padding, dilation = (list(v) * (axes // len(v)) for v in (stride, padding, dilation))
    grad_input = grad_weight = grad_bias = None
    if output_mask[0]:
        if transposed:
            grad_input = aten.convolution.default(
                grad_BOX, weight, None, stride, padding, dilation, False, [0] * axes, groups
            )
        else:
            extra = [
                x_BCX.size(2 + i)
                - (
                    (grad_BOX.size(2 + i) - 1) * stride[i]
                    - 2 * padding[i]
                    + dilation[i] * (weight.size(2 + i) - 1)
                    + 1
                )
                for i in range(axes)
            ]
            grad_input = aten.convolution.default(
                grad_BOX, weight, None, stride, padding, dilation, True, extra, groups
            )
    if output_mask[1]:
        # A transposed convolution is the gradient of a plain one: data and gradient change places.
        data, gradient = (grad_BOX, x_BCX) if transposed else (x_BCX, grad_BOX)
        parts = [
            _weight_gradient(data_part, gradient_part, stride, padding, dilation, weight.shape[2:])
            for data_part, gradient_part in zip(data.chunk(groups, 1), gradient.chunk(groups, 1), strict=True)
        ]
        grad_weight = torch.cat(parts, 0)
    if output_mask[2]:
        grad_bias = grad_BOX.sum([0, *range(2, grad_BOX.dim())])
    return grad_input, grad_weight, grad_bias


def _weight_gradient(
    data_BCX: Tensor,
    grad_BOX: Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    kernel: Sequence[int],
) -> Tensor:
    """Correlate data with gradient, channels as batch; stride and dilation change places."""
    data, kernel_like = data_BCX.transpose(0, 1), grad_BOX.transpose(0, 1)
    no_padding = [0] * len(kernel)
    grad_COX = aten.convolution.default(data, kernel_like, None, dilation, padding, stride, False, no_padding, 1)
    for axis, size in enumerate(kernel):
        grad_COX = grad_COX.narrow(2 + axis, 0, size)
    return grad_COX.transpose(0, 1)


DECOMPOSITIONS = {aten.convolution_backward.default: _convolution_backward}
