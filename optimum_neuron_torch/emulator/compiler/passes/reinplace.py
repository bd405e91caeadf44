"""Write into inputs directly where AOTAutograd computes a new tensor and copies it back.

A static KV cache reaches the graph as `new = index_copy(cache, ...)` and, at the end, `copy_(cache, new)`: two
copies of the whole cache per layer and step. Where nothing reads the old value afterwards the functional operator
can write in place. Inductor has a pass of its own; this one serves the graph that is interpreted.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch
from torch import fx


aten = torch.ops.aten

_IN_PLACE: dict[Any, Any] = {
    aten.index_put.default: aten.index_put_.default,
    aten.index_copy.default: aten.index_copy_.default,
    aten.index_add.default: aten.index_add_.default,
    aten.scatter.src: aten.scatter_.src,
    aten.scatter.value: aten.scatter_.value,
    aten.scatter_add.default: aten.scatter_add_.default,
    aten.masked_fill.Scalar: aten.masked_fill_.Scalar,
    aten.add.Tensor: aten.add_.Tensor,
    aten.mul.Tensor: aten.mul_.Tensor,
    aten.lerp.Scalar: aten.lerp_.Scalar,
}
# `x.slice(...)[:] = source`: the view that the scatter writes through.
_VIEWS: dict[Any, Any] = {
    aten.slice_scatter.default: aten.slice.Tensor,
    aten.select_scatter.default: aten.select.int,
}


def find_input_writes(gm: fx.GraphModule) -> list[str]:
    """The names of the `copy_` nodes whose value could be written in place; needs the nodes' fake values."""
    views = _Aliases(gm.graph)
    return [
        write_back.name
        for write_back in gm.graph.find_nodes(op="call_function", target=aten.copy_.default)
        if isinstance(write_back.args[1], fx.Node) and _may_write_in_place(*write_back.args[:2], write_back, views)
    ]


def write_in_place(gm: fx.GraphModule, names: Iterable[str]) -> None:
    """Rewrite the named `copy_` nodes; works on a graph without fake values, as one that was stored."""
    wanted = set(names)
    if not wanted:
        return
    for write_back in gm.graph.find_nodes(op="call_function", target=aten.copy_.default):
        if write_back.name not in wanted:
            continue
        written = _write_in_place(gm.graph, *write_back.args[:2])
        write_back.replace_all_uses_with(written)
        gm.graph.erase_node(write_back)
    gm.recompile()


class _Aliases:
    """Which nodes share memory, and in which order nodes run."""

    def __init__(self, graph: fx.Graph) -> None:
        self.position = {node: position for position, node in enumerate(graph.nodes)}
        self._storage = {node: _storage(node) for node in graph.nodes}
        self._nodes: dict[int, list[fx.Node]] = defaultdict(list)
        for node, storage in self._storage.items():
            if storage is not None:
                self._nodes[storage].append(node)

    def of(self, node: fx.Node) -> list[fx.Node]:
        """`node` and all nodes that view the same memory."""
        storage = self._storage[node]
        return [node] if storage is None else self._nodes[storage]


def _may_write_in_place(target: fx.Node, value: fx.Node, write_back: fx.Node, views: _Aliases) -> bool:
    if target.op != "placeholder" or not (value.target in _IN_PLACE or value.target in _VIEWS):
        return False
    if value.args[0] is not target or not _same_kind(target, value):
        return False
    aliases = views.of(target)
    if any(argument in aliases for argument in value.all_input_nodes if argument is not target):
        return False
    read_later = any(
        views.position[user] > views.position[value]
        for alias in aliases
        for user in alias.users
        if user not in (value, write_back)
    )
    returned = any(user.op == "output" for node in views.of(value) for user in node.users)
    return not read_later and not returned


def _write_in_place(graph: fx.Graph, target: fx.Node, value: fx.Node) -> fx.Node:
    """Turn `value` into a write to `target`; return the node that now holds the result."""
    if value.target in _IN_PLACE:
        value.target = _IN_PLACE[value.target]
        return value
    _, source, *position = value.args
    with graph.inserting_before(value):
        view = graph.call_function(_VIEWS[value.target], (target, *position), value.kwargs)
        graph.call_function(aten.copy_.default, (view, _copied(source)))
    value.replace_all_uses_with(target)
    graph.erase_node(value)
    if not source.users:
        graph.erase_node(source)
    return target


def _copied(source: fx.Node) -> fx.Node:
    """The new values: `copy(old, new)` only gives them old's type and shape, and clones all of old's memory for it."""
    is_only_written = source.target is aten.copy.default and len(source.users) == 1
    return source.args[1] if is_only_written else source  # type: ignore[return-value]


def _same_kind(target: fx.Node, value: fx.Node) -> bool:
    old, new = target.meta["val"], value.meta["val"]
    return old.dtype == new.dtype and old.size() == new.size()


def _storage(node: fx.Node) -> int | None:
    value = node.meta.get("val")
    return value.untyped_storage()._cdata if isinstance(value, torch.Tensor) else None
