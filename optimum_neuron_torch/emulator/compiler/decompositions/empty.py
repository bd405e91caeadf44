"""Uninitialised tensors as zeros: StableHLO has no uninitialised memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


aten = torch.ops.aten


def _empty(size: Sequence[int], *, dtype: torch.dtype | None = None, **ignored: Any) -> Tensor:
    return aten.full.default(list(size), 0, dtype=dtype or torch.get_default_dtype(), device=torch.device("cpu"))


def _empty_permuted(size: Sequence[int], physical_layout: Sequence[int], **options: Any) -> Tensor:
    return _empty(size, **options)


def _empty_strided(size: Sequence[int], stride: Sequence[int], **options: Any) -> Tensor:
    return _empty(size, **options)


DECOMPOSITIONS = {
    aten.empty.memory_format: _empty,
    aten.empty_permuted.default: _empty_permuted,
    aten.empty_strided.default: _empty_strided,
}
