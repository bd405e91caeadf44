"""What code says while it runs, or is traced into a graph: why a part of it went another way than it was asked to, and
which paths attention takes.
"""

import functools
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch

from .. import runtime
from ..report import Ledger


# A kind, as strict modes have them, and what is said.
Note = tuple[str, str]
_listening: ContextVar[list[Note] | None] = ContextVar("notes of the code that runs", default=None)


@contextmanager
def noting() -> Iterator[list[Note]]:
    """Collect the notes of what runs, or is traced, within the block."""
    notes: list[Note] = []
    token = _listening.set(notes)
    try:
        yield notes
    finally:
        _listening.reset(token)


def noted() -> tuple[Note, ...]:
    """The notes of the innermost `noting()` so far, each once."""
    return tuple(dict.fromkeys(_listening.get() or ()))


def note(text: str, kind: str = "attention") -> None:
    """Say `text` to the innermost `noting()`.

    Where there is none and kernels run, `report()` has it, and where `kind` is strict it is an error.
    """
    if torch.compiler.is_compiling():
        _note_while_traced(text, kind)
    else:
        _say(text, kind)


def _say(text: str, kind: str) -> None:
    notes = _listening.get()
    if notes is not None:
        notes.append((kind, text))
    elif runtime.kernels_run():
        enter([(kind, text)], ledger_outside_graphs(), "a call")


def _note_while_traced(text: str, kind: str) -> None:
    _say(text, kind)


def enter(notes: Iterable[Note], ledger: Ledger, where: str) -> None:
    """Enter each of `notes` once into `ledger`, those of attention with a warning. Raises StrictError where a kind is
    strict.
    """
    for kind, text in dict.fromkeys(notes):
        ledger.depart(kind, where, text, warn=kind == "attention")


# As torch.compiler.assume_constant_result() marks it, which would import Dynamo: run once, while tracing.
_note_while_traced._dynamo_marked_constant = True  # type: ignore[attr-defined]


# ---- paths ----------------------------------------------------------------------------------------------------------

_counting: ContextVar[Counter | None] = ContextVar("paths of the code that runs", default=None)


class TracedPaths(Counter):
    """The paths of one trace: Dynamo may begin anew, and what it counted before then is forgotten."""

    attempt: object = None


@contextmanager
def counting(paths: Counter) -> Iterator[Counter]:
    """Count in `paths`, which it gives, the paths of what runs within the block; `TracedPaths`: of what is traced."""
    token = _counting.set(paths)
    try:
        yield paths
    finally:
        _counting.reset(token)


def counted() -> dict[str, int]:
    """The paths of the innermost `counting()` so far."""
    return dict(_counting.get() or {})


def count_stored(paths: dict[str, int]) -> None:
    """Count, for the innermost `counting()`, the paths of a function that was traced before."""
    if (found := _counting.get()) is not None:
        found.update(paths)


def count(path: str) -> None:
    """Count one call for the innermost `counting()`; where there is none and kernels run, `report()` has it."""
    if torch.compiler.is_compiling():
        _count_while_traced(path)
    else:
        _count(path)


def _count(path: str) -> None:
    paths = _counting.get()
    if paths is None and runtime.kernels_run():
        paths = ledger_outside_graphs().attention
    if paths is not None:
        paths[path] += 1


def _count_while_traced(path: str) -> None:
    attempt = torch._guards.TracingContext.try_get()
    paths = _counting.get()
    if attempt is None:  # another thread is what compiles
        _count(path)
    elif isinstance(paths, TracedPaths):
        if attempt is not paths.attempt:
            paths.clear()
            paths.attempt = attempt
        paths[path] += 1


_count_while_traced._dynamo_marked_constant = True  # type: ignore[attr-defined]


@functools.cache
def ledger_outside_graphs() -> Ledger:
    """The records of calls that belong to no graph of a prepared object."""
    return Ledger("outside graphs")
