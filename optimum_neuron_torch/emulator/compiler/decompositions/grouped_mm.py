"""Grouped matrix products of mixture-of-experts layers, dense: every expert computes all rows, a mask keeps its own.

The offsets that bound each expert's rows are data, and StableHLO's shapes are static.

Shape suffixes: S rows, E experts, I input size, O output size.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor


aten = torch.ops.aten


def _grouped_mm(
    a: Tensor, b: Tensor, offs: Tensor | None = None, bias: Tensor | None = None, out_dtype: object = None
) -> Tensor:
    if offs is None or bias is not None or a.dim() != 2:
        return NotImplemented
    if b.dim() == 3:
        return _rows_by_expert(a, b, offs)
    return _weights_by_expert(a.t(), b, offs)


def _rows_by_expert(rows_SI: Tensor, weights_EIO: Tensor, offs_E: Tensor) -> Tensor:
    total_SO = torch.zeros(rows_SI.size(0), weights_EIO.size(-1), dtype=rows_SI.dtype, device=rows_SI.device)
    for expert, own_S1 in enumerate(_own_rows(rows_SI.size(0), offs_E)):
        total_SO = total_SO + torch.where(own_S1, rows_SI @ weights_EIO[expert], 0.0)
    return total_SO


def _weights_by_expert(rows_SI: Tensor, grad_SO: Tensor, offs_E: Tensor) -> Tensor:
    """Per expert the product of its own rows: what a weight's gradient is."""
    return torch.stack(
        [torch.where(own_S1, rows_SI, 0.0).t() @ grad_SO for own_S1 in _own_rows(rows_SI.size(0), offs_E)]
    )


def _own_rows(count: int, offs_E: Tensor) -> Iterator[Tensor]:
    """Per expert, which rows are its own, (S, 1)."""
    position = torch.arange(count, device=offs_E.device).unsqueeze(-1)
    for expert in range(offs_E.size(0)):
        begins = offs_E[expert - 1] if expert else torch.zeros_like(offs_E[0])
        yield (position >= begins) & (position < offs_E[expert])


def _backward(rows_SI: Tensor, weights_EIO: Tensor, offs_E: Tensor, grad_SO: Tensor) -> tuple[Tensor, Tensor]:
    return (
        _rows_by_expert(grad_SO, weights_EIO.transpose(1, 2), offs_E),
        _weights_by_expert(rows_SI, grad_SO, offs_E),
    )


DECOMPOSITIONS = {aten._grouped_mm.default: _grouped_mm}
# Transformers' own operators for devices without a kernel, known once its module is imported.
BY_NAME = {
    "transformers::grouped_mm_fallback": _rows_by_expert,
    "transformers::grouped_mm_fallback_backward": _backward,
}
