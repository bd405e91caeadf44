"""Counters of the device, with TorchNeuron's function names. Here they are always on.

Counters: "eager_signatures" (each one a compilation on Trainium), "eager_calls", "copies", "fallback_calls" (those
that the real device would have run on the CPU), "unknown_calls" (those of which nothing public says how it runs
them), "cpu_autocopies" (CPU tensors that entered compiled graphs, counted per call), "copies.<direction>", per dtype
of the first tensor "dtype_calls.<dtype>", and per operation "calls.<op>" and "signatures.<op>".
Metrics, which are lists of measured values, come from compiled graphs: the time spent per phase in microseconds.
"""

import sys
from typing import Any

from optimum_neuron_torch.emulator.device import clear_counters as _clear_device_counters
from optimum_neuron_torch.emulator.device import counters, mark_warm
from optimum_neuron_torch.emulator.device.counting import fallback_ops, unknown_ops


_COMPILER_METRICS = "optimum_neuron_torch.emulator.compiler.metrics"

_METRICS = tuple(f"torch_neuronx_{phase}_us" for phase in ("trace", "fx_passes", "lower", "compile", "load"))


def is_enabled() -> bool:
    """True: `TORCH_NEURONX_METRICS_ENABLED` is not needed here."""
    return True


def set_enabled(enabled: bool) -> None:
    """Does nothing: the emulator always counts, since counting is what it is for."""


def get_counter_names() -> list[str]:
    return list(_counter_values())


def get_counter_value(name: str) -> int | None:
    """The value of a counter; None for one that has never been counted."""
    return _counter_values().get(name)


def get_metric_names() -> list[str]:
    """The names of the metrics that have data."""
    records = _graph_records()
    return [name for name in _METRICS if any(name in record for record in records)]


def get_metric_data(name: str) -> dict[str, Any] | None:
    """A metric's `accumulator` (the sum, in microseconds), `total_samples`, `samples` and `repr`; None without data.

    One sample per compiled graph: `timestamp_ns` and `value`.
    """
    records = [record for record in _graph_records() if name in _METRICS and name in record]
    if not records:
        return None
    samples = [{"timestamp_ns": int(record["timestamp"] * 1e9), "value": float(record[name])} for record in records]
    total = sum(sample["value"] for sample in samples)
    return {
        "accumulator": total,
        "total_samples": len(samples),
        "repr": f"{len(samples)} graphs, {total:.0f} us",
        "samples": samples,
    }


def get_compilation_metrics() -> dict[str, Any]:
    """The metrics of compiled graphs: name -> `accumulator`, `total_samples`, `formatted`."""
    data = {name: get_metric_data(name) for name in get_metric_names()}
    return {
        name: {
            "accumulator": metric["accumulator"],
            "total_samples": metric["total_samples"],
            "formatted": metric["repr"],
        }
        for name, metric in data.items()
    }


def report() -> str:
    """All counters and metrics as text."""
    return _as_text(get_counter_names(), get_metric_names())


def report_filtered(counter_names: list[str] | None = None, metric_names: list[str] | None = None) -> str:
    """The counters and metrics named, as text."""
    return _as_text(counter_names or [], metric_names or [])


def _as_text(counter_names: list[str], metric_names: list[str]) -> str:
    values = _counter_values()
    lines = [f"{name}: {values[name]}" for name in counter_names if name in values]
    data = {name: get_metric_data(name) for name in metric_names}
    lines += [f"{name}: {metric['repr']}" for name, metric in data.items() if metric]
    return "\n".join(lines)


def _graph_records() -> list[dict[str, Any]]:
    from . import neuron_dynamo_backend

    return neuron_dynamo_backend.get_dynamo_metrics()


def clear_metrics() -> None:
    from . import neuron_dynamo_backend

    neuron_dynamo_backend.reset_dynamo_metrics()


def clear_counters() -> None:
    """Sets all counters to zero and forgets the known signatures."""
    _clear_device_counters()
    if _COMPILER_METRICS in sys.modules:
        sys.modules[_COMPILER_METRICS].reset_cpu_autocopies()


def _cpu_autocopies() -> int:
    """Without loading the compiler, which would take longer than it takes to count nothing."""
    return sys.modules[_COMPILER_METRICS].cpu_autocopies() if _COMPILER_METRICS in sys.modules else 0


def clear_all() -> None:
    clear_counters()
    clear_metrics()


def _counter_values() -> dict[str, int]:
    counted = counters()
    operations = counted["operations"]
    values = {
        "eager_signatures": counted["eager_signatures"],
        "eager_calls": counted["eager_calls"],
        "copies": counted["copies"],
        "cpu_autocopies": _cpu_autocopies(),
        "fallback_calls": sum(operations[name][0] for name in fallback_ops()),
        "unknown_calls": sum(operations[name][0] for name in unknown_ops()),
    }
    for (direction, _shape), count in counted["copies_by_shape"].items():
        values[f"copies.{direction}"] = values.get(f"copies.{direction}", 0) + count
    for by_dtype in counted["calls_by_dtype"].values():
        for dtype, calls in by_dtype.items():
            name = f"dtype_calls.{dtype or 'none'}"
            values[name] = values.get(name, 0) + calls
    for name, (calls, signatures) in operations.items():
        values[f"calls.{name}"] = calls
        values[f"signatures.{name}"] = signatures
    return values


__all__ = [
    "clear_all",
    "clear_counters",
    "clear_metrics",
    "get_compilation_metrics",
    "get_counter_names",
    "get_counter_value",
    "get_metric_data",
    "get_metric_names",
    "is_enabled",
    "mark_warm",
    "report",
    "report_filtered",
    "set_enabled",
]
