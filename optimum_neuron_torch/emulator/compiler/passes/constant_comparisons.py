"""Comparisons between constants, computed here: torch-mlir folds some of them wrongly (`full(3.) < 0`), or crashes."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx


aten = torch.ops.aten

_COMPARISONS = frozenset(
    overload
    for packet in (aten.eq, aten.ne, aten.lt, aten.le, aten.gt, aten.ge)
    for overload in (packet.Tensor, packet.Scalar)
)
_CONVERSIONS = frozenset({aten._to_copy.default, torch.ops.prims.convert_element_type.default})


def fold_constant_comparisons(gm: fx.GraphModule) -> None:
    """Replace each comparison of tensors filled with one number by the tensor of its result, in place."""
    changed = False
    for node in list(gm.graph.nodes):
        if node.target not in _COMPARISONS:
            continue
        operands = [_constant(argument) for argument in node.args]
        if any(operand is None for operand in operands):
            continue
        value = bool(node.target(*operands))
        result = node.meta["val"]
        with gm.graph.inserting_before(node):
            filled = gm.graph.call_function(
                aten.full.default, (list(result.shape), value), {"dtype": torch.bool, "device": result.device}
            )
        filled.meta = dict(node.meta)
        node.replace_all_uses_with(filled)
        gm.graph.erase_node(node)
        changed = True
    if changed:
        gm.graph.eliminate_dead_code()
        gm.recompile()


def _constant(argument: Any) -> Any:
    """The number that fills a tensor, as a tensor without axes; a number is itself, what is not constant None."""
    if not isinstance(argument, fx.Node):
        return argument
    value = argument.meta.get("val")
    if argument.target is aten.full.default:
        return torch.tensor(argument.args[1], dtype=value.dtype)
    if argument.target in _CONVERSIONS and (converted := _constant(argument.args[0])) is not None:
        return converted.to(value.dtype)
    return None
