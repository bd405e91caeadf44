"""Products of few rows with a weight, in bfloat16, as the CPU computes them fastest.

oneDNN packs the right operand of a bfloat16 product into pairs before it multiplies. In `x @ weight.T`, with the few
rows of a decode step or a short prompt, that is the weight: packing takes longer than multiplying. `weight @ x.T`
packs the few rows instead, and a single row needs no packing at all. Sums are accumulated in float32 either way.

Shape suffixes: M rows, K summed, N columns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor


aten = torch.ops.aten
# Beyond, packing the weight is a small part of the work, and what reads the result prefers it row by row.
_MOST_ROWS = 128


def _mm(x_MK: Tensor, other_KN: Tensor) -> Tensor:
    if not _is_narrow(x_MK, other_KN):
        return NotImplemented
    if x_MK.size(0) == 1:
        return aten.mv(other_KN.t(), x_MK.squeeze(0)).unsqueeze(0)
    return aten.mm(other_KN.t(), x_MK.t()).t()


def _addmm(
    bias: Tensor, x_MK: Tensor, other_KN: Tensor, *, beta: torch.types.Number = 1, alpha: torch.types.Number = 1
) -> Tensor:
    if not _is_narrow(x_MK, other_KN) or bias.dim() != 1:
        return NotImplemented
    if x_MK.size(0) == 1:
        return aten.addmv(bias, other_KN.t(), x_MK.squeeze(0), beta=beta, alpha=alpha).unsqueeze(0)
    return aten.addmm(bias.unsqueeze(1), other_KN.t(), x_MK.t(), beta=beta, alpha=alpha).t()


def _is_narrow(x_MK: Tensor, other_KN: Tensor) -> bool:
    is_transposed_weight = other_KN.stride(0) == 1 and other_KN.stride(1) == other_KN.size(0)
    rows, columns = x_MK.size(0), other_KN.size(1)
    return x_MK.dtype == torch.bfloat16 and is_transposed_weight and 0 < rows <= _MOST_ROWS and rows < columns


def with_narrow_products(table: Mapping[Any, Callable[..., Any]]) -> dict[Any, Callable[..., Any]]:
    """`table` of decompositions, Inductor's, with narrow products turned round."""

    def chained(operator: Any, rewrite: Callable[..., Any]) -> Callable[..., Any]:
        stock = table.get(operator)

        def decompose(*args: Any, **kwargs: Any) -> Any:
            result = rewrite(*args, **kwargs)
            return stock(*args, **kwargs) if result is NotImplemented and stock is not None else result

        return decompose

    def kept(operator: Any, matrix: int) -> Callable[..., Any]:
        """Inductor would make a reduction of it, which reads bfloat16 at two thirds of the kernel's speed."""
        stock = table[operator]

        def decompose(*args: Any, **kwargs: Any) -> Any:
            return NotImplemented if args[matrix].dtype == torch.bfloat16 else stock(*args, **kwargs)

        return decompose

    return {
        **table,
        aten.mm.default: chained(aten.mm.default, _mm),
        aten.addmm.default: chained(aten.addmm.default, _addmm),
        aten.mv.default: kept(aten.mv.default, matrix=0),
        aten.addmv.default: kept(aten.addmv.default, matrix=1),
    }
