"""Limits given as tensors, and extremes that leave NaN out, which torch-mlir does not know."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


aten = torch.ops.aten


def _clamp(x: Tensor, min: Tensor | None = None, max: Tensor | None = None) -> Tensor:
    x = x if min is None else torch.maximum(x, min)
    return x if max is None else torch.minimum(x, max)


def _without_nan(extreme: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    def of_two(a: Tensor, b: Tensor) -> Tensor:
        if not a.is_floating_point() and not b.is_floating_point():
            return extreme(a, b)
        a, b = torch.broadcast_tensors(a, b)
        return torch.where(torch.isnan(a), b, torch.where(torch.isnan(b), a, extreme(a, b)))

    return of_two


DECOMPOSITIONS = {
    aten.clamp.Tensor: _clamp,
    aten.fmax.default: _without_nan(torch.maximum),
    aten.fmin.default: _without_nan(torch.minimum),
}
