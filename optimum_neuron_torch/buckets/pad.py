"""Padding on the host. Rows are copies of a real row: a fully masked row gives NaN in some kernels."""

import torch


def on_host(tensor: torch.Tensor) -> torch.Tensor:
    """A normal (not inference) tensor on the host."""
    return tensor.to("cpu", copy=True) if tensor.is_inference() or tensor.device.type != "cpu" else tensor


def pad_rows(x: torch.Tensor, rows: int) -> torch.Tensor:
    """`x` (batch, ...) with copies of its last row up to `rows` rows."""
    missing = rows - x.shape[0]
    return x if missing == 0 else torch.cat([x, x[-1:].expand(missing, *x.shape[1:])])


def pad_axis(x: torch.Tensor, axis: int, size: int, value: float | int = 0) -> torch.Tensor:
    """`x` with `value` behind its end along `axis`, up to `size`."""
    missing = size - x.shape[axis]
    if missing == 0:
        return x
    shape = list(x.shape)
    shape[axis] = missing
    return torch.cat([x, x.new_full(shape, value)], dim=axis)


def repeat_last(x: torch.Tensor, axis: int, size: int) -> torch.Tensor:
    """`x` with copies of its last slice along `axis`, up to `size`."""
    missing = size - x.shape[axis]
    if missing == 0:
        return x
    last = x.narrow(axis, x.shape[axis] - 1, 1)
    return torch.cat([x, last.expand(*[missing if i == axis % x.dim() else -1 for i in range(x.dim())])], dim=axis)


def dense(x: torch.Tensor) -> torch.Tensor:
    """`x` with the strides of a freshly made tensor, axes of size 1 too: compiled functions guard on them."""
    strides, step = [], 1
    for size in reversed(x.shape):
        strides.insert(0, step)
        step *= max(size, 1)
    x = x.contiguous()
    return x if x.stride() == tuple(strides) else x.as_strided(x.shape, strides)
