"""Stretches of calls between which nothing but a library's own code runs.

What was found out about a model at the beginning of one (which graph serves a call, that nothing in it changed) holds
until its end.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class _Current(threading.local):
    stretch: object | None = None


_current = _Current()


def current_stretch() -> object | None:
    """The stretch that this thread is in; each one is an object of its own."""
    return _current.stretch


@contextmanager
def undisturbed(is_undisturbed: bool = True) -> Iterator[None]:
    """A new stretch, or with False none, until the end of the block."""
    outer, _current.stretch = _current.stretch, object() if is_undisturbed else None
    try:
        yield
    finally:
        _current.stretch = outer
