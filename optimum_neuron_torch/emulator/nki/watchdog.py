"""Ends kernels that compute for ever in Python without issuing anything, which no count of instructions can see.

One thread looks at the kernels that run. What counts is the processor time of a kernel's own thread since its last
instruction: who waits at a breakpoint, or for the other core, uses none. A kernel that is traced line by line, as
debuggers do, is not watched at all.
"""

import ctypes
import os
import sys
import threading
import time
import traceback
from dataclasses import dataclass
from typing import Any

from .errors import SIMULATOR_DIR, NkiError


PATIENCE_VARIABLE = "NEURON_EMULATOR_NKI_PATIENCE"
DEFAULT_PATIENCE = 60.0  # seconds of processor time
ARRIVAL_TURNS = 10_000


class EndlessLoopError(NkiError):
    """Raised in the kernel's thread, at the line that it is at."""

    def __init__(self) -> None:
        watched = _watched.get(threading.get_ident())
        if watched is not None:
            watched.is_pending = False
        super().__init__(
            f"the kernel has computed for {patience():g} s without an instruction: a Python loop that never ends? "
            f"{PATIENCE_VARIABLE} sets how long it may"
        )

    def place_in_kernel(self) -> None:
        """Python makes the error when it is caught, so its line is in its traceback."""
        for frame, line in traceback.walk_tb(self.__traceback__):
            if not frame.f_code.co_filename.startswith(SIMULATOR_DIR):
                self.place(frame.f_code.co_filename, line)


@dataclass
class _Watched:
    run: Any
    thread: int
    clock: int
    steps: int
    seconds: float  # of processor time, at the last instruction seen
    patience: float
    is_pending: bool = False  # an error was sent and has not arrived


_watched: dict[int, _Watched] = {}  # by thread
_change = threading.Condition()
_watcher: threading.Thread | None = None


def patience() -> float:
    """
    Raises:
        NkiError: the variable is no positive number.
    """
    value = os.environ.get(PATIENCE_VARIABLE, "").strip()
    try:
        seconds = float(value or DEFAULT_PATIENCE)
    except ValueError:
        seconds = 0.0
    if not seconds > 0:
        raise NkiError(f"{PATIENCE_VARIABLE}={value}: it is a number of seconds, more than 0")
    return seconds


def watch(run: Any) -> None:
    """From now on this thread executes a kernel."""
    if not hasattr(time, "pthread_getcpuclockid") or sys.gettrace() is not None:
        return
    thread = threading.get_ident()
    clock = time.pthread_getcpuclockid(thread)
    with _change:
        _watched[thread] = _Watched(run, thread, clock, run.steps_left, time.clock_gettime(clock), patience())
        _start_watcher()
        _change.notify()


def leave() -> None:
    """This thread's kernel has ended."""
    thread = threading.get_ident()
    watched = _watched.get(thread)
    try:
        with _change:
            _watched.pop(thread, None)
        # What was sent and has not arrived must not arrive in the caller's code: it does at the next turn of a
        # loop. Taking it back would leave the interpreter waiting (CPython 3.11 hangs then under a trace function).
        for _ in range(ARRIVAL_TURNS if watched is not None and watched.is_pending else 0):
            pass
    except EndlessLoopError:
        pass
    finally:
        _watched.pop(thread, None)


def _start_watcher() -> None:
    global _watcher
    if _watcher is None or not _watcher.is_alive():
        _watcher = threading.Thread(target=_look_on, name="nki-watchdog", daemon=True)
        _watcher.start()


def _look_on() -> None:
    while True:
        with _change:
            while not _watched:
                _change.wait()
            for watched in _watched.values():
                _look_at(watched)
            pause = min(watched.patience for watched in _watched.values()) / 4
        time.sleep(min(pause, 1.0))


def _look_at(watched: _Watched) -> None:
    try:
        seconds = time.clock_gettime(watched.clock)
    except OSError:  # the thread has ended
        return
    if watched.run.steps_left != watched.steps:
        watched.steps, watched.seconds = watched.run.steps_left, seconds
    elif seconds - watched.seconds > watched.patience:
        watched.is_pending, watched.seconds = True, seconds
        _raise_in(watched.thread, EndlessLoopError)


def _raise_in(thread: int, error: type[BaseException]) -> None:
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(error))


def _forget() -> None:
    """In the child of a fork there is no watcher, and nobody who holds the lock."""
    global _change, _watcher
    _change, _watcher = threading.Condition(), None
    _watched.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
