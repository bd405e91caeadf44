"""Custom operators in a lowered module: one `stablehlo.composite` each, with its name, attributes and body; and NKI
kernels: one `stablehlo.custom_call` each, which has no body.

torch-mlir lowers ATen only. A graph is therefore lowered without its custom operators (`passes/custom_ops.py`), which
are inputs and results of that module, and put back here. A body is a function of the module that the composite refers
to: who knows the operator by its name calls a kernel, XLA computes the body.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from optimum_neuron_torch.emulator.compiler.legal_types import captured_by, owner_of


if TYPE_CHECKING:
    from torch_mlir import ir

    from optimum_neuron_torch.emulator.compiler.passes.custom_ops import CustomCall, KernelCall


def put_calls_back(
    module: ir.Module, calls: Sequence[CustomCall | KernelCall], bodies: Sequence[ir.Module | None]
) -> None:
    """
    Turn the last arguments and results of `module`'s function into calls, in place.

    Args:
        module: of one function whose last arguments are the results of `calls`, and whose last results their operands.
        calls: the operators and kernels, in the order of the graph.
        bodies: per call, a module whose public function computes it; None for a kernel.
    """
    from torch_mlir import ir

    function = _function_of(module)
    block = function.regions[0].blocks[0]
    terminator = block.operations[len(block.operations) - 1]
    returned = list(terminator.operands)
    first_result = len(block.arguments) - sum(call.results for call in calls)
    first_operand = len(returned) - sum(len(call.operands) for call in calls)
    names = _Bodies(module)
    argument, operand = first_result, first_operand
    with module.context, function.location:
        for call, body in zip(calls, bodies, strict=True):
            placeholders = [block.arguments[argument + i] for i in range(call.results)]
            # An operand may be the result of a call before: `returned` is read anew.
            operands = [terminator.operands[operand + i] for i in range(len(call.operands))]
            types = [value.type for value in placeholders]
            if body is None:
                operation = _custom_call(call, operands, types)  # type: ignore[arg-type]
            else:
                operation = _composite(call, operands, types, names.add(call.name, body))  # type: ignore[union-attr, arg-type]
            ir.InsertionPoint(terminator).insert(operation)
            for placeholder, result in zip(placeholders, operation.results, strict=True):
                placeholder.replace_all_uses_with(result)
            argument, operand = argument + call.results, operand + len(call.operands)
        _drop_ends(function, first_result, first_operand)
        _sort(block)
    module.operation.verify()


def _composite(call: CustomCall, operands: Sequence[ir.Value], types: Sequence[ir.Type], body: str) -> ir.Operation:
    from torch_mlir import ir

    attributes = {
        "name": ir.StringAttr.get(call.name),
        "decomposition": ir.FlatSymbolRefAttr.get(body),
        "composite_attributes": ir.DictAttr.get({name: _attribute(value) for name, value in call.attributes.items()}),
    }
    return ir.Operation.create("stablehlo.composite", results=types, operands=operands, attributes=attributes)


# With this version `backend_config` is a dictionary.
_TYPED_CONFIG = 4


def _custom_call(call: KernelCall, operands: Sequence[ir.Value], types: Sequence[ir.Type]) -> ir.Operation:
    from torch_mlir import ir

    kernel = call.kernel
    config = {
        "kernel": kernel.kernel,
        "source": kernel.digest,
        "lnc": kernel.lnc,
        "generation": kernel.chip,
        "arguments": json.dumps(kernel.arguments),
        "writes": list(kernel.written),
    }
    attributes = {
        "call_target_name": ir.StringAttr.get(kernel.name),
        "api_version": ir.IntegerAttr.get(ir.IntegerType.get_signless(32), _TYPED_CONFIG),
        "backend_config": ir.DictAttr.get({name: _attribute(value) for name, value in config.items()}),
    }
    return ir.Operation.create("stablehlo.custom_call", results=types, operands=operands, attributes=attributes)


def _attribute(value: Any) -> ir.Attribute:
    from torch_mlir import ir

    if isinstance(value, bool):
        return ir.BoolAttr.get(value)
    if isinstance(value, int):
        return ir.IntegerAttr.get(ir.IntegerType.get_signless(64), value)
    if isinstance(value, float):
        return ir.FloatAttr.get_f64(value)
    if isinstance(value, (list, tuple)):
        return ir.ArrayAttr.get([_attribute(item) for item in value])
    return ir.StringAttr.get(str(value))


class _Bodies:
    """The functions of bodies in a module; equal ones are one function."""

    def __init__(self, module: ir.Module) -> None:
        self._module = module
        self._names: dict[str, str] = {}
        self._copied = 0

    def add(self, name: str, body: ir.Module) -> str:

        text = f"{name} {body}"
        if text not in self._names:
            copies = {symbol: self._copy(function, name) for symbol, function in _functions_of(body).items()}
            for copy in copies.values():
                _refer_to(copy, {symbol: copy.attributes["sym_name"].value for symbol, copy in copies.items()})
            self._names[text] = next(iter(copies.values())).attributes["sym_name"].value
        return self._names[text]

    def _copy(self, function: ir.Operation, name: str) -> ir.Operation:
        from torch_mlir import ir

        copy = function.operation.clone()
        copy.attributes["sym_name"] = ir.StringAttr.get(f"{name}.body_{self._copied}")
        copy.attributes["sym_visibility"] = ir.StringAttr.get("private")
        self._module.body.append(copy)
        self._copied += 1
        return copy


def _refer_to(function: ir.Operation, names: Mapping[str, str]) -> None:
    """The composites in a copied function refer to the copies of their bodies."""
    from torch_mlir import ir

    for operation in function.regions[0].blocks[0].operations:
        if operation.operation.name == "stablehlo.composite":
            body = operation.attributes["decomposition"].value
            operation.attributes["decomposition"] = ir.FlatSymbolRefAttr.get(names[body])


def _functions_of(module: ir.Module) -> dict[str, ir.Operation]:
    """The functions of a module by name, the one that is called from outside first."""
    functions = [operation for operation in module.body.operations if operation.operation.name == "func.func"]
    return {function.attributes["sym_name"].value: function for function in functions}


def _function_of(module: ir.Module) -> ir.Operation:
    return next(iter(_functions_of(module).values()))


def _drop_ends(function: ir.Operation, arguments: int, results: int) -> None:
    """Keep the first `arguments` arguments and `results` results of a function."""
    from torch_mlir import ir

    block = function.regions[0].blocks[0]
    terminator = block.operations[len(block.operations) - 1]
    kept = list(terminator.operands)[:results]
    terminator.operation.erase()
    block.append(ir.Operation.create("func.return", operands=kept))
    for position in reversed(range(arguments, len(block.arguments))):
        block.erase_argument(position)
    kind = ir.FunctionType.get([argument.type for argument in block.arguments], [value.type for value in kept])
    function.attributes["function_type"] = ir.TypeAttr.get(kind)


def _sort(block: ir.Block) -> None:
    """Move every operation behind those whose results it uses; where it may, the order stays."""
    operations = list(block.operations)
    *rest, terminator = operations
    positions = {operation.operation: position for position, operation in enumerate(rest)}
    needs = [sorted({positions[used] for used in _used_by(operation) if used in positions}) for operation in rest]
    done: set[int] = set()
    for start in range(len(rest)):
        waiting = [start]
        while waiting:
            position = waiting[-1]
            missing = [needed for needed in needs[position] if needed not in done and needed != position]
            if missing:
                waiting.extend(reversed(missing))
                continue
            waiting.pop()
            if position not in done:
                done.add(position)
                rest[position].operation.move_before(terminator)


def _used_by(operation: ir.Operation) -> Iterator[ir.Operation]:
    """The operations whose results `operation`, or an operation in its regions, takes."""
    for operand in (*operation.operands, *captured_by(operation)):
        if (owner := owner_of(operand)) is not None:
            yield owner
