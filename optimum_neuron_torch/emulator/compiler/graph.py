"""The graph that executors and the lowering receive: ATen on the host, its constants as trailing inputs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import fx


Kind = Literal["inference", "forward", "backward"]


@dataclass
class HostGraph:
    """
    A device graph traced again on the host.

    Args:
        module: the graph; one flat list of tensors in, one out. Input mutations are `copy_` to a placeholder.
        inputs: CPU fake tensors (or Python scalars), one per placeholder; the last ones stand for `constants`.
        constants: tensors the traced program holds as literals, moved to the host.
        kind: which part of the program this is.
    """

    module: fx.GraphModule
    inputs: list[Any]
    constants: list[torch.Tensor] = field(default_factory=list)
    kind: Kind = "inference"

    @property
    def calls(self) -> list[fx.Node]:
        """The nodes that compute something."""
        return [node for node in self.module.graph.nodes if node.op == "call_function"]


def value_of(argument: Any) -> Any:
    """The fake value of a node; any other argument is its own value."""
    return argument.meta.get("val") if isinstance(argument, fx.Node) else argument
