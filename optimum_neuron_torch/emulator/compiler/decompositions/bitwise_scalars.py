"""Bitwise operators with a number on the right, and shifts: torch-mlir has those of two tensors only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


aten = torch.ops.aten


def _with_tensor(operator: Any) -> Callable[[Tensor, Any], Tensor]:
    def decomposed(x: Tensor, number: Any) -> Tensor:
        return operator(x, torch.full((), number, dtype=torch.result_type(x, number), device=x.device))

    return decomposed


_OPERATORS = {
    aten.bitwise_or: aten.bitwise_or.Tensor,
    aten.bitwise_xor: aten.bitwise_xor.Tensor,
    aten.__lshift__: aten.bitwise_left_shift.Tensor,
    aten.__rshift__: aten.bitwise_right_shift.Tensor,
    aten.bitwise_left_shift: aten.bitwise_left_shift.Tensor,
    aten.bitwise_right_shift: aten.bitwise_right_shift.Tensor,
}
DECOMPOSITIONS = {
    getattr(packet, overload): _with_tensor(operator)
    for packet, operator in _OPERATORS.items()
    for overload in ("Scalar", "Tensor_Scalar")
    if overload in packet.overloads()
}
