"""State of one call of the backend that AOTAutograd's callbacks need: options, names, the clock."""

from __future__ import annotations

import time
from contextvars import ContextVar
from dataclasses import dataclass, field

from optimum_neuron_torch.emulator.compiler import metrics
from optimum_neuron_torch.emulator.compiler.options import CompileOptions


_current: ContextVar[Session | None] = ContextVar("neuron_compile_session", default=None)
_started = 0


@dataclass
class Session:
    """
    One Dynamo graph on its way through the backend.

    Args:
        options: the user's options.
        number: how many graphs this process had given to the backend before.
        inputs: the user's arguments, described.
        recompile_reason: why there is a compilation although the function had a graph; empty for a first one.
    """

    options: CompileOptions
    number: int = 0
    inputs: str = ""
    recompile_reason: str = ""
    _mark_ns: int = field(default_factory=time.time_ns)

    @classmethod
    def start(cls, options: CompileOptions, *, inputs: str = "", recompile_reason: str = "") -> Session:
        """Begin a session; its clock starts where Dynamo began to trace."""
        global _started
        session = cls(
            options=options,
            number=_started,
            inputs=inputs,
            recompile_reason=recompile_reason,
            _mark_ns=_dynamo_start_ns() or time.time_ns(),
        )
        _started += 1
        return session

    @classmethod
    def current(cls) -> Session | None:
        """The session of the backend call now running in this context, if any."""
        return _current.get()

    def __enter__(self) -> Session:
        self._token = _current.set(self)
        return self

    def __exit__(self, *exception: object) -> None:
        _current.reset(self._token)

    def trace_us(self) -> int:
        """Microseconds since tracing began or since `resume_tracing`: the share of Dynamo and AOTAutograd."""
        return (time.time_ns() - self._mark_ns) // 1000

    def resume_tracing(self) -> None:
        """A graph was compiled: what follows until the next one is AOTAutograd's time again."""
        self._mark_ns = time.time_ns()

    def name_graph(self, record: metrics.GraphRecord, kind: str) -> None:
        """Fill in what a record takes from the call of the backend: names, inputs, why it came to be."""
        record.bucket, record.inputs = self.options.bucket, self.inputs
        record.recompile_reason = self.recompile_reason
        record.model_name = self.options.model_name or metrics.get_model_name()
        record.graph_name = metrics.next_graph_name(record.model_name, self.number, kind)

    @staticmethod
    def name_loaded(record: metrics.GraphRecord, kind: str) -> None:
        """Fill the names of a record that belongs to no session: what was loaded without the backend being called."""
        global _started
        record.model_name = metrics.get_model_name()
        record.graph_name = metrics.next_graph_name(record.model_name, _started, kind)
        _started += 1


def _dynamo_start_ns() -> int | None:
    """When Dynamo began with the frame being compiled; None where it does not say."""
    try:
        from torch._dynamo.utils import get_metrics_context

        return get_metrics_context()._start_time_ns or None
    except (ImportError, AttributeError):
        return None
