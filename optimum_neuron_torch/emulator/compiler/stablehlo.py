"""Lower a graph to StableHLO through Torch-MLIR, as TorchNeuron does: what fails here would not compile there."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as distribution_version
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from optimum_neuron_torch.emulator.compiler import dialects
from optimum_neuron_torch.emulator.compiler.composites import put_calls_back
from optimum_neuron_torch.emulator.compiler.decompositions import lowering_decompositions
from optimum_neuron_torch.emulator.compiler.errors import LoweringError
from optimum_neuron_torch.emulator.compiler.graph import HostGraph, Kind, value_of
from optimum_neuron_torch.emulator.compiler.legal_types import legalise_types
from optimum_neuron_torch.emulator.compiler.passes.assertions import drop_assertions
from optimum_neuron_torch.emulator.compiler.passes.constant_comparisons import fold_constant_comparisons
from optimum_neuron_torch.emulator.compiler.passes.custom_ops import CustomCall, take_out_custom_calls
from optimum_neuron_torch.emulator.compiler.passes.mutations import functionalize_input_writes
from optimum_neuron_torch.emulator.compiler.passes.negative_indices import wrap_negative_indices
from optimum_neuron_torch.emulator.compiler.source import lowering_error, operand_types
from optimum_neuron_torch.emulator.compiler.stable_sorts import make_sorts_stable
from optimum_neuron_torch.emulator.compiler.tracing import trace_body, trace_on_host


@dataclass(frozen=True)
class StableHlo:
    """
    A lowered graph.

    Args:
        module: the textual form.
        arguments: positions of the host graph's inputs that are arguments of the module (scalars are not).
        results: per result of the graph, whether it is a tensor; its position among the module's results if so, else
            itself.
        written: per further result of the module, the input it must be written back to.
        constants: the literals of the traced program, the last arguments.
        complex_results: positions of the module's results that are complex tensors as their real views. Complex
            arguments are given as such, too.
        kernels: the names of the NKI kernels that the module calls.
    """

    module: str
    arguments: tuple[int, ...]
    results: tuple[tuple[bool, Any], ...]
    written: tuple[int, ...]
    constants: tuple[torch.Tensor, ...]
    complex_results: tuple[int, ...] = ()
    kernels: tuple[str, ...] = ()


@functools.cache
def is_available() -> bool:
    """Whether torch-mlir is installed."""
    return importlib.util.find_spec("torch_mlir") is not None


@functools.cache
def version() -> str:
    """The installed torch-mlir's version; "none" without one."""
    if not is_available():
        return "none"
    with contextlib.suppress(PackageNotFoundError):
        return distribution_version("torch-mlir")
    return "unknown"


def lower(gm: fx.GraphModule, inputs: Sequence[Any], *, kind: Kind) -> StableHlo:
    """
    Lower AOTAutograd's graph `gm`.

    Raises:
        LoweringError: an operator has no lowering; it names the operator, its operands and the user's line.
    """
    host = trace_on_host(
        gm, inputs, lowering_decompositions(), kind=kind, open_custom_ops=False, complex_as_pairs=True
    )
    drop_assertions(host.module)
    fold_constant_comparisons(host.module)
    written = functionalize_input_writes(host.module)
    arguments = _drop_scalar_inputs(host)
    results = _drop_non_tensor_results(host.module)
    kernels: list[str] = []
    module = _import(host.module, kernels) if any(is_tensor for is_tensor, _ in results) else ""
    return StableHlo(
        module=module,
        arguments=tuple(arguments),
        results=tuple(results[: len(results) - len(written)]),
        written=tuple(written),
        constants=tuple(host.constants),
        complex_results=_complex_results(gm),
        kernels=tuple(dict.fromkeys(kernels)),
    )


def _complex_results(gm: fx.GraphModule) -> tuple[int, ...]:
    values = [value_of(result) for result in gm.graph.output_node().args[0]]  # type: ignore[union-attr]
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    return tuple(position for position, value in enumerate(tensors) if value.is_complex())


def _drop_scalar_inputs(host: HostGraph) -> list[int]:
    """Scalars are constants of a static graph and have no argument in the module."""
    kept = []
    for position, (node, value) in enumerate(
        zip(host.module.graph.find_nodes(op="placeholder"), host.inputs, strict=True)
    ):
        if isinstance(value, torch.Tensor):
            kept.append(position)
        else:
            node.replace_all_uses_with(value)
            host.module.graph.erase_node(node)
    return kept


def _drop_non_tensor_results(gm: fx.GraphModule) -> list[tuple[bool, Any]]:
    output = gm.graph.output_node()
    tensors: list[fx.Node] = []
    results: list[tuple[bool, Any]] = []
    for result in output.args[0]:  # type: ignore[union-attr]
        if isinstance(result, fx.Node):
            results.append((True, len(tensors)))
            tensors.append(result)
        else:
            results.append((False, result))
    output.args = (tuple(tensors),)
    gm.graph.eliminate_dead_code()  # and no code is made of it, which takes long: torch-mlir reads the graph
    return results


def _import(gm: fx.GraphModule, kernels: list[str]) -> str:
    """The module's text; the NKI kernels in it are added to `kernels`."""
    _refuse_unknown_numbers(gm)
    module = _Importer(_new_context(), kernels).run(gm)
    make_sorts_stable(module)
    legalise_types(module)
    return str(module)


