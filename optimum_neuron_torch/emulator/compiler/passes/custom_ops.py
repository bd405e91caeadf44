"""Custom operators that were defined in Python: opened for Inductor, one operation in StableHLO.

An operator made by `torch.library.custom_op` stays one node through Dynamo and AOTAutograd. Its body is plain
PyTorch, so tracing it in place of the node gives Inductor ATen to work with. For the lowering the node is taken out of
the graph and put back into the lowered module, as one operation with the body beside it (`composites.py`): what a
kernel does on Trainium is one call there too. Any distribution's operators are found alike. NKI kernels, which a body
may call, have no body themselves: they stay closed everywhere.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch._higher_order_ops.auto_functionalize import (
    _generate_new_op_kwargs_from_bases,
    auto_functionalized_v2,
)
from torch._library.custom_ops import OPDEFS
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException

from optimum_neuron_torch.emulator.compiler.passes.editing import add_input, last_input, replace
from optimum_neuron_torch.emulator.nki.operation import OPERATOR
from optimum_neuron_torch.emulator.nki.sources import source_digest


if TYPE_CHECKING:
    from optimum_neuron_torch.emulator.nki.calls import KernelCall as RecordedCall


# What stands for the chip among the digests: kernels in the bodies of operators are traced for the one of the process.
CHIP = "nki chip"

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


def written_body(target: Any, args: tuple[Any, ...]) -> Callable[..., Any] | None:
    """The body of a custom operator that writes to its arguments, as AOTAutograd calls it: by a higher-order operator
    that takes the tensors it may write to, and returns what they become. None for any other call.
    """
    if target is not auto_functionalized_v2 or not isinstance(args[0], torch._ops.OpOverload):
        return None
    definition = OPDEFS.get(args[0]._schema.name)
    return None if definition is None else functools.partial(_run_written_body, definition._init_fn)


def _run_written_body(body: Callable[..., Any], target: Any, **kwargs: Any) -> Any:
    def on_copies(_all_bases: Sequence[torch.Tensor], **kwargs: Any) -> Any:
        written = tuple(range(len(_all_bases)))
        arguments, bases = _generate_new_op_kwargs_from_bases(target._schema, kwargs, _all_bases, written, False)
        result = body(**arguments)
        return (*(result if isinstance(result, tuple) else (result,)), *bases)

    bases = kwargs.pop("_all_bases", ())
    return _functional(on_copies, lambda: auto_functionalized_v2(target, _all_bases=bases, **kwargs), bases, **kwargs)


def _run_body(body: Callable[..., Any], target: Any, *args: Any, **kwargs: Any) -> Any:
    return _functional(body, lambda: target(*args, **kwargs), *args, **kwargs)


def _functional(body: Callable[..., Any], closed: Callable[[], Any], *args: Any, **kwargs: Any) -> Any:
    """What a body computes, without writing anywhere; `closed`, the operator as it is, where that wants values."""
    try:
        return torch.func.functionalize(body)(*args, **kwargs)
    except (*_VALUES_WANTED, RuntimeError) as error:
        if not isinstance(error, _VALUES_WANTED) and not any(text in str(error) for text in _VALUES_WANTED_TEXTS):
            raise
        return closed()


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

    @property
    def computation(self) -> tuple[Any, str]:
        """Equal for two calls whose bodies are traced alike: of one operator, with equal arguments besides tensors,
        and tensors of one layout, of which the same ones are one.
        """
        first = {node: self.operands.index(node) for node in self.operands}

        def described(node: fx.Node) -> str:
            value = node.meta["val"]
            return f"{first[node]}: {value.dtype} {tuple(value.shape)} {value.stride()} {value.device}"

        # The text, not the values: 1, 1.0 and True are equal.
        return self.target, repr(fx.node.map_arg((self.args, self.kwargs), described))

    def body(self, *tensors: torch.Tensor) -> Any:
        """Compute the operator's results, a tuple of tensors, from its operands."""
        remaining = iter(tensors)
        args, kwargs = fx.node.map_arg((self.args, self.kwargs), lambda _: next(remaining))
        results = python_body(self.target)(*args, **kwargs)  # type: ignore[misc]
        return (results,) if isinstance(results, torch.Tensor) else tuple(results)


@dataclass(frozen=True)
class KernelCall:
    """
    A call of an NKI kernel taken out of a graph.

    Args:
        kernel: which kernel, with which arguments besides tensors.
        operands, results: as of `CustomCall`.
    """

    kernel: RecordedCall
    operands: tuple[fx.Node, ...]
    results: int


def take_out_custom_calls(gm: fx.GraphModule, *, but: Collection[Any] = ()) -> list[CustomCall | KernelCall]:
    """Cut `gm` at its custom operators, `but` some, and kernels, in place: their results become inputs of the graph,
    and their operands results.
    """
    calls = [
        _take_out(gm.graph, node)
        for node in list(gm.graph.nodes)
        if node.op == "call_function" and node.target not in but and (is_kernel(node) or _can_be_taken_out(node))
    ]
    if calls:
        gm.recompile()
    return calls


def is_kernel(node: fx.Node) -> bool:
    """Whether a node calls an NKI kernel."""
    return node.target is OPERATOR


def recorded_call(node: fx.Node) -> RecordedCall:
    """Which kernel a node calls, and with what besides tensors."""
    from optimum_neuron_torch.emulator.nki.calls import KernelCall as RecordedCall

    return RecordedCall.parse(node.args[1])  # type: ignore[arg-type]


def _can_be_taken_out(node: fx.Node) -> bool:
    return python_body(node.target) is not None and _returns_tensors(node)


def _take_out(graph: fx.Graph, node: fx.Node) -> CustomCall | KernelCall:
    value, output = node.meta["val"], graph.output_node()
    inputs = [_add_input(graph, one) for one in ((value,) if isinstance(value, torch.Tensor) else value)]
    operands = tuple(_nodes_of((node.args, node.kwargs)))
    if is_kernel(node):
        call: CustomCall | KernelCall = KernelCall(recorded_call(node), operands, len(inputs))
    else:
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
    """The custom operators and kernels in a graph, each with the digest of its source: a stored graph is only good for
    these. Kernels come with the chip that they were traced for.
    """
    nodes = [
        node
        for module in gm.modules()
        for node in (module.graph.nodes if isinstance(module, fx.GraphModule) else ())
        if node.op == "call_function"
    ]
    # AOTAutograd has operators that write as the first argument of a higher-order one.
    operators = [value for node in nodes for value in (node.target, *node.args[:1])]
    names = {value._schema.name for value in operators if isinstance(value, torch._ops.OpOverload)}
    digests = {name: body_digest(name) for name in sorted(names) if name in OPDEFS}
    if digests:
        digests[CHIP] = body_digest(CHIP)
    for call in (recorded_call(node) for node in nodes if is_kernel(node)):
        digests[call.kernel] = call.digest
    return digests


def body_digest(name: str) -> str:
    """The digest of the source of a custom operator, or of a kernel that is named as graphs name it; "" where there is
    none.
    """
    if name == CHIP:
        from optimum_neuron_torch.emulator.nki.chips import current_chip

        return str(current_chip().generation)
    if name in OPDEFS:
        return source_digest(OPDEFS[name]._init_fn)
    if ":" not in name.replace("::", ""):
        return ""
    from optimum_neuron_torch.emulator.nki.calls import digest_of

    return digest_of(name)
