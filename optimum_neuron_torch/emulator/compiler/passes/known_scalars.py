"""Replace scalars that a graph reads from its own constants by their values.

Dynamo traces NumPy code as tensors (BigBird plans its random blocks with it), so that a size computed from literals
alone becomes `_local_scalar_dense`: a number that shapes depend on and that nobody knows before the graph runs. Yet
nothing of it depends on an input, so it can be known now, and shapes are static again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch.utils._python_dispatch import _disable_current_modes

from optimum_neuron_torch.emulator.compiler.passes.devices import to_host_devices


_READ = torch.ops.aten._local_scalar_dense.default


def fold_known_scalars(gm: fx.GraphModule, constants: Sequence[torch.Tensor]) -> None:
    """Fold in place; `constants` are the values of the last placeholders of `gm`, on the host."""
    reads = gm.graph.find_nodes(op="call_function", target=_READ)
    if not reads:
        return
    placeholders = gm.graph.find_nodes(op="placeholder")
    known: dict[fx.Node, Any] = dict(zip(placeholders[len(placeholders) - len(constants) :], constants, strict=True))
    position = {node: place for place, node in enumerate(gm.graph.nodes)}
    for read in reads:
        needed = _needed_for(read, known)
        if all(_is_computable(node) for node in needed):
            with _disable_current_modes(), torch.no_grad():
                for node in sorted(needed, key=position.__getitem__):
                    known[node] = _compute(node, known)
            read.replace_all_uses_with(known[read])
            gm.graph.erase_node(read)
    gm.recompile()


def _needed_for(read: fx.Node, known: Mapping[fx.Node, Any]) -> set[fx.Node]:
    """What must be computed for `read`, beyond what is known."""
    needed: set[fx.Node] = set()
    waiting = [read]
    while waiting:
        node = waiting.pop()
        if node not in needed and node not in known:
            needed.add(node)
            waiting.extend(node.all_input_nodes)
    return needed


def _is_computable(node: fx.Node) -> bool:
    if node.op != "call_function":
        return False
    return not (isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable) and (
        torch.Tag.nondeterministic_seeded not in getattr(node.target, "tags", ())
    )


def _compute(node: fx.Node, known: Mapping[fx.Node, Any]) -> Any:
    args, kwargs = fx.map_arg((node.args, node.kwargs), known.__getitem__)
    return node.target(*to_host_devices(args), **to_host_devices(kwargs))  # type: ignore[operator]
