"""Compiles the fast programs of tiered graphs behind the foreground: in a child that takes only idle processor time.

The kernel gives such a child (scheduling policy SCHED_IDLE) what no one else wants. A graph that has been interpreted
for longer than its compilation should take is compiled at ordinary priority, beside a busy foreground too.
`finish_compilations()` compiles what is left at once, in as many children as there are cores.
`NEURON_EMULATOR_BACKGROUND=0` leaves all to it.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import time
import warnings
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

from optimum_neuron_torch.emulator.compiler.announcing import announce_program
from optimum_neuron_torch.emulator.compiler.worker import Worker


if TYPE_CHECKING:
    from optimum_neuron_torch.emulator.compiler.executors.host import HostProgram


VARIABLE = "NEURON_EMULATOR_BACKGROUND"
# How often the children are looked after, and how long a graph waits for the first of them, in seconds: a short
# script ends before that.
INTERVAL, DELAY = 0.25, 1.0
# What a compilation is taken to cost, in seconds: a fixed part, and one for each operator of the graph.
FIXED_COST, COST_PER_NODE = 10.0, 0.015


class Queue:
    """The tiered graphs of this process that have no fast program yet."""

    def __init__(self) -> None:
        self._waiting: list[weakref.ref[HostProgram]] = []
        self._running: dict[Worker, weakref.ref[HostProgram]] = {}
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._is_urgent = False

    def submit(self, program: HostProgram) -> None:
        """Compile `program` when there is time for it."""
        with self._changed:
            self._waiting.append(weakref.ref(program))
            if os.environ.get(VARIABLE) != "0":
                self._start()

    def pending(self) -> int:
        """How many graphs still run interpreted, and will not for ever."""
        with self._changed:
            self._forget_dead()
            return len(self._waiting) + len(self._running)

    def finish(self, progress: Callable[[int], None] | None = None) -> int:
        """
        Compile all that is pending, and wait for it.

        Args:
            progress: called with the number of graphs that are left whenever it changes.

        Returns the number of graphs compiled.
        """
        count = said = self.pending()
        with self._changed:
            self._is_urgent = True
            try:
                while left := len(self._waiting) + len(self._running):
                    if progress and left != said:
                        progress(left)
                    said = left
                    self._start()
                    self._changed.wait(1.0)
                    self._forget_dead()
            finally:
                self._is_urgent = False
        if progress and count:
            progress(0)
        return count

    def stop(self) -> None:
        """Kill the children; what they compiled is lost."""
        with self._changed:
            for worker in self._running:
                worker.kill()
            self._running.clear()
            self._waiting.clear()
            self._changed.notify_all()

    def _start(self) -> None:
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._serve, name="neuron-compilations", daemon=True)
            self._thread.start()

    def _forget_dead(self) -> None:
        self._waiting = [reference for reference in self._waiting if reference() is not None]

    def _serve(self) -> None:
        waiting: list[Worker] = []
        start = time.monotonic()
        try:
            while True:
                with self._changed:
                    self._forget_dead()
                    if not self._waiting and not self._running:
                        self._thread = None
                        self._changed.notify_all()
                        return
                    urgent = self._is_urgent
                if ordinary := urgent or self._is_hot():
                    self._take_back(waiting)
                if ordinary or time.monotonic() - start >= DELAY:
                    self._give_work(waiting, _usable_cores() if urgent else 1, idle_only=not ordinary)
                self._collect(waiting)
                time.sleep(0.02 if urgent else INTERVAL)
        finally:
            for worker in waiting:
                worker.kill()

    def _is_hot(self) -> bool:
        """Whether interpreting has cost more than compiling should: then waiting for idle time does not pay."""
        with self._changed:
            programs = [reference() for reference in (*self._waiting, *self._running.values())]
        return any(
            program is not None and program.slow_seconds > FIXED_COST + COST_PER_NODE * program.nodes
            for program in programs
        )

    def _take_back(self, waiting: list[Worker]) -> None:
        """End the children that take idle time only: an ordinary process may not raise their priority."""
        for worker in [worker for worker in (*self._running, *waiting) if worker.idle_only]:
            with self._changed:
                if reference := self._running.pop(worker, None):
                    self._waiting.append(reference)
            if worker in waiting:
                waiting.remove(worker)
            worker.kill()

    def _give_work(self, waiting: list[Worker], limit: int, *, idle_only: bool) -> None:
        while True:
            with self._changed:
                if not self._waiting or len(self._running) >= limit:
                    return
                # The graph that was interpreted for longest is needed most.
                reference = max(self._waiting, key=_slow_seconds)
                self._waiting.remove(reference)
                program = reference()
                if program is None:
                    continue
                worker = next((each for each in waiting if each.idle_only == idle_only), None)
                if worker is None:
                    worker = Worker(idle_only=idle_only)
                else:
                    waiting.remove(worker)
                self._running[worker] = reference  # at no time in between is it not pending
            if not worker.start(program):  # a graph that cannot leave this process is compiled in it
                waiting.append(worker)
                self._finished(worker, program, None)

    def _collect(self, waiting: list[Worker]) -> None:
        for worker, reference in list(self._running.items()):
            outcome = worker.outcome()
            if outcome is None:
                continue
            if worker.is_alive():
                waiting.append(worker)
            self._finished(worker, reference(), outcome)

    def _finished(self, worker: Worker, program: HostProgram | None, outcome: dict[str, object] | None) -> None:
        try:
            if program is not None:
                self._use(program, outcome)
        finally:
            with self._changed:
                self._running.pop(worker, None)
                self._changed.notify_all()

    def _use(self, program: HostProgram, outcome: dict[str, object] | None) -> None:
        from optimum_neuron_torch.emulator.compiler import programs

        before = program.record.torch_neuronx_compile_us
        try:
            if outcome is None:
                program.compile_now()
            elif "error" in outcome:
                raise RuntimeError(outcome["error"])
            elif call := programs.load(programs.key_of(program.digest)):
                program.use(call, seconds=float(outcome["seconds"]))  # type: ignore[arg-type]
            else:
                program.compile_now()
            announce_program(program.record, (program.record.torch_neuronx_compile_us - before) / 1e6)
        except Exception as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            warnings.warn(
                f"Graph {program.record.graph_name} stays interpreted: it could not be compiled ({reason}).",
                RuntimeWarning,
                stacklevel=2,
            )


def _usable_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _slow_seconds(reference: weakref.ref[HostProgram]) -> float:
    program = reference()
    return -1.0 if program is None else program.slow_seconds


_queue = Queue()


def submit(program: HostProgram) -> None:
    """See `Queue.submit`."""
    _queue.submit(program)


def pending_compilations() -> int:
    """How many graphs run interpreted until their fast program is compiled."""
    return _queue.pending()


def finish_compilations(progress: Callable[[int], None] | None = None) -> int:
    """Compile the fast programs of all graphs of this process, and wait; see `Queue.finish`."""
    return _queue.finish(progress)


def _renew() -> None:
    """A forked child has neither the thread nor the right to its parent's children."""
    global _queue
    _queue = Queue()


atexit.register(lambda: _queue.stop())
with contextlib.suppress(AttributeError):
    os.register_at_fork(after_in_child=_renew)
