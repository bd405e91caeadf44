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


def _require_device() -> None:
    """Without the device a graph would run on the CPU and look like one for Trainium."""
    import os

    import torch

    if torch._C._get_privateuse1_backend_name() == "neuron":
        return
    from optimum_neuron_torch.emulator.compiler.errors import NeuronCompilerError
    from optimum_neuron_torch.emulator.device.presence import SWITCH

    switches = [
        f"{name}=0 is set"
        for name in (SWITCH, "TORCH_DEVICE_BACKEND_AUTOLOAD")
        if os.environ.get(name, "").strip() == "0"
    ]
    why = " and ".join(switches) or f"another accelerator is visible, beside which it stays out ({SWITCH}=1 overrides)"
    raise NeuronCompilerError(
        f"torch.compile(backend='neuron') needs a neuron device, and this process has none: {why}. Change that, or "
        "name another backend, e.g. 'inductor'."
    )


def __getattr__(name: str) -> Any:
    """Resolve `neuron` when it is asked for: a native distribution's backend where there is one, else ours."""
    if name != "neuron":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from optimum_neuron_torch.emulator.compiler.native import native_backend

    backend = native_backend() or _emulated_backend
    if backend is _emulated_backend:
        _require_device()
    globals()["neuron"] = backend
    return backend
