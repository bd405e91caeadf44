"""Tell a user where in their code a graph node comes from, and what it computes on."""

from __future__ import annotations

import re
from collections.abc import Iterable

import torch
from torch import fx

from optimum_neuron_torch.emulator.compiler.errors import LoweringError


_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>.+)\n?(?P<code>.*)')


def user_line(node: fx.Node) -> str | None:
    """`file:line, in function: code` of the innermost frame that produced `node`."""
    frames = list(_FRAME.finditer(node.stack_trace or ""))
    if not frames:
        return None
    frame = frames[-1]
    return f"{frame['file']}:{frame['line']}, in {frame['function'].strip()}: {frame['code'].strip()}"


def first_user_line(gm: fx.GraphModule) -> str:
    """The first line of user code that a graph comes from."""
    return next((line for node in gm.graph.nodes if (line := user_line(node))), "a graph without source lines")


def operand_types(node: fx.Node) -> list[str]:
    """`float32[2, 3]` for each tensor argument of `node`."""
    return [type_of(argument.meta.get("val")) for argument in node.all_input_nodes]


def lowering_error(node: fx.Node, problem: str, *lines: str, target: object = None) -> LoweringError:
    """
    The refusal of an operator: the operator with its operands and its `problem`, the user's line, further `lines`.

    `target`: the operator, where it is not what `node` calls.
    """
    name, operands, line = str(target or node.target), operand_types(node), user_line(node)
    first = [f"{name}({', '.join(operands)}) {problem}", f"  from {line or 'an unknown line'}"]
    return LoweringError("\n".join([*first, *lines]), op=name, inputs=operands, source=line)


def describe_inputs(inputs: Iterable[object], limit: int = 8) -> str:
    """The types of a graph's inputs, for messages."""
    types = [type_of(value) for value in inputs]
    shown = ", ".join(types[:limit])
    return shown if len(types) <= limit else f"{shown} and {len(types) - limit} more"


def type_of(value: object) -> str:
    """`float32[2, 3]` of a tensor; of anything else its class."""
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    return type(value).__name__
