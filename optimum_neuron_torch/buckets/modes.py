"""Grad mode, inference mode and autocast around compiled calls."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


def autocast_dtype(device: torch.device) -> torch.dtype | None:
    """What autocast computes in on `device`, or None where it is off: part of what a graph was compiled for."""
    return torch.get_autocast_dtype(device.type) if torch.is_autocast_enabled(device.type) else None


@contextmanager
def outside_inference_mode() -> Iterator[None]:
    """Leave inference mode, and with it alone: one graph serves both it and no_grad.

    `torch.inference_mode(False)` by itself also turns gradients on.
    """
    is_grad_enabled = torch.is_grad_enabled()
    with torch.inference_mode(False), torch.set_grad_enabled(is_grad_enabled):
        yield
