"""Let an interpreted graph run on results whose layout the trace did not foresee.

CPU kernels choose layouts by their real inputs (oneDNN convolutions return channels-last for a channels-last input),
fake tensors by a model of them. Where the two part, operators that insist on a layout fail although the values are
right.
"""

from __future__ import annotations

import torch
from torch import fx


aten = torch.ops.aten

_NEEDS_CONTIGUOUS = (aten.native_group_norm.default, aten.native_group_norm_backward.default)


def accept_any_layout(gm: fx.GraphModule) -> None:
    """Make views copy where they must, and give group norm a contiguous input. Both cost nothing otherwise."""
    for node in list(gm.graph.nodes):
        if node.target is aten.view.default:
            node.target = aten.reshape.default
        elif node.target in _NEEDS_CONTIGUOUS:
            with gm.graph.inserting_before(node):
                node.args = tuple(_contiguous(gm.graph, argument) for argument in node.args)
    gm.recompile()


def _contiguous(graph: fx.Graph, argument: object) -> object:
    if not isinstance(argument, fx.Node) or not isinstance(argument.meta.get("val"), torch.Tensor):
        return argument
    return graph.call_function(aten.contiguous.default, (argument,))
