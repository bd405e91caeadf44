"""Comparisons of booleans and unsigned integers as signed ones: torch-mlir names them signed, which XLA refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


aten = torch.ops.aten

_SIGNED = {torch.bool: torch.int32, torch.uint8: torch.int32, torch.uint16: torch.int32, torch.uint32: torch.int64}


def _comparison(operator: Any) -> Callable[..., Tensor]:
    def compare(x: Any, other: Any) -> Tensor:
        if not any(isinstance(value, Tensor) and value.dtype in _SIGNED for value in (x, other)):
            return NotImplemented
        return operator(_signed(x), _signed(other))

    return compare


def _signed(value: Any) -> Any:
    return value.to(_SIGNED.get(value.dtype, value.dtype)) if isinstance(value, Tensor) else value


DECOMPOSITIONS = {
    operator: _comparison(operator)
    for packet in (aten.eq, aten.ne, aten.gt, aten.ge, aten.lt, aten.le)
    for operator in (packet.Tensor, packet.Scalar)
}
