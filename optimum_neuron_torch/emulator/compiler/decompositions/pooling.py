"""Pooling that torch-mlir lacks, or gets wrong in silence: windows that hang over the end, divisors, gradients.

An average over windows is a matrix product along each axis: the matrix says which element is in which window. A
maximum gets its padding explicitly.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor


aten = torch.ops.aten


def _output_size(size: int, kernel: int, stride: int, padding: int, dilation: int, ceil_mode: bool) -> int:
    rest = size + 2 * padding - dilation * (kernel - 1) - 1
    count = (-(-rest // stride) if ceil_mode else rest // stride) + 1
    # A window that would begin in the padding at the end does not exist.
    return count - 1 if ceil_mode and (count - 1) * stride >= size + padding else count


def _all_axes(value: Sequence[int], axes: int) -> list[int]:
    return list(value) * (axes // len(value))


def _windows(
    x: Tensor,
    axes: int,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,
    pads: bool,
) -> tuple[list[Tensor], list[Tensor]]:
    """Per axis which element is in which window (elements, windows), and how many places each window counts."""
    kernel, padding = _all_axes(kernel, axes), _all_axes(padding, axes)
    stride = _all_axes(stride, axes) if stride else kernel
    members, places = [], []
    for axis, (k, s, p) in enumerate(zip(kernel, stride, padding, strict=True)):
        size = x.size(axis - axes)
        begin = torch.arange(_output_size(size, k, s, p, 1, ceil_mode)) * s - p
        element = torch.arange(size).unsqueeze(1)
        members.append(((element >= begin) & (element < begin + k)).to(x.dtype))
        end = (begin + k).clamp(max=size + p if pads else size)
        places.append((end - (begin if pads else begin.clamp(min=0))).to(x.dtype))
    return members, places


def _divided(x: Tensor, places: list[Tensor], divisor: int | None) -> Tensor:
    if divisor is not None:
        return x / divisor
    for axis, count in enumerate(places):
        x = x / count.reshape([-1] + [1] * (len(places) - axis - 1))
    return x


def _along_axes(x: Tensor, matrices: list[Tensor]) -> Tensor:
    for axis, matrix in enumerate(matrices):
        x = (x.movedim(axis - len(matrices), -1) @ matrix).movedim(-1, axis - len(matrices))
    return x


def _average(axes: int) -> Callable[..., Tensor]:
    def pool(
        x: Tensor,
        kernel: Sequence[int],
        stride: Sequence[int] = (),
        padding: Sequence[int] = (0,),
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Tensor:
        if divisor_override is None and not ceil_mode:
            return NotImplemented
        members, places = _windows(x, axes, kernel, stride, padding, ceil_mode, count_include_pad)
        return _divided(_along_axes(x, members), places, divisor_override)

    return pool


def _average_backward(axes: int) -> Callable[..., Tensor]:
    def gradient(
        grad: Tensor,
        x: Tensor,
        kernel: Sequence[int],
        stride: Sequence[int],
        padding: Sequence[int],
        ceil_mode: bool,
        count_include_pad: bool,
        divisor_override: int | None,
    ) -> Tensor:
        members, places = _windows(x, axes, kernel, stride, padding, ceil_mode, count_include_pad)
        return _along_axes(_divided(grad, places, divisor_override), [member.t() for member in members])

    return gradient


def _shares(x: Tensor, sizes: Sequence[int]) -> list[Tensor]:
    """Per axis the share of each element in each adaptive window (elements, windows)."""
    shares = []
    for axis, count in enumerate(sizes):
        size = x.size(axis - len(sizes))
        window, element = torch.arange(count), torch.arange(size).unsqueeze(1)
        begin = torch.div(window * size, count, rounding_mode="floor")
        end = torch.div((window + 1) * size + count - 1, count, rounding_mode="floor")
        shares.append(((element >= begin) & (element < end)).to(x.dtype) / (end - begin).to(x.dtype))
    return shares


def _adaptive(x: Tensor, sizes: Sequence[int]) -> Tensor:
    return _along_axes(x, _shares(x, sizes))


def _adaptive_backward(axes: int) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda grad, x: _along_axes(grad, [share.t() for share in _shares(x, grad.shape[-axes:])])


def _largest(axes: int, operator: Any) -> Callable[..., tuple[Tensor, Tensor]]:
    def pool(
        x: Tensor,
        kernel: Sequence[int],
        stride: Sequence[int] = (),
        padding: Sequence[int] = (0,),
        dilation: Sequence[int] = (1,),
        ceil_mode: bool = False,
    ) -> tuple[Tensor, Tensor]:
        if not ceil_mode:
            return NotImplemented
        kernel, padding, dilation = (_all_axes(value, axes) for value in (kernel, padding, dilation))
        stride = _all_axes(stride, axes) if stride else kernel
        sizes = list(x.shape[-axes:])
        pads, padded_sizes = [], []
        for size, k, s, p, d in zip(sizes, kernel, stride, padding, dilation, strict=True):
            count = _output_size(size, k, s, p, d, True)
            over = max((count - 1) * s + d * (k - 1) + 1 - (size + 2 * p), 0)
            pads = [p, p + over, *pads]
            padded_sizes.append(size + 2 * p + over)
        lowest = -math.inf if x.is_floating_point() else torch.iinfo(x.dtype).min
        padded = aten.constant_pad_nd.default(x, pads, lowest)
        values, index = operator(padded, kernel, stride, [0] * axes, dilation, False)
        return values, _without_padding(index, padded_sizes, sizes, padding)

    return pool


def _without_padding(index: Tensor, padded: list[int], sizes: list[int], padding: list[int]) -> Tensor:
    """Flat positions in the padded tensor as those in the tensor itself."""
    result, factor = torch.zeros_like(index), 1
    for size, own, p in zip(reversed(padded), reversed(sizes), reversed(padding), strict=True):
        rest = torch.div(index, size, rounding_mode="floor")
        result = result + (index - rest * size - p) * factor
        index, factor = rest, factor * own
    return result


DECOMPOSITIONS = {
    aten.avg_pool2d.default: _average(2),
    aten.avg_pool3d.default: _average(3),
    aten.avg_pool2d_backward.default: _average_backward(2),
    aten.avg_pool3d_backward.default: _average_backward(3),
    aten._adaptive_avg_pool2d.default: _adaptive,
    aten._adaptive_avg_pool3d.default: _adaptive,
    aten._adaptive_avg_pool2d_backward.default: _adaptive_backward(2),
    aten._adaptive_avg_pool3d_backward.default: _adaptive_backward(3),
    aten.max_pool2d_with_indices.default: _largest(2, aten.max_pool2d_with_indices.default),
    aten.max_pool3d_with_indices.default: _largest(3, aten.max_pool3d_with_indices.default),
}
