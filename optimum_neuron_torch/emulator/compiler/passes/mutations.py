"""Turn writes to inputs into extra results, for a target that has no memory to write to.

StableHLO computes values. `copy_(placeholder, value)` therefore becomes one more output of the graph, and whoever
runs it writes that result back into the input.
"""

from __future__ import annotations

import torch
from torch import fx

from optimum_neuron_torch.emulator.compiler.passes.editing import add_call


def functionalize_input_writes(gm: fx.GraphModule) -> list[int]:
    """Rewrite in place; return, per added output, the position of the placeholder it belongs to."""
    placeholders = gm.graph.find_nodes(op="placeholder")
    output = gm.graph.output_node()
    written: dict[fx.Node, fx.Node] = {}
    for node in gm.graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default):
        target, value = node.args[:2]
        if target not in placeholders:
            continue
        with gm.graph.inserting_before(node):
            value = _as_stored(gm.graph, value, target)
        written[target] = value
        node.replace_all_uses_with(value)
        gm.graph.erase_node(node)
    if written:
        output.args = ((*output.args[0], *written.values()),)  # type: ignore[misc]
        gm.recompile()
    return [placeholders.index(target) for target in written]


def _as_stored(graph: fx.Graph, value: fx.Node, target: fx.Node) -> fx.Node:
    """`copy_` broadcasts and converts; the written value must do so explicitly."""
    want, have = target.meta["val"], value.meta["val"]
    if have.size() != want.size():
        value = add_call(graph, torch.ops.aten.expand.default, value, list(want.size()))
    if have.dtype != want.dtype:
        value = add_call(graph, torch.ops.aten._to_copy.default, value, dtype=want.dtype)
    return value
