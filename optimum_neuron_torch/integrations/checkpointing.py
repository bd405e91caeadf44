"""Gradient checkpointing of a model whose kernels are simulated: what is computed again runs kernels again.

Autograd computes it again in a thread of its own, after the model's forward has ended.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch

from .. import runtime


# Where Transformers keeps, on each layer, the function that checkpoints it.
_FUNCTION = "_gradient_checkpointing_func"


@contextlib.contextmanager
def simulating_again(module: torch.nn.Module) -> Iterator[None]:
    """What `module` checkpoints within the block is computed again in the simulator."""
    layers = [layer for layer in module.modules() if _FUNCTION in vars(layer)]
    stock = [vars(layer)[_FUNCTION] for layer in layers]
    for layer, function in zip(layers, stock, strict=True):
        setattr(layer, _FUNCTION, functools.partial(_checkpoint, function))
    try:
        yield
    finally:
        for layer, function in zip(layers, stock, strict=True):
            setattr(layer, _FUNCTION, function)


def _checkpoint(checkpoint: Callable[..., Any], function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    def simulated(*args: Any, **kwargs: Any) -> Any:
        with runtime.simulating():
            return function(*args, **kwargs)

    return checkpoint(simulated, *args, **kwargs)
