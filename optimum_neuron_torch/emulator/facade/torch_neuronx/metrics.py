"""Counters of the device, with TorchNeuron's function names. Here they are always on.

Counters: "eager_signatures" (each one a compilation on Trainium), "eager_calls", "copies", "fallback_calls" (those
that the real device would have run on the CPU), "unknown_calls" (those of which nothing public says how it runs
them), "copies.<direction>", and per operation "calls.<op>" and "signatures.<op>".
Metrics, which are lists of measured values, come from compiled graphs: the time spent per phase in microseconds.
"""

from typing import Any

from optimum_neuron_torch.emulator.device import clear_counters, counters, mark_warm
from optimum_neuron_torch.emulator.device.counting import fallback_ops, unknown_ops


_PHASES = ("trace", "fx_passes", "lower", "compile", "load")


def is_enabled() -> bool:
    return True


def set_enabled(enabled: bool) -> None:
    """Does nothing: the emulator always counts, since counting is what it is for."""


def get_counter_names() -> list[str]:
    return list(_counter_values())


def get_counter_value(name: str) -> int:
    """The value of a counter; 0 for one that has never been counted."""
    return _counter_values().get(name, 0)


def get_metric_names() -> list[str]:
    return [f"torch_neuronx_{phase}_us" for phase in _PHASES]


def get_metric_data(name: str) -> list[Any]:
    """The values of a metric, one per compiled graph."""
    return [record[name] for record in get_compilation_metrics() if name in record]


def get_compilation_metrics() -> list[dict[str, Any]]:
    """The records of all compiled graphs."""
    from . import neuron_dynamo_backend

    return neuron_dynamo_backend.get_dynamo_metrics()


def report() -> str:
    """All counters and metrics as text."""
    return report_filtered(lambda name: True)


def report_filtered(keep) -> str:
    """The counters and metrics for whose names `keep` (a predicate, or a list of names) holds, as text."""
    wanted = keep if callable(keep) else set(keep).__contains__
    lines = [f"{name}: {value}" for name, value in _counter_values().items() if wanted(name)]
    for name in filter(wanted, get_metric_names()):
        values = get_metric_data(name)
        lines.append(f"{name}: {len(values)} graphs, {sum(values):.0f} us")
    return "\n".join(lines)


def clear_metrics() -> None:
    from . import neuron_dynamo_backend

    neuron_dynamo_backend.reset_dynamo_metrics()


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
        "fallback_calls": sum(operations[name][0] for name in fallback_ops()),
        "unknown_calls": sum(operations[name][0] for name in unknown_ops()),
    }
    for (direction, _shape), count in counted["copies_by_shape"].items():
        values[f"copies.{direction}"] = values.get(f"copies.{direction}", 0) + count
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
