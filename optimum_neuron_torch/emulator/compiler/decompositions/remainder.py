"""`fmod` and `remainder`.

torch-mlir has `fmod` of two floating point tensors only, and gives `remainder` the dividend's sign where PyTorch gives
it the divisor's.
"""

from __future__ import annotations

import torch
from torch import Tensor


aten = torch.ops.aten

Number = Tensor | int | float


def _fmod(x: Tensor, other: Number) -> Tensor:
    if not is_real(x) and not is_real(other):
        return x - torch.div(x, other, rounding_mode="trunc") * other
    if isinstance(other, Tensor):
        return NotImplemented
    x = x.to(torch.result_type(x, other))
    return aten.fmod.Tensor(x, torch.full_like(x, other))


def _remainder(x: Number, other: Number) -> Tensor:
    if not isinstance(x, Tensor):
        x = torch.full_like(other, x, dtype=torch.result_type(x, other))  # type: ignore[arg-type]
    rest = torch.fmod(x, other)
    return torch.where((rest != 0) & ((rest < 0) != (other < 0)), rest + other, rest)


def is_real(value: Number) -> bool:
    return value.is_floating_point() if isinstance(value, Tensor) else isinstance(value, float)


DECOMPOSITIONS = {
    aten.fmod.Scalar: _fmod,
    aten.fmod.Tensor: _fmod,
    aten.remainder.Scalar: _remainder,
    aten.remainder.Tensor: _remainder,
    aten.remainder.Scalar_Tensor: _remainder,
}
