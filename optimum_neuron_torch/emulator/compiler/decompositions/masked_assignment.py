"""`x[mask] = value` as a selection: torch-mlir takes index tensors for `index_put`, not boolean masks.

Only where `value` is the same for every place of the mask: one value per place has to be counted first, and counting
has no static shape.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


aten = torch.ops.aten


def _index_put(x: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False) -> Tensor:
    mask, *others = indices
    if mask is None or mask.dtype != torch.bool or others or values.dim() > x.dim() - mask.dim():
        return NotImplemented
    mask = mask.reshape(*mask.shape, *[1] * (x.dim() - mask.dim()))
    # The trailing axes of `x` behind those of the mask are those of `values`.
    return torch.where(mask, x + values if accumulate else values, x)


DECOMPOSITIONS = {aten.index_put.default: _index_put}
