"""Mark the sorts of a lowered module as stable: torch-mlir marks none, and `stable=True` is promised to the user."""

from __future__ import annotations

from typing import Any


def make_sorts_stable(module: Any) -> None:
    """Rewrite a torch-mlir module in place."""
    from torch_mlir import ir

    def mark(operation: ir.Operation) -> ir.WalkResult:
        if operation.name == "stablehlo.sort":
            operation.attributes["is_stable"] = ir.BoolAttr.get(True, context=module.context)
        return ir.WalkResult.ADVANCE

    module.operation.walk(mark)
