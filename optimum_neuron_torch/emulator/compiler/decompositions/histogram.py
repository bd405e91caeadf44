"""`histc` as a scatter: accelerators count integers with it, as mixture-of-experts layers do, and the CPU does not."""

from __future__ import annotations

import torch
from torch import Tensor


aten = torch.ops.aten


def _histc(x: Tensor, bins: int = 100, min: float = 0, max: float = 0) -> Tensor:
    if min == max:
        return NotImplemented  # the range is data
    values = x.flatten().to(torch.float32)
    position = ((values - min) * (bins / (max - min))).floor().clamp(max=bins - 1)
    counted = ((values >= min) & (values <= max)).to(x.dtype)
    counts = torch.zeros(bins, dtype=x.dtype, device=x.device)
    return counts.scatter_add(0, position.clamp(min=0).to(torch.int64), counted)


DECOMPOSITIONS = {aten.histc.default: _histc}
