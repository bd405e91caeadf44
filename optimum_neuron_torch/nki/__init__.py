"""Attention and its siblings for people, and the simulator's switch."""

from .functions import (
    add_rms_norm,
    attention,
    cross_entropy,
    layer_norm,
    rms_norm,
    rotary_embedding,
    swiglu,
    swiglu_halves,
)
from .launching import KERNEL_OPS
from .modes import simulation


__all__ = [
    "add_rms_norm",
    "attention",
    "cross_entropy",
    "kernel_ops",
    "layer_norm",
    "rms_norm",
    "rotary_embedding",
    "simulation",
    "swiglu",
    "swiglu_halves",
]


def kernel_ops() -> dict[str, str]:
    """The operators of PyTorch that launch a kernel, by name, each with what it computes."""
    return dict(sorted(KERNEL_OPS.items()))
