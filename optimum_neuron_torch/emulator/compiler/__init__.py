"""The compile backend `neuron`: Dynamo -> AOTAutograd -> FX passes -> StableHLO check -> an executor on host memory.

Dynamo's registry loads `neuron` from the entry point `torch_dynamo_backends`. Importing this module is cheap: the
compiler itself is imported with the first graph.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any


if TYPE_CHECKING:
    import torch

__all__ = ["neuron"]


def _emulated_backend(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """Compile one Dynamo graph for the emulated device; see `backend.compile_dynamo_graph`."""
    from optimum_neuron_torch.emulator.compiler.backend import compile_dynamo_graph

    return compile_dynamo_graph(gm, example_inputs, options=options, mode=mode)


_emulated_backend.__name__ = "neuron"


def __getattr__(name: str) -> Any:
    """Resolve `neuron` when it is asked for: a native distribution's backend where there is one, else ours."""
    if name != "neuron":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from optimum_neuron_torch.emulator.compiler.native import native_backend

    backend = native_backend() or _emulated_backend
    globals()["neuron"] = backend
    return backend
