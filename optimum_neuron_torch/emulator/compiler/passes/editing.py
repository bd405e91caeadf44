"""What the passes do to graphs: nodes with their values, inputs behind the others, results in place of nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import fx


def add_call(graph: fx.Graph, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
    """A call of `target` where `graph` inserts, with its fake value."""
    node = graph.call_function(target, args, kwargs)
    args, kwargs = fx.node.map_arg((args, kwargs), lambda argument: argument.meta["val"])
    node.meta["val"] = target(*args, **kwargs)
    return node


def last_input(graph: fx.Graph) -> fx.Node | None:
    """The last placeholder."""
    return next((node for node in reversed(graph.nodes) if node.op == "placeholder"), None)


def add_input(graph: fx.Graph, name: str, *, behind: fx.Node | None) -> fx.Node:
    """A placeholder `behind` another one; the first where there is none."""
    with graph.inserting_after(behind) if behind else graph.inserting_before():
        return graph.placeholder(name)


def replace(node: fx.Node, results: fx.Node | Sequence[fx.Node]) -> None:
    """Put results in a node's place: one, or one for each of the items that are taken from its value."""
    if isinstance(results, fx.Node):
        node.replace_all_uses_with(results)
    else:
        for user in list(node.users):
            user.replace_all_uses_with(results[user.args[1]])  # type: ignore[index]
            user.graph.erase_node(user)
    node.graph.erase_node(node)
