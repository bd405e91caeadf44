"""Graphs that run their operators one by one."""

from __future__ import annotations

from torch import fx
from torch.fx.graph import _BoxedCodeGen


def boxed(module: fx.GraphModule) -> fx.GraphModule:
    """`module`, whose forward from now on takes its arguments as one list and empties it."""
    module.graph.set_codegen(_BoxedCodeGen())
    module.recompile()
    return module
