"""Records of compiled graphs, as `torch_neuronx.neuron_dynamo_backend.get_dynamo_metrics()` returns them."""

from __future__ import annotations

import atexit
import csv
import functools
import os
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from optimum_neuron_torch.emulator.compiler import graph_breaks


# TorchNeuron's tables of metrics, written as CSV when the process ends, and the columns of its one table.
TABLES_VARIABLE = "TORCH_NEURONX_ENABLED_METRIC_TABLES"
DIRECTORY_VARIABLE = "TORCH_NEURONX_METRICS_DIR"
GRAPH_STATS = (
    "graph_id",
    "graph_name",
    "model_name",
    "has_collectives",
    "graph_node_count",
    "timestamp",
    "torch_neuronx_fx_passes_us",
    "torch_neuronx_lower_us",
    "torch_neuronx_compile_us",
)

# What the time of a graph is spent on: record fields `torch_neuronx_{phase}_us`.
PHASES = ("trace", "fx_passes", "lower", "compile", "load")

_lock = threading.Lock()
_records: list[GraphRecord] = []
_model_name: str | None = None
_counts: dict[str, int] = {}
_cpu_autocopies = 0


@dataclass
class GraphRecord:
    """
    One graph compiled, or revived from the cache, in this process. Times are microseconds.

    The native record ends with `torch_neuronx_compile_us`; `torch_neuronx_trace_us` (Dynamo and AOTAutograd),
    `torch_neuronx_load_us` (reviving from the cache) and what follows are the emulator's.

    Args:
        cached: it came from the persistent cache.
        executor: what runs it.
        lowering: how lowering to StableHLO ended: `checked`, `off`, `unavailable`, `fallback`.
        bucket: what the graph serves, where the caller said so (option `bucket`).
        inputs: the user's arguments that enter it, as `name dtype[sizes]`.
        recompile_reason: why it was compiled although its function had a graph; empty for a first one.
        program: digest of the host graph, by which its compiled program is stored; empty where there is none.
        cpu_inputs: CPU tensors that enter it with each call; on Trainium each is a copy.
        float64_nodes, int64_nodes, complex_nodes: operators with results on neuron of types that Trainium lacks.
    """

    graph_id: str = ""
    graph_name: str = ""
    model_name: str = ""
    has_collectives: bool = False
    graph_node_count: int = 0
    timestamp: float = field(default_factory=time.time)
    torch_neuronx_trace_us: int = 0
    torch_neuronx_fx_passes_us: int = 0
    torch_neuronx_lower_us: int = 0
    torch_neuronx_compile_us: int = 0
    torch_neuronx_load_us: int = 0
    cached: bool = False
    executor: str = ""
    lowering: str = ""
    bucket: str = ""
    inputs: str = ""
    recompile_reason: str = ""
    program: str = ""
    cpu_inputs: int = 0
    float64_nodes: int = 0
    int64_nodes: int = 0
    complex_nodes: int = 0

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Add the time spent inside to `torch_neuronx_{phase}_us`."""
        start = time.perf_counter_ns()
        try:
            yield
        finally:
            name = f"torch_neuronx_{phase}_us"
            setattr(self, name, getattr(self, name) + (time.perf_counter_ns() - start) // 1000)


def set_model_name(name: str | None) -> None:
    """Name the graphs compiled from now on; `torch.compile(options={"model_name": ...})` takes precedence."""
    global _model_name
    _model_name = name


def get_model_name() -> str:
    """The name given by `set_model_name()`, or "model_default"."""
    return _model_name or "model_default"


def get_rank() -> int:
    """The rank of this process in its process group; without one, the current core."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank()
    return torch.neuron.current_device()


class GraphMetrics(dict[str, Any]):
    """One graph's record. Its fields are keys, and attributes as on the native package's records."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"a graph's record has no field {name!r}: {', '.join(self)}") from None


def get_dynamo_metrics() -> list[GraphMetrics]:
    """One record per graph of this process, oldest first."""
    with _lock:
        return [GraphMetrics(asdict(record)) for record in _records]


def reset_dynamo_metrics() -> None:
    """Forget all records and graph breaks."""
    with _lock:
        _records.clear()
    graph_breaks.reset_graph_breaks()


def add(record: GraphRecord) -> None:
    """Publish a finished record, and count it where Dynamo keeps its counters."""
    from torch._dynamo.utils import counters

    _write_tables_at_exit()
    with _lock:
        _records.append(record)
    counters["neuron"]["cached_graphs" if record.cached else "compiled_graphs"] += 1
    if record.has_collectives:
        counters["neuron"]["graphs_with_collectives"] += 1
    if record.recompile_reason and not record.graph_name.rpartition("_")[0].endswith("_backward"):
        counters["neuron"]["recompilations"] += 1


def count_cpu_autocopies(number: int) -> None:
    """Count CPU tensors that enter a graph with one call; on Trainium each of them is copied."""
    global _cpu_autocopies
    with _lock:
        _cpu_autocopies += number


def cpu_autocopies() -> int:
    """How many CPU tensors entered compiled graphs so far."""
    return _cpu_autocopies


def reset_cpu_autocopies() -> None:
    """Count from zero."""
    global _cpu_autocopies
    with _lock:
        _cpu_autocopies = 0


def warn_fallback(record: GraphRecord) -> None:
    """Say that a graph, compiled now or loaded, runs eagerly because it did not lower."""
    warnings.warn(
        f"Graph {record.graph_name} does not lower to StableHLO and runs eagerly on neuron.",
        RuntimeWarning,
        stacklevel=2,
    )


def next_graph_name(model_name: str, aot_id: int, kind: str) -> str:
    """`{model}_{aot_id}_{inference|forward|backward}_{n}`, n counting the graphs of that name."""
    stem = f"{model_name}_{aot_id}_{kind}"
    with _lock:
        number = _counts.get(stem, 0)
        _counts[stem] = number + 1
    return f"{stem}_{number}"


@functools.cache
def _write_tables_at_exit() -> None:
    names = {name.strip() for name in os.environ.get(TABLES_VARIABLE, "").split(",")} - {""}
    if names - {"graph_stats"}:
        unknown = ", ".join(sorted(names - {"graph_stats"}))
        raise ValueError(f"{TABLES_VARIABLE}: there is no table {unknown}. The one there is: graph_stats.")
    if names:
        atexit.register(write_graph_stats)


def write_graph_stats() -> Path | None:
    """Writes the table `graph_stats`, one row per graph of this process; gives the file, None where there are none."""
    records = get_dynamo_metrics()
    if not records:
        return None
    path = Path(os.environ.get(DIRECTORY_VARIABLE) or "/tmp") / f"metric_table_graph_stats_rank{get_rank()}.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, GRAPH_STATS, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(records)
    return path
