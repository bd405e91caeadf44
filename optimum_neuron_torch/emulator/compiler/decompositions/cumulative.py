"""Cumulative products and extremes, which torch-mlir does not know, in steps that double.

After the step of width w each element has taken in the w elements before it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


aten = torch.ops.aten


def _cumulative_product(x: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Tensor:
    x = x.to(dtype or (x.dtype if x.is_floating_point() else torch.int64))
    return _in_doubling_steps((x,), dim, lambda earlier, later: (earlier[0] * later[0],))[0]


def _cumulative_logsumexp(x: Tensor, dim: int) -> Tensor:
    return _in_doubling_steps((x,), dim, lambda earlier, later: (_log_of_sum(*earlier, *later),))[0]


def _log_of_sum(a: Tensor, b: Tensor) -> Tensor:
    """Relative to the larger of the two, so that no exponential overflows."""
    larger, smaller = torch.maximum(a, b), torch.minimum(a, b)
    # Of two equal infinities the difference is not a number, and they are their own sum.
    difference = torch.where(larger == smaller, 0.0, smaller - larger)
    return torch.where(torch.isinf(larger), larger, larger + torch.log1p(torch.exp(difference)))


def _cumulative_extreme(wins: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, int], tuple[Tensor, Tensor]]:
    """`wins(later, earlier)`: where the later element is the result; of equal ones it is, and NaN always is."""

    def better(earlier: Sequence[Tensor], later: Sequence[Tensor]) -> tuple[Tensor, ...]:
        takes_later = wins(later[0], earlier[0]) & ~_is_nan(earlier[0]) | _is_nan(later[0])
        return tuple(torch.where(takes_later, new, old) for old, new in zip(earlier, later, strict=True))

    def reduce(x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
        if not x.dim():
            return x.clone(), torch.zeros_like(x, dtype=torch.int64)
        shape = [1] * x.dim()
        shape[dim] = x.size(dim)
        index = torch.arange(x.size(dim), device=x.device).reshape(shape).expand(x.shape)
        values, indices = _in_doubling_steps((x, index), dim, better)
        return values, indices

    return reduce


def _in_doubling_steps(
    values: tuple[Tensor, ...],
    dim: int,
    merge: Callable[[Sequence[Tensor], Sequence[Tensor]], tuple[Tensor, ...]],
) -> tuple[Tensor, ...]:
    """`merge(earlier, later)` over all places up to each, along an axis that the `values` share."""
    size, width = values[0].size(dim) if values[0].dim() else 1, 1
    while width < size:
        merged = merge(
            [value.narrow(dim, 0, size - width) for value in values],
            [value.narrow(dim, width, size - width) for value in values],
        )
        values = tuple(
            torch.cat([value.narrow(dim, 0, width), new], dim) for value, new in zip(values, merged, strict=True)
        )
        width *= 2
    return values


def _is_nan(x: Tensor) -> Tensor:
    return torch.isnan(x) if x.is_floating_point() else torch.zeros_like(x, dtype=torch.bool)


DECOMPOSITIONS = {
    aten.cumprod.default: _cumulative_product,
    aten.cummax.default: _cumulative_extreme(torch.ge),
    aten.cummin.default: _cumulative_extreme(torch.le),
    aten.logcumsumexp.default: _cumulative_logsumexp,
}
