"""What code says while it runs, or is traced into a graph: why a part of it went another way than it was asked to."""

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch

from .. import runtime
from ..report import Ledger


_listening: ContextVar[list[str] | None] = ContextVar("notes of the code that runs", default=None)


@contextmanager
def noting() -> Iterator[list[str]]:
    """Collect the notes of what runs, or is traced, within the block."""
    notes: list[str] = []
    token = _listening.set(notes)
    try:
        yield notes
    finally:
        _listening.reset(token)


def noted() -> tuple[str, ...]:
    """The notes of the innermost `noting()` so far, each once."""
    return tuple(dict.fromkeys(_listening.get() or ()))


def note(text: str) -> None:
    """Say `text` to the innermost `noting()`.

    Where there is none and kernels run, `report()` has it, with one warning, and strict "attention" makes it an error.
    """
    if torch.compiler.is_compiling():
        _note_while_traced(text)
    else:
        _say(text)


def _say(text: str) -> None:
    notes = _listening.get()
    if notes is not None:
        notes.append(text)
    elif runtime.kernels_run():
        ledger_outside_graphs().depart("attention", "a call", text)


def _note_while_traced(text: str) -> None:
    _say(text)


# As torch.compiler.assume_constant_result() marks it, which would import Dynamo: run once, while tracing.
_note_while_traced._dynamo_marked_constant = True  # type: ignore[attr-defined]


@functools.cache
def ledger_outside_graphs() -> Ledger:
    """The records of calls that belong to no graph of a prepared object."""
    return Ledger("outside graphs")
