"""Open custom operators that were defined in Python.

An operator made by `torch.library.custom_op` stays one node through Dynamo and AOTAutograd. Its body is plain
PyTorch, so tracing it in place of the node gives Inductor and the lowering ATen to work with. Any distribution's
operators are found alike.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import fx
from torch._library.custom_ops import OPDEFS
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException


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


def body_sources(gm: fx.GraphModule) -> list[str]:
    """The source files of the custom operators' bodies in a graph: a stored graph is only good for these."""
    files = set()
    for module in gm.modules():
        for node in module.graph.nodes if isinstance(module, fx.GraphModule) else ():
            definition = (
                OPDEFS.get(node.target._schema.name) if isinstance(node.target, torch._ops.OpOverload) else None
            )
            if definition is not None:
                files.add(inspect.getsourcefile(inspect.unwrap(definition._init_fn)))
    return [Path(file).read_text() for file in sorted(filter(None, files)) if Path(file).is_file()]
