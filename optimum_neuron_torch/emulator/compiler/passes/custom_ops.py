"""Open custom operators that were defined in Python.

An operator made by `torch.library.custom_op` stays one node through Dynamo and AOTAutograd. Its body is plain PyTorch, so tracing it
in place of the node gives Inductor and the lowering ATen to work with. Any distribution's operators are found alike.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._library.custom_ops import OPDEFS


def python_body(target: Any) -> Callable[..., Any] | None:
    """The traceable body of a custom operator, without side effects on what it returns; None for any other target."""
    if not isinstance(target, torch._ops.OpOverload) or target.namespace in ("aten", "prims", "prim"):
        return None
    definition = OPDEFS.get(target._schema.name)
    if definition is None or target._schema.is_mutable:
        return None
    return torch.func.functionalize(definition._init_fn)
