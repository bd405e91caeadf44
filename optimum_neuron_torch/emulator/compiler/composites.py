"""Custom operators in a lowered module: one `stablehlo.composite` each, with its name, attributes and body.

torch-mlir lowers ATen only. A graph is therefore lowered without its custom operators (`passes/custom_ops.py`), which
are inputs and results of that module, and put back here. A body is a function of the module that the composite refers
to: who knows the operator by its name calls a kernel, XLA computes the body.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from optimum_neuron_torch.emulator.compiler.legal_types import captured_by, owner_of


if TYPE_CHECKING:
    from torch_mlir import ir

    from optimum_neuron_torch.emulator.compiler.passes.custom_ops import CustomCall


def put_calls_back(module: ir.Module, calls: Sequence[CustomCall], bodies: Sequence[ir.Module]) -> None:
    """
    Turn the last arguments and results of `module`'s function into calls, in place.

    Args:
        module: of one function whose last arguments are the results of `calls`, and whose last results their operands.
        calls: the operators, in the order of the graph.
        bodies: per call, a module of one function that computes it.
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
            composite = _composite(call, operands, [value.type for value in placeholders], names.add(call.name, body))
            ir.InsertionPoint(terminator).insert(composite)
            for placeholder, result in zip(placeholders, composite.results, strict=True):
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

    def add(self, name: str, body: ir.Module) -> str:
        from torch_mlir import ir

        function = _function_of(body)
        text = f"{name} {function}"
        if text not in self._names:
            self._names[text] = f"{name}.body_{len(self._names)}"
            copy = function.operation.clone()
            copy.attributes["sym_name"] = ir.StringAttr.get(self._names[text])
            copy.attributes["sym_visibility"] = ir.StringAttr.get("private")
            self._module.body.append(copy)
        return self._names[text]


def _function_of(module: ir.Module) -> ir.Operation:
    return next(operation for operation in module.body.operations if operation.operation.name == "func.func")


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
