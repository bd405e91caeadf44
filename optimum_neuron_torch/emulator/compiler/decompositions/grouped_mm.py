"""Grouped matrix products of mixture-of-experts layers, dense: every expert computes all rows, a mask keeps its own.

The offsets that bound each expert's rows are data, and StableHLO's shapes are static.
"""

from __future__ import annotations

import torch
from torch import Tensor


aten = torch.ops.aten


def _grouped_mm(
    rows: Tensor, weights: Tensor, offs: Tensor | None = None, bias: Tensor | None = None, out_dtype: object = None
) -> Tensor:
    if rows.dim() != 2 or weights.dim() != 3 or offs is None:
        return NotImplemented
    position = torch.arange(rows.size(0), device=rows.device).unsqueeze(-1)
    total = torch.zeros(rows.size(0), weights.size(-1), dtype=rows.dtype, device=rows.device)
    for expert in range(weights.size(0)):
        begins = offs[expert - 1] if expert else torch.zeros_like(offs[0])
        own = (position >= begins) & (position < offs[expert])
        total = total + torch.where(own, rows @ weights[expert], 0.0)
    return total


DECOMPOSITIONS = {aten._grouped_mm.default: _grouped_mm}
# Transformers' own operator for devices without a kernel, known once its module is imported.
BY_NAME = {"transformers::grouped_mm_fallback": _grouped_mm}
