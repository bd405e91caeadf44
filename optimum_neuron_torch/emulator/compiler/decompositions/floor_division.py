"""Floored division of whole numbers in whole numbers: torch-mlir divides in float64, which Trainium lacks."""

from __future__ import annotations

import torch
from torch import Tensor

from optimum_neuron_torch.emulator.compiler.decompositions.remainder import is_real


aten = torch.ops.aten


def _floor_divide(x: Tensor, other: Tensor | int) -> Tensor:
    if is_real(x) or is_real(other):
        return NotImplemented
    quotient = torch.div(x, other, rounding_mode="trunc")
    rest = x - quotient * other
    return torch.where((rest != 0) & ((rest < 0) != (other < 0)), quotient - 1, quotient)


def _divide(x: Tensor, other: Tensor | int, *, rounding_mode: str | None = None) -> Tensor:
    return _floor_divide(x, other) if rounding_mode == "floor" else NotImplemented


DECOMPOSITIONS = {
    aten.floor_divide.default: _floor_divide,
    aten.floor_divide.Scalar: _floor_divide,
    aten.div.Tensor_mode: _divide,
    aten.div.Scalar_mode: _divide,
}
