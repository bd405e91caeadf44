"""Static shapes: what Dynamo offers as a symbol is specialised to the size at hand.

With `dynamic=None` Dynamo marks a size that changed as dynamic and hands the second graph symbols. Trainium compiles
one graph per shape, so the symbol becomes a number and the guard Dynamo adds for it leads to a graph per shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx
from torch._guards import detect_fake_mode
from torch._subclasses.fake_tensor import FakeTensor

from optimum_neuron_torch.emulator.compiler.errors import DynamicShapesError
from optimum_neuron_torch.emulator.compiler.options import DYNAMIC_REFUSED


def refuse_dynamic() -> None:
    """Raise if the graph at hand was asked for with `dynamic=True`."""
    if not torch._dynamo.config.assume_static_by_default:
        raise DynamicShapesError(DYNAMIC_REFUSED)


def specialise(gm: fx.GraphModule, inputs: Sequence[Any]) -> list[Any]:
    """Replace symbols among the inputs by the numbers they stand for, each guarded, and their uses in `gm` alike."""
    changed = False
    for node, value in zip(gm.graph.find_nodes(op="placeholder"), inputs, strict=True):
        if isinstance(value, torch.SymInt):
            node.replace_all_uses_with(int(value))  # type: ignore[arg-type]
            changed = True
    if changed:
        gm.recompile()
    return [_specialise(value) for value in inputs]


def _specialise(value: Any) -> Any:
    if isinstance(value, torch.SymInt):
        return int(value)
    if isinstance(value, FakeTensor) and value._has_symbolic_sizes_strides:
        return _static_copy(value)
    return value


def _static_copy(value: FakeTensor) -> torch.Tensor:
    sizes = [int(size) for size in value.size()]
    strides = [int(stride) for stride in value.stride()]
    with detect_fake_mode([value]):
        static = torch.empty_strided(sizes, strides, dtype=value.dtype, device=value.device)
    if isinstance(value, torch.nn.Parameter):
        return torch.nn.Parameter(static, value.requires_grad)
    return static.requires_grad_(value.requires_grad)
