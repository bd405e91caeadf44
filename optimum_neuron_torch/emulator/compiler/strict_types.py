"""Strict mode inside of compiled graphs: types and values that Trainium does not have.

The device's eager operations are checked one by one in C++; a compiled graph is one call. What it computes in float64
or in complex numbers is known when it is compiled, and is refused then, or at the first call under a strict mode that
began later. Whether whole numbers leave 32 bits is seen at its ends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from optimum_neuron_torch.emulator import device
from optimum_neuron_torch.emulator.compiler.errors import NeuronCompilerError
from optimum_neuron_torch.emulator.compiler.source import operand_types, type_of, user_line


_REASONS = {
    "float64": "Trainium has no float64: it computes in float32. Use float32",
    "complex": "complex dtypes are not native to Trainium. Keep real and imaginary parts apart",
    "int64": "values of an int64 tensor leave 32 bits; Trainium computes int64 in int32",
}
_INT32 = torch.iinfo(torch.int32)


@dataclass(frozen=True)
class TypeUse:
    """
    The tensors of a graph that are of one kind.

    Args:
        kind: `float64`, `complex` or `int64`.
        count: how many results of operators are.
        first: the first of them, with its operands and the user's line.
    """

    kind: str
    count: int
    first: str


def types_used(gm: fx.GraphModule) -> tuple[TypeUse, ...]:
    """What AOTAutograd's graph computes in types wider than Trainium's."""
    counts: Counter[str] = Counter()
    first: dict[str, str] = {}
    for node in gm.graph.nodes:
        for kind in {kind for value in _tensors_of(node) if (kind := _kind_of(value))}:
            counts[kind] += node.op == "call_function"
            first.setdefault(kind, _describe(node))
    return tuple(TypeUse(kind, counts[kind], place) for kind, place in first.items())


def refuse_types(uses: Iterable[TypeUse], kinds: Collection[str]) -> None:
    """Raise if the graph uses a type that is an error now."""
    for use in uses:
        if use.kind in kinds and use.kind != "int64":
            raise _refusal(use.kind, use.first)


def refuse_values(values: Iterable[Any], kinds: Collection[str], what: str) -> None:
    """Raise if an int64 tensor among the inputs or results of a graph leaves 32 bits, where that is an error now."""
    if "int64" not in kinds:
        return
    for value in values:
        if isinstance(value, torch.Tensor) and value.dtype == torch.int64 and value.numel():
            low, high = torch.aminmax(value if value.device.type == "cpu" else device.host_alias(value))
            if low < _INT32.min or high > _INT32.max:
                raise _refusal("int64", f"{what} {type_of(value)}")


def _refusal(kind: str, place: str) -> NeuronCompilerError:
    return NeuronCompilerError(
        f"strict mode ({kind}): {place}: {_REASONS[kind]}. To allow it, leave '{kind}' out of the strict kinds."
    )


def _tensors_of(node: fx.Node) -> Iterator[torch.Tensor]:
    value = node.meta.get("val") if node.op in ("placeholder", "call_function") else None
    for item in value if isinstance(value, (tuple, list)) else (value,):
        if isinstance(item, torch.Tensor) and item.device.type != "cpu":
            yield item


def _kind_of(value: torch.Tensor) -> str | None:
    if value.is_complex():
        return "complex"
    return {torch.float64: "float64", torch.int64: "int64"}.get(value.dtype)


def _describe(node: fx.Node) -> str:
    line = user_line(node) or next((line for user in node.users if (line := user_line(user))), "an unknown line")
    if node.op == "placeholder":
        return f"a graph's input {type_of(next(_tensors_of(node)))}, used at {line}"
    return f"{node.target}({', '.join(operand_types(node))}) at {line}"
