"""Custom operators that were defined in Python: opened for Inductor, one operation in StableHLO.

An operator made by `torch.library.custom_op` stays one node through Dynamo and AOTAutograd. Its body is plain
PyTorch, so tracing it in place of the node gives Inductor ATen to work with. For the lowering the node is taken out of
the graph and put back into the lowered module, as one operation with the body beside it (`composites.py`): what a
kernel does on Trainium is one call there too. Any distribution's operators are found alike.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import operator
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import fx
from torch._library.custom_ops import OPDEFS
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException

from optimum_neuron_torch.emulator.compiler.passes.editing import add_input, last_input, replace


# How fake tensors say that a body wants values, which they do not have.
_VALUES_WANTED = (DataDependentOutputException, DynamicOutputShapeException)
_VALUES_WANTED_TEXTS = ("unallocated storage", "data pointer", "data-dependent")


def python_body(target: Any) -> Callable[..., Any] | None:
    """The traceable body of a custom operator, without side effects on what it returns; None for any other target."""
    if not isinstance(target, torch._ops.OpOverload) or target.namespace in ("aten", "prims", "prim"):
        return None
    definition = OPDEFS.get(target._schema.name)
    if definition is None or target._schema.is_mutable:
        return None
    return functools.partial(_run_body, definition._init_fn, target)


def _run_body(body: Callable[..., Any], target: Any, *args: Any, **kwargs: Any) -> Any:
    try:
        return torch.func.functionalize(body)(*args, **kwargs)
    except (*_VALUES_WANTED, RuntimeError) as error:
        if not isinstance(error, _VALUES_WANTED) and not any(text in str(error) for text in _VALUES_WANTED_TEXTS):
            raise
        return target(*args, **kwargs)  # the operator stays closed, and runs as it is


@dataclass(frozen=True)
class CustomCall:
    """
    A custom operator taken out of a graph.

    Args:
        target: the operator.
        args, kwargs: its arguments, in which nodes stand for tensors.
        operands: these nodes in order, one for each use; results of the graph's end now.
        results: how many tensors it returns; inputs of the graph's end now.
        stack_trace: where the user calls it.
    """

    target: torch._ops.OpOverload
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    operands: tuple[fx.Node, ...]
    results: int
    stack_trace: str | None = None

    @property
    def name(self) -> str:
        """`namespace.name`, and the overload where it has a name."""
        schema = self.target._schema
        return ".".join(filter(None, [*schema.name.split("::"), schema.overload_name]))

    @property
    def attributes(self) -> dict[str, Any]:
        """The arguments that are no tensors, by name, and `operands`: the name of each operand's argument."""
        names = [argument.name for argument in self.target._schema.arguments]
        bound = {**dict(zip(names, self.args, strict=False)), **self.kwargs}
        numbers = {name: value for name, value in bound.items() if value is not None and not _nodes_of(value)}
        return {**numbers, "operands": [name for name, value in bound.items() for _ in _nodes_of(value)]}

    def body(self, *tensors: torch.Tensor) -> Any:
        """Compute the operator's results, a tuple of tensors, from its operands."""
        remaining = iter(tensors)
        args, kwargs = fx.node.map_arg((self.args, self.kwargs), lambda _: next(remaining))
        results = python_body(self.target)(*args, **kwargs)  # type: ignore[misc]
        return (results,) if isinstance(results, torch.Tensor) else tuple(results)


def take_out_custom_calls(gm: fx.GraphModule) -> list[CustomCall]:
    """Cut `gm` at its custom operators, in place: what they return becomes inputs, what they take results."""
    calls = [
        _take_out(gm.graph, node)
        for node in list(gm.graph.nodes)
        if node.op == "call_function" and python_body(node.target) is not None and _returns_tensors(node)
    ]
    if calls:
        gm.recompile()
    return calls


def _take_out(graph: fx.Graph, node: fx.Node) -> CustomCall:
    value, output = node.meta["val"], graph.output_node()
    inputs = [_add_input(graph, one) for one in ((value,) if isinstance(value, torch.Tensor) else value)]
    operands = tuple(_nodes_of((node.args, node.kwargs)))
    call = CustomCall(node.target, node.args, node.kwargs, operands, len(inputs), node.stack_trace)  # type: ignore[arg-type]
    replace(node, inputs[0] if isinstance(value, torch.Tensor) else inputs)
    output.args = ((*output.args[0], *operands),)  # type: ignore[misc]
    return call


def _add_input(graph: fx.Graph, value: torch.Tensor) -> fx.Node:
    added = add_input(graph, "custom_result", behind=last_input(graph))
    added.target = added.name  # the name of a parameter: two of one name are no Python function
    added.meta["val"] = value
    return added


def _returns_tensors(node: fx.Node) -> bool:
    value = node.meta["val"]
    return isinstance(value, torch.Tensor) or (
        isinstance(value, (tuple, list))
        and all(isinstance(item, torch.Tensor) for item in value)
        and all(user.target is operator.getitem for user in node.users)
    )


def _nodes_of(value: Any) -> list[fx.Node]:
    found: list[fx.Node] = []
    fx.node.map_arg(value, found.append)
    return found


def body_digests(gm: fx.GraphModule) -> dict[str, str]:
    """The custom operators in a graph, each with the digest of its source: a stored graph is only good for these."""
    names = {
        node.target._schema.name
        for module in gm.modules()
        for node in (module.graph.nodes if isinstance(module, fx.GraphModule) else ())
        if isinstance(node.target, torch._ops.OpOverload)
    }
    return {name: body_digest(name) for name in sorted(names) if name in OPDEFS}


def body_digest(name: str) -> str:
    """The digest of the source file that defines a custom operator; "" where there is none."""
    definition = OPDEFS.get(name)
    file = None if definition is None else inspect.getsourcefile(inspect.unwrap(definition._init_fn))
    return hashlib.sha256(Path(file).read_bytes()).hexdigest()[:16] if file and Path(file).is_file() else ""
