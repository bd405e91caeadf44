"""`torch_neuronx.neuron_dynamo_backend`: the compile backend's helpers, under TorchNeuron's names."""

from typing import Any

from optimum_neuron_torch.emulator.compiler.errors import LoweringError
from optimum_neuron_torch.emulator.compiler.errors import NeuronCompilerError as NEFFCompilationError
from optimum_neuron_torch.emulator.compiler.metrics import (
    get_dynamo_metrics,
    get_model_name,
    reset_dynamo_metrics,
    set_model_name,
)


__all__ = [
    "LoweringError",
    "NEFFCompilationError",
    "get_dynamo_metrics",
    "get_model_name",
    "neuron_backend",  # noqa: F822 (resolved below, on first use)
    "reset_dynamo_metrics",
    "set_model_name",
]


def __getattr__(name: str) -> Any:
    if name == "neuron_backend":
        from optimum_neuron_torch.emulator.compiler import neuron

        return neuron
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
