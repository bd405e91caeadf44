"""Cumulative products and extremes, which torch-mlir does not know, in steps that double.

After the step of width w each element has taken in the w elements before it.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


aten = torch.ops.aten


def _cumulative_product(x: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Tensor:
    x = x.to(dtype or (x.dtype if x.is_floating_point() else torch.int64))
    width = 1
    while x.dim() and width < x.size(dim):
        head, tail = x.narrow(dim, 0, width), x.narrow(dim, width, x.size(dim) - width)
        x = torch.cat([head, x.narrow(dim, 0, x.size(dim) - width) * tail], dim)
        width *= 2
    return x


def _cumulative_logsumexp(x: Tensor, dim: int) -> Tensor:
    """Each step relative to the larger of its two parts, so that no exponential overflows."""
    width = 1
    while x.dim() and width < x.size(dim):
        earlier, later = x.narrow(dim, 0, x.size(dim) - width), x.narrow(dim, width, x.size(dim) - width)
        larger, smaller = torch.maximum(earlier, later), torch.minimum(earlier, later)
        # Of two equal infinities the difference is not a number, and they are their own sum.
        difference = torch.where(larger == smaller, 0.0, smaller - larger)
        merged = torch.where(torch.isinf(larger), larger, larger + torch.log1p(torch.exp(difference)))
        x = torch.cat([x.narrow(dim, 0, width), merged], dim)
        width *= 2
    return x


def _cumulative_extreme(wins: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, int], tuple[Tensor, Tensor]]:
    """`wins(later, earlier)`: where the later element is the result; of equal ones it is, and NaN always is."""

    def reduce(x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
        if not x.dim():
            return x.clone(), torch.zeros_like(x, dtype=torch.int64)
        size = x.size(dim)
        shape = [1] * x.dim()
        shape[dim] = size
        index = torch.arange(size, device=x.device).reshape(shape).expand(x.shape)
        width = 1
        while width < size:
            earlier, earlier_index = (value.narrow(dim, 0, size - width) for value in (x, index))
            later, later_index = (value.narrow(dim, width, size - width) for value in (x, index))
            takes_later = wins(later, earlier) & ~_is_nan(earlier) | _is_nan(later)
            x = torch.cat([x.narrow(dim, 0, width), torch.where(takes_later, later, earlier)], dim)
            merged = torch.where(takes_later, later_index, earlier_index)
            index = torch.cat([index.narrow(dim, 0, width), merged], dim)
            width *= 2
        return x, index

    return reduce


def _is_nan(x: Tensor) -> Tensor:
    return torch.isnan(x) if x.is_floating_point() else torch.zeros_like(x, dtype=torch.bool)


def _cumulative_sum(x: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Tensor:
    """A number has no axis to sum along."""
    if x.dim():
        return NotImplemented
    return x.to(dtype or (x.dtype if x.is_floating_point() else torch.int64))


DECOMPOSITIONS = {
    aten.cumprod.default: _cumulative_product,
    aten.cummax.default: _cumulative_extreme(torch.ge),
    aten.cummin.default: _cumulative_extreme(torch.le),
    aten.logcumsumexp.default: _cumulative_logsumexp,
    aten.cumsum.default: _cumulative_sum,
}
