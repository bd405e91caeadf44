"""Count negative indices from the start, before the lowering.

`x[..., [-2], :]` reaches the graph as `index` with a tensor of indices. Torch-mlir makes a StableHLO gather of it,
and a scatter of `index_put`, whose indices are clamped to the tensor instead of counted from its end: the result would
be another row, in silence.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from optimum_neuron_torch.emulator.compiler.passes.editing import add_call


aten = torch.ops.aten
_INDEXED = (aten.index.Tensor, aten.index_put.default, aten._index_put_impl.default)


def wrap_negative_indices(gm: fx.GraphModule) -> None:
    """Rewrite in place."""
    changed = False
    for node in gm.graph.nodes:
        if node.target in _INDEXED:
            source, indices, *rest = node.args
            with gm.graph.inserting_before(node):
                wrapped = [_wrap(gm.graph, index, size) for index, size in _by_axis(indices, source.meta["val"])]
            if wrapped and wrapped != list(indices):
                node.args = (source, wrapped, *rest)
                changed = True
    if changed:
        gm.recompile()


def _by_axis(indices: list[Any], source: torch.Tensor) -> list[tuple[Any, int]]:
    """Each index and the size it counts to; none where one is a mask, which stands for as many axes as it has."""
    if any(index is not None and index.meta["val"].dtype in (torch.bool, torch.uint8) for index in indices):
        return []
    return list(zip(indices, source.shape, strict=False))


def _wrap(graph: fx.Graph, index: Any, size: int) -> Any:
    if index is None or _counts_up(index):
        return index
    negative = add_call(graph, aten.lt.Scalar, index, 0)
    from_start = add_call(graph, aten.add.Tensor, index, size)
    return add_call(graph, aten.where.self, negative, from_start, index)


def _counts_up(index: fx.Node) -> bool:
    """Whether `index` is a range from zero, the most frequent index of all."""
    while index.target in (aten.view.default, aten.unsqueeze.default, aten.reshape.default):
        index = index.args[0]  # type: ignore[assignment]
    if index.target is not aten.arange.start_step:
        return False
    start, _, step = (*index.args, 1)[:3]
    return start == 0 and step > 0  # type: ignore[operator]
