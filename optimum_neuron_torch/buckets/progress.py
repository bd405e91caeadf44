"""Showing that something is being compiled: a line with a spinner on a terminal, the log elsewhere."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from rich.console import Console


logger = logging.getLogger(__name__)

_has_display: ContextVar[bool] = ContextVar("_has_display", default=False)


@contextmanager
def compiling(what: str) -> Iterator[None]:
    """Say that `what` is being compiled, for as long as the block runs."""
    logger.info("compiling %s", what)
    console = Console(stderr=True)
    if _has_display.get() or not console.is_terminal:
        yield
    else:
        with console.status(f"compiling {what}"):
            yield


@contextmanager
def own_display() -> Iterator[None]:
    """Within the block the caller draws its own progress; `compiling` only logs."""
    token = _has_display.set(True)
    try:
        yield
    finally:
        _has_display.reset(token)
