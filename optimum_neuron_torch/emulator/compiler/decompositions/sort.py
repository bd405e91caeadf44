"""Stable sorts and unsorted top-k, of which torch-mlir knows only the plain forms.

The lowering marks every sort as stable (`stable_sorts.py`), and a sorted top-k is a right unsorted one.
"""

from __future__ import annotations

import torch
from torch import Tensor


aten = torch.ops.aten


def _stable_sort(
    x: Tensor, *, stable: bool | None = None, dim: int = -1, descending: bool = False
) -> tuple[Tensor, Tensor]:
    return aten.sort.default(x, dim, descending)


def _topk(x: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> tuple[Tensor, Tensor]:
    return NotImplemented if sorted else aten.topk.default(x, k, dim, largest, True)


DECOMPOSITIONS = {aten.sort.stable: _stable_sort, aten.topk.default: _topk}
