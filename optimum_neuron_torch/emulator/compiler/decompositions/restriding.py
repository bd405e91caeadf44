"""`as_strided` that only names other strides for axes of one element: torch-mlir gathers, with an index per element.

AOTAutograd restores the strides of a result that way (a mean over kept axes).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


aten = torch.ops.aten


def _as_strided(x: Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None) -> Tensor:
    offset = x.storage_offset() if storage_offset is None else storage_offset
    if list(x.size()) != list(size) or offset != x.storage_offset():
        return NotImplemented
    axes = zip(size, x.stride(), stride, strict=True)
    return aten.clone.default(x) if all(have == want for length, have, want in axes if length != 1) else NotImplemented


DECOMPOSITIONS = {aten.as_strided.default: _as_strided}
