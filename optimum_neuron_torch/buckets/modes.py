"""Grad and inference mode around compiled calls."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def outside_inference_mode() -> Iterator[None]:
    """Leave inference mode, and with it alone: one graph serves both it and no_grad.

    `torch.inference_mode(False)` by itself also turns gradients on.
    """
    is_grad_enabled = torch.is_grad_enabled()
    with torch.inference_mode(False), torch.set_grad_enabled(is_grad_enabled):
        yield
