"""What an entry of the tables is: a tiny random model of an architecture, its inputs, and what is compared."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree


def all_tensors(output: Any) -> list[torch.Tensor]:
    """Every tensor of a model's output, nested ones too."""
    return [leaf for leaf in pytree.tree_leaves(output) if isinstance(leaf, torch.Tensor)]


def default_loss(output: Any) -> torch.Tensor:
    """The output's own loss where it has one, else the mean square of its floating point tensors."""
    loss = getattr(output, "loss", None)
    if loss is not None:
        return loss
    squares = [leaf.square().mean() for leaf in all_tensors(output) if leaf.is_floating_point()]
    return torch.stack(squares).sum()


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """
    One architecture with a tiny configuration.

    Args:
        name: as users know it; unique among all tables.
        make: builds the model with random weights, on the CPU. The check seeds before, and moves every parameter away
            from its initial value, so that a zero bias or a norm's weight of one hides nothing.
        inputs: the keyword arguments of one call, tensors on the CPU. Padding masks hold real padding.
        results: what of the output is compared; all its tensors by default.
        training: whether the gradients of one training step are compared too. The configuration must have no dropout;
            `nn.Dropout` modules are switched off by the check.
        loss: what is differentiated; the output's `loss` by default, or else its mean square.
        known: why it cannot be one graph on any device, or why results are further from the CPU's than the
            tolerance; empty where nothing is known to be wrong.
    """

    name: str
    make: Callable[[], nn.Module]
    inputs: Callable[[], Mapping[str, Any]]
    results: Callable[[Any], list[torch.Tensor]] = all_tensors
    training: bool = False
    loss: Callable[[Any], torch.Tensor] = default_loss
    known: str = ""
