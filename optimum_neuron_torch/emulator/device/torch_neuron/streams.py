"""Streams and events of `torch.neuron`. The emulated device is synchronous, so they order nothing."""

import time
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from .devices import Device, index_of


class Stream(torch.Stream):
    """A queue of work on one core."""

    def __new__(cls, device: Device = None, priority: int = 0, **identity: Any) -> "Stream":
        if identity:  # stream_id, device_index, device_type: an existing stream
            return super().__new__(cls, **identity)
        return super().__new__(cls, device=torch.device("neuron", index_of(device)), priority=priority)

    @staticmethod
    def priority_range() -> tuple[int, int]:
        """The lowest and the highest priority that `Stream(priority=...)` takes. They order nothing here."""
        return (0, -1)


# A point in the work of a stream of the current accelerator. Not a subclass: elapsed_time() refuses those.
Event = torch.Event


def current_stream(device: Device = None) -> torch.Stream:
    return _own(torch.accelerator.current_stream(index_of(device)))


def default_stream(device: Device = None) -> Stream:
    current = current_stream(device)
    return Stream(stream_id=0, device_index=current.device_index, device_type=current.device_type)


def set_stream(stream: torch.Stream | None) -> None:
    """Makes `stream` the current one of its core, and that core the current one; None changes nothing."""
    if stream is not None:
        torch.accelerator.set_stream(_checked(stream))


def stream(stream: torch.Stream | None) -> AbstractContextManager:
    """Makes `stream` the current one in a scope, and its core the current core; None changes nothing."""
    return nullcontext() if stream is None else _checked(stream)


def wait_stream(stream: torch.Stream) -> None:
    """The current stream waits for the work of `stream`."""
    current_stream().wait_stream(stream)


def wait_event(event: torch.Event) -> None:
    """The current stream waits for `event`."""
    current_stream().wait_event(event)


def record_event(event: torch.Event | None = None) -> torch.Event:
    """Records `event`, or a new one, on the current stream."""
    event = Event() if event is None else event
    event.record(current_stream())
    return event


def query() -> bool:
    """Whether the work of the current stream is done."""
    return current_stream().query()


def _checked(stream: torch.Stream) -> torch.Stream:
    if not isinstance(stream, torch.Stream):
        raise TypeError(f"Expected a stream of the neuron device (torch.neuron.Stream()), but got {stream!r}.")
    return stream


def _own(stream: torch.Stream) -> Stream:
    return Stream(stream_id=stream.stream_id, device_index=stream.device_index, device_type=stream.device_type)


# Clock of the tensor engine, for _sleep(): Neuron documentation, NKI architecture guide of Trainium2.
_CLOCK_HZ = 2.4e9


def _sleep(cycles: int) -> None:
    time.sleep(cycles / _CLOCK_HZ)
