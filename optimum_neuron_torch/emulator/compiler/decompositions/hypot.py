"""`hypot`, the magnitude of complex numbers, which torch-mlir does not know. Scaled, so that no square overflows."""

from __future__ import annotations

import torch
from torch import Tensor


def _hypot(a: Tensor, b: Tensor) -> Tensor:
    a, b = a.abs(), b.abs()
    larger, smaller = torch.maximum(a, b), torch.minimum(a, b)
    # Nothing and infinity have no ratio; both are their own magnitude.
    has_ratio = (larger > 0) & ~torch.isinf(larger)
    ratio = smaller / torch.where(has_ratio, larger, 1.0)
    return torch.where(has_ratio, larger * torch.sqrt(1 + ratio * ratio), larger)


DECOMPOSITIONS = {torch.ops.aten.hypot.default: _hypot}
