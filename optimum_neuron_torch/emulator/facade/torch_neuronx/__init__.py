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

empty_cache = torch.neuron.empty_cache
max_memory_allocated = torch.neuron.max_memory_allocated
max_memory_reserved = torch.neuron.max_memory_reserved
memory_allocated = torch.neuron.memory_allocated
memory_reserved = torch.neuron.memory_reserved
memory_stats = torch.neuron.memory_stats
memory_summary = torch.neuron.memory_summary
reset_accumulated_memory_stats = torch.neuron.reset_accumulated_memory_stats
reset_peak_memory_stats = torch.neuron.reset_peak_memory_stats


def clear_op_tracking() -> None:
    """Forgets the executed and fallback operations, and the signatures and copies counted with them."""
    _clear_counters()


def __getattr__(name: str):
    if name == "neuron_dynamo_backend":  # on first use: it belongs to the compiler, which loads more
        import importlib

        return importlib.import_module(".neuron_dynamo_backend", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "clear_op_tracking",
    "empty_cache",
    "get_executed_ops",
    "get_fallback_ops",
    "get_unknown_ops",
    "is_emulated",
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
    "reset_peak_memory_stats",
    "strict",
    "utils",
    "wrap_nki",
]
