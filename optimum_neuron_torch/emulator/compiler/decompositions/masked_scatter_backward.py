"""The gradient of `masked_scatter`'s source as a scatter.

How many places the mask has depends on values, where each of them goes is arithmetic.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


aten = torch.ops.aten


def _masked_scatter_backward(grad: Tensor, mask: Tensor, sizes: Sequence[int]) -> Tensor:
    taken = mask.expand_as(grad).flatten()
    count = torch.Size(sizes).numel()
    # The places of the mask take the source's elements in order; a last element collects what goes nowhere.
    place = torch.where(taken, torch.cumsum(taken.to(torch.int64), 0) - 1, count)
    elements = torch.zeros(count + 1, dtype=grad.dtype, device=grad.device)
    return aten.index_put.default(elements, [place], grad.flatten(), True).narrow(0, 0, count).reshape(sizes)


DECOMPOSITIONS = {aten.masked_scatter_backward.default: _masked_scatter_backward}
