"""Turn tensors that a graph holds as attributes into trailing inputs.

Device literals (`torch.tensor([1, 2], device="neuron")` in a forward) reach the graph as attributes on the device.
As inputs they are aliased like any other and the stored graph stays free of tensors.
"""

from __future__ import annotations

import torch
from torch import fx
from torch.utils._python_dispatch import _disable_current_modes

from optimum_neuron_torch.emulator import device
from optimum_neuron_torch.emulator.compiler.passes.editing import add_input, last_input, replace


def lift_constants(gm: fx.GraphModule) -> tuple[fx.GraphModule, list[torch.Tensor]]:
    """Return a copy of `gm` with one more placeholder per constant, and the constants on the host."""
    graph = fx.Graph()
    graph.output(graph.graph_copy(gm.graph, {}))
    constants: list[torch.Tensor] = []
    last = last_input(graph)
    for node in list(graph.nodes):
        if node.op != "get_attr":
            continue
        value = _attribute(gm, str(node.target))
        if not isinstance(value, torch.Tensor):
            continue
        last = add_input(graph, f"constant_{len(constants)}", behind=last)
        replace(node, last)
        # AOTAutograd compiles under its fake tensor mode; the literal is real, on the device or on the host.
        with _disable_current_modes():
            literal = value.detach()
            constants.append((literal if literal.device.type == "cpu" else device.host_alias(literal)).clone())
    return fx.GraphModule(gm, graph), constants


def _attribute(gm: fx.GraphModule, target: str) -> object:
    value: object = gm
    for name in target.split("."):
        value = getattr(value, name)
    return value
