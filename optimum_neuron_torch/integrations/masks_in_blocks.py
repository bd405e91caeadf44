"""How a mask enters a block that is compiled for itself (`compile="blocks"`): with what is known of it.

Shape legend: B batch, Q queries, K keys.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..nki.masks import Seen, seen_in, with_known


@dataclass(frozen=True)
class MaskForm:
    """What is static about a mask: which tensors say what queries see, and the rest of it."""

    has_ranges: bool
    has_padding: bool
    is_causal: bool
    unknown: str | None


@dataclass(frozen=True)
class MaskCrossing:
    """A mask enters as itself, its ranges and its padding (see `Crossing`)."""

    def take(self, mask: torch.Tensor, index: Any) -> tuple[MaskForm, list[torch.Tensor]]:
        seen = seen_in(mask)
        form = MaskForm(seen.ranges_B1Q2 is not None, seen.padding_B11K is not None, seen.is_causal, seen.unknown)
        known = [tensor for tensor in (seen.ranges_B1Q2, seen.padding_B11K) if tensor is not None]
        return form, [mask, *known]

    def make(self, form: MaskForm, tensors: Sequence[torch.Tensor], index: Any) -> torch.Tensor:
        mask, *known = tensors
        ranges = known.pop(0) if form.has_ranges else None
        padding = known.pop(0) if form.has_padding else None
        return with_known(mask.view(mask.shape), Seen(ranges, padding, form.is_causal, form.unknown))

    def gains(self, form: MaskForm) -> int:
        return 0

    def made(self, form: MaskForm, mask: torch.Tensor) -> list[torch.Tensor]:
        return []

    def put(self, mask: torch.Tensor, index: Any, tensors: Sequence[torch.Tensor]) -> None:
        pass