class _Importer:
    """Makes modules of one context of graphs and of the custom operators in them; notes NKI kernels in `kernels`."""

    def __init__(self, context: Any, kernels: list[str]) -> None:
        self._context = context
        self._kernels = kernels
        # Layers call an operator alike: what computes it is traced and lowered once.
        self._bodies: dict[Any, Any] = {}

    def run(self, gm: fx.GraphModule, *, inside: frozenset[Any] = frozenset()) -> Any:
        """`inside`: the operators whose body this is. One that stayed closed calls itself there: it does not lower."""
        calls = take_out_custom_calls(gm, but=inside)
        module = _import_graph(gm, self._context)
        bodies: list[Any] = []
        for call in calls:
            if isinstance(call, CustomCall):
                bodies.append(self._body(call, inside))
            else:
                bodies.append(None)
                self._kernels.append(call.kernel.name)
        if calls:
            put_calls_back(module, calls, bodies)
        return module

    def _body(self, call: CustomCall, inside: frozenset[Any]) -> Any:
        key = (call.computation, inside)
        if key not in self._bodies:
            self._bodies[key] = self.run(_trace_body(call), inside=inside | {call.target})
        return self._bodies[key]


def _trace_body(call: CustomCall) -> fx.GraphModule:
    body = trace_body(call.body, [operand.meta["val"] for operand in call.operands], lowering_decompositions())
    for node in body.graph.nodes:
        node.stack_trace = node.stack_trace or call.stack_trace
    return body


def _import_graph(gm: fx.GraphModule, context: Any) -> Any:
    wrap_negative_indices(gm)
    try:
        return _run_torch_mlir(gm, context)
    except _TorchMlirError as error:
        raise _lowering_error(gm, str(error)) from error


def _refuse_unknown_numbers(gm: fx.GraphModule) -> None:
    """torch-mlir makes programs with dynamic shapes of them, which neither XLA nor a static device can take."""
    for node in gm.graph.nodes:
        if free_unbacked_symbols(node.meta.get("val")):
            raise lowering_error(
                node,
                "makes a number, or a shape, that depends on values: it is known only when the graph runs, and a "
                "graph for Trainium is static.",
                "Keep the number a tensor, pad to a size that is known, or compute it outside torch.compile.",
            )


def _new_context() -> Any:
    from torch_mlir import ir
    from torch_mlir._mlir_libs import _stablehlo as stablehlo_dialect
    from torch_mlir.dialects import torch as torch_dialect

    _name_dialects()
    context = ir.Context()
    torch_dialect.register_dialect(context)
    stablehlo_dialect.register_dialect(context)
    return context


@functools.cache
def _name_dialects() -> None:
    """Let MLIR's bindings find a Python module of StableHLO, which torch-mlir has none of. They look for it whenever
    an operation is read, until there is one.
    """
    from torch_mlir._mlir_libs._mlir import globals as bindings

    bindings.append_dialect_search_prefix(dialects.__name__)


def _run_torch_mlir(gm: fx.GraphModule, context: Any) -> Any:
    from torch_mlir import fx as torch_mlir_fx
    from torch_mlir import ir
    from torch_mlir.extras.fx_importer import FxImporter

    diagnostics: list[str] = []

    def record(diagnostic: ir.Diagnostic) -> bool:
        diagnostics.append(str(diagnostic.message))
        return True  # it is reported by us, not printed

    handler = context.attach_diagnostic_handler(record)
    try:
        return torch_mlir_fx.stateless_fx_import(gm, output_type="stablehlo", fx_importer=FxImporter(context=context))
    except Exception as error:
        raise _TorchMlirError(diagnostics[0] if diagnostics else _first_line(str(error))) from error
    finally:
        handler.detach()


class _TorchMlirError(Exception):
    """torch-mlir refused a graph; the message is its first diagnostic."""


def _lowering_error(gm: fx.GraphModule, message: str) -> LoweringError:
    node, reason = _failing_node(gm), message[:300]
    if node is None:
        return LoweringError(f"The graph does not lower to StableHLO: {reason}", op="unknown")
    return lowering_error(
        node,
        "does not lower to StableHLO, so this graph would not compile for Trainium.",
        f"  torch-mlir: {reason}",
        "Rewrite that line, keep it outside torch.compile, or let such graphs run eagerly with "
        'options={"fallback_execution": True}.',
    )


def _failing_node(gm: fx.GraphModule) -> fx.Node | None:
    """The first operator that does not lower alone: torch-mlir often names a constant of its arguments instead."""
    tried: set[str] = set()
    for node in gm.graph.nodes:
        signature = f"{node.target}{operand_types(node)}"
        if node.op != "call_function" or node.target is operator.getitem or signature in tried:
            continue
        tried.add(signature)
        try:
            _run_torch_mlir(_alone(node), _new_context())
        except _TorchMlirError:
            return node
    return None


def _alone(node: fx.Node) -> fx.GraphModule:
    """A graph that computes `node` from its operands."""
    graph = fx.Graph()
    placeholders: dict[fx.Node, fx.Node] = {}
    for operand in node.all_input_nodes:
        placeholders[operand] = graph.placeholder(operand.name)
        placeholders[operand].meta = operand.meta
    call = graph.node_copy(node, placeholders.__getitem__)
    results: list[fx.Node] = [call]
    if isinstance(node.meta.get("val"), (tuple, list)):
        results = [graph.node_copy(user, {node: call}.__getitem__) for user in node.users]
    graph.output(tuple(results))
    return fx.GraphModule(torch.nn.Module(), graph)


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "no message")
