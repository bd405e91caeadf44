"""Positions that a model counts from a cache's length, where that length is a tensor."""

from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


class PositionsFromTensors(TorchFunctionMode):
    """`torch.arange(start, end)` with a 0-d tensor as `start` counts one block of `length` tokens from there.

    Models write `arange(cache_length, cache_length + tokens)`. With a tensor for the length that reads its value, to
    learn how many positions there are, and no graph can hold that; but the step knows how long its block is. Where
    values can be read, as in the self check, another number of positions is an error.
    """

    def __init__(self, length: int) -> None:
        super().__init__()
        self.length = length

    def __torch_function__(self, func: Callable, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.arange and len(args) == 2 and isinstance(args[0], torch.Tensor):
            return self._count_from(*args, **kwargs)
        return func(*args, **kwargs)

    def _count_from(self, start: torch.Tensor, end: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        if not torch.compiler.is_compiling() and int(end) - int(start) != self.length:
            raise NotImplementedError(
                f"positions from {int(start)} to {int(end)} in a block of {self.length} tokens have no static form"
            )
        return torch.arange(self.length, **kwargs) + start
