"""`torch_neuronx` as far as the emulator has it: op tracking, memory, metrics, NKI entry points.

`get_unknown_ops`, `is_emulated` and `strict` exist only here, never on the native package.
"""

import torch

from optimum_neuron_torch.emulator.device import strict
from optimum_neuron_torch.emulator.device.counting import clear_counters as _clear_counters
from optimum_neuron_torch.emulator.device.counting import executed_ops as get_executed_ops
from optimum_neuron_torch.emulator.device.counting import fallback_ops as get_fallback_ops
from optimum_neuron_torch.emulator.device.counting import unknown_ops as get_unknown_ops

from . import metrics, utils
from .nki_ops import nki_op, wrap_nki


# The release of TorchNeuron whose behaviour is emulated.
__version__ = "2.13.3.0+emulated"

is_emulated = True

Event = torch.neuron.Event
Stream = torch.neuron.Stream
current_device = torch.neuron.current_device
current_stream = torch.neuron.current_stream
default_stream = torch.neuron.default_stream
device = torch.neuron.device
device_count = torch.neuron.device_count
empty_cache = torch.neuron.empty_cache
get_device_properties = torch.neuron.get_device_properties
get_dynamo_metrics = torch.neuron.get_dynamo_metrics
is_neuron_runtime_initialized = torch.neuron.is_initialized
max_memory_allocated = torch.neuron.max_memory_allocated
max_memory_reserved = torch.neuron.max_memory_reserved
memory_allocated = torch.neuron.memory_allocated
memory_reserved = torch.neuron.memory_reserved
memory_stats = torch.neuron.memory_stats
memory_summary = torch.neuron.memory_summary
reset_accumulated_memory_stats = torch.neuron.reset_accumulated_memory_stats
reset_dynamo_metrics = torch.neuron.reset_dynamo_metrics
reset_peak_memory_stats = torch.neuron.reset_peak_memory_stats
set_device = torch.neuron.set_device
set_stream = torch.neuron.set_stream
stream = torch.neuron.stream
synchronize = torch.neuron.synchronize


def clear_op_tracking() -> None:
    """Forgets the executed and fallback operations, and the signatures and copies counted with them."""
    _clear_counters()


def __getattr__(name: str):
    if name == "neuron_dynamo_backend":  # on first use: it belongs to the compiler, which loads more
        import importlib

        return importlib.import_module(".neuron_dynamo_backend", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "Event",
    "Stream",
    "clear_op_tracking",
    "current_device",
    "current_stream",
    "default_stream",
    "device",
    "device_count",
    "empty_cache",
    "get_device_properties",
    "get_dynamo_metrics",
    "get_executed_ops",
    "get_fallback_ops",
    "get_unknown_ops",
    "is_emulated",
    "is_neuron_runtime_initialized",
    "max_memory_allocated",
    "max_memory_reserved",
    "memory_allocated",
    "memory_reserved",
    "memory_stats",
    "memory_summary",
    "metrics",
    "neuron_dynamo_backend",
    "nki_op",
    "reset_accumulated_memory_stats",
    "reset_dynamo_metrics",
    "reset_peak_memory_stats",
    "set_device",
    "set_stream",
    "stream",
    "strict",
    "synchronize",
    "utils",
    "wrap_nki",
]
