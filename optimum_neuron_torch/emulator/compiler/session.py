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
    """

    options: CompileOptions
    number: int = 0
    _mark_ns: int = field(default_factory=time.time_ns)

    @classmethod
    def start(cls, options: CompileOptions) -> Session:
        """Begin a session; its clock starts where Dynamo began to trace."""
        global _started
        session = cls(options=options, number=_started, _mark_ns=_dynamo_start_ns() or time.time_ns())
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
        """Fill the names of a record."""
        record.model_name = self.options.model_name or metrics.get_model_name()
        record.graph_name = metrics.next_graph_name(record.model_name, self.number, kind)


def _dynamo_start_ns() -> int | None:
    """When Dynamo began with the frame being compiled; None where it does not say."""
    try:
        from torch._dynamo.utils import get_metrics_context

        return get_metrics_context()._start_time_ns or None
    except (ImportError, AttributeError):
        return None
