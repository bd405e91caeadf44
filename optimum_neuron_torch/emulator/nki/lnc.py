"""Two cores of a logical NeuronCore: one thread each, of which one runs at a time.

A core runs until it waits for the other, at a barrier or for what it is to receive; then the other goes on. So a
kernel runs the same way every time, and where both wait for each other that is known at once.
"""

import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from .core import Core, Run, Stopped, running
from .errors import NkiError
from .memory import MemoryRegion
from .tensor import NkiTensor


class Link:
    """What the cores of a run share: whose turn it is, barriers, messages, and tensors in shared HBM."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self._turn = threading.Condition()
        self._running = 0
        self._waits: list[Callable[[], bool] | None] = [None] * run.lnc
        self._reasons = [""] * run.lnc
        self._is_done = [False] * run.lnc
        self._has_failed = False
        self._arrivals: dict[Any, list[int]] = {}
        self._counts: dict[Any, int] = {}
        self._messages: dict[Any, list[np.ndarray]] = {}
        self._shared: dict[int, NkiTensor] = {}
        self._allocations = [0] * run.lnc

    # Taking turns

    def start(self, core: Core) -> None:
        with self._turn:
            self._turn.wait_for(lambda: self._running == core.index or self._has_failed)
            self._stop_if_failed()

    def finish(self, core: Core, has_failed: bool) -> None:
        with self._turn:
            self._is_done[core.index] = True
            self._has_failed |= has_failed
            self._pass_on(core)

    def stop(self, started: list[int]) -> None:
        """Ends all cores: those that wait now, those that run at their next instruction. Returns when they have.

        An interrupted `Thread.join` may leave a thread that runs marked as stopped, so joining again would not wait.
        """
        self.run.stop()
        with self._turn:
            self._has_failed = True
            self._turn.notify_all()
            self._turn.wait_for(lambda: all(self._is_done[index] for index in started))

    def wait_until(self, core: Core, condition: Callable[[], bool], reason: str) -> None:
        """Lets the other core run until `condition` holds.

        Raises:
            NkiError: it never will, as the other core has ended or waits for this one.
        """
        if condition():
            return
        with self._turn:
            self._waits[core.index], self._reasons[core.index] = condition, reason
            self._pass_on(core)
            self._turn.wait_for(lambda: self._running == core.index or self._has_failed)
            self._waits[core.index] = None
            self._stop_if_failed()
        if not condition():
            others = [
                f"core {index} {'has ended' if self._is_done[index] else 'waits: ' + self._reasons[index]}"
                for index in range(self.run.lnc)
                if index != core.index
            ]
            raise NkiError(f"core {core.index} waits for ever: {reason}; {', '.join(others)}")

    def _pass_on(self, core: Core) -> None:
        """Gives the turn to a core that can go on; to a waiting one, which finds out that it waits in vain, else."""
        order = [(core.index + step) % self.run.lnc for step in range(1, self.run.lnc + 1)]
        alive = [index for index in order if not self._is_done[index]]
        ready = [index for index in alive if self._waits[index] is None or self._waits[index]()]
        if ready or alive:
            self._running = (ready or alive)[0]
        self._turn.notify_all()

    def _stop_if_failed(self) -> None:
        if self._has_failed:
            raise Stopped

    # Barriers and messages

    def count(self, core: Core, key: Any) -> int:
        """How often a core has asked this before: tells which of one core's barriers is which of the other's."""
        number = self._counts.get((core.index, key), 0)
        self._counts[core.index, key] = number + 1
        return number

    def barrier(self, core: Core, key: Any, reason: str) -> None:
        """Returns when all cores have come here as often as this one."""
        counts = self._arrivals.setdefault(key, [0] * self.run.lnc)
        counts[core.index] += 1
        mine = counts[core.index]
        self.wait_until(core, lambda: min(counts) >= mine, reason)

    def exchange(self, core: Core, values: np.ndarray, to: int, source: int, pipe: Any, reason: str) -> np.ndarray:
        """Sends `values` to core `to` and returns what core `source` sends here, in order, per pipe."""
        self._messages.setdefault((core.index, to, pipe), []).append(values)
        box = self._messages.setdefault((source, core.index, pipe), [])
        self.wait_until(core, lambda: bool(box), reason)
        return box.pop(0)

    # Shared HBM

    def shared_tensor(self, core: Core, shape: tuple[int, ...], dtype: Any, name: str) -> NkiTensor:
        """The n-th shared tensor that a core allocates is the n-th of the other: one tensor.

        Raises:
            NkiError: the other core asked for another shape or dtype.
        """
        number = self._allocations[core.index]
        self._allocations[core.index] += 1
        known = self._shared.get(number)
        if known is None:
            known = self._shared[number] = core.new_hbm_tensor(shape, dtype, MemoryRegion.shared_hbm, name)
        if known.shape != shape or known.dtype != dtype:
            raise NkiError(
                f"shared HBM tensor number {number} is {known.describe()} on one core and {dtype}{list(shape)} on the "
                "other: both cores allocate the same shared tensors in the same order"
            )
        return known


def execute_together(run: Run, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Runs `function` on every core of `run`; returns what the first returns.

    Raises:
        the first error of any core.
    """
    link = run.link = Link(run)
    results: list[Any] = [None] * run.lnc
    errors: list[BaseException] = []

    def work(core: Core) -> None:
        has_failed = False
        try:
            link.start(core)
            with running(core):
                results[core.index] = function(*args, **kwargs)
        except Stopped:
            pass
        except BaseException as error:
            has_failed = True
            errors.append(error)
        finally:
            link.finish(core, has_failed)

    threads = [threading.Thread(target=work, args=(core,), name=f"neuron-core-{core.index}") for core in run.cores]
    _run_to_the_end(threads, link)
    if errors:
        raise errors[0]
    return results[0]


def _run_to_the_end(threads: list[threading.Thread], link: Link) -> None:
    """Where the caller is interrupted the cores end first: they use memory that it gives back."""
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    except BaseException:
        link.stop([index for index, thread in enumerate(threads) if thread.ident is not None])
        raise
