"""Neuron tensors as CPU tensors and the other way round, over the same memory."""

from collections.abc import Iterator
from contextlib import contextmanager

from . import extension


_C = extension.load()

host_alias = _C.host_alias
host_aliases = _C.host_aliases
device_alias = _C.device_alias
device_aliases = _C.device_aliases


@contextmanager
def allocating_on(core: int) -> Iterator[None]:
    """In this scope, CPU tensors that this thread makes live in the memory of neuron core `core`.

    They are ordinary CPU tensors; `device_alias` turns them into neuron tensors without counting the memory twice.
    """
    previous = _C.exchange_allocating_core(core)
    try:
        yield
    finally:
        _C.exchange_allocating_core(previous)
