"""Records of compiled graphs, as `torch_neuronx.neuron_dynamo_backend.get_dynamo_metrics()` returns them."""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any


_lock = threading.Lock()
_records: list[GraphRecord] = []
_model_name: str | None = None
_counts: dict[str, int] = {}


@dataclass
class GraphRecord:
    """
    One graph compiled, or revived from the cache, in this process. Times are microseconds.

    The native record ends with `torch_neuronx_compile_us`; `torch_neuronx_trace_us` (Dynamo and AOTAutograd),
    `torch_neuronx_load_us` (reviving from the cache), `cached`, `executor` and `lowering` are the emulator's.
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


def get_model_name() -> str | None:
    """The name given by `set_model_name()`."""
    return _model_name


def get_dynamo_metrics() -> list[dict[str, Any]]:
    """One dictionary per graph of this process, oldest first."""
    with _lock:
        return [asdict(record) for record in _records]


def reset_dynamo_metrics() -> None:
    """Forget all records."""
    with _lock:
        _records.clear()


def add(record: GraphRecord) -> None:
    """Publish a finished record, and count it where Dynamo keeps its counters."""
    from torch._dynamo.utils import counters

    with _lock:
        _records.append(record)
    counters["neuron"]["cached_graphs" if record.cached else "compiled_graphs"] += 1
    if record.has_collectives:
        counters["neuron"]["graphs_with_collectives"] += 1


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
