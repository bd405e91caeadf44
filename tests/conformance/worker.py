"""A process that runs checks for another one: an entry that crashes or hangs is a failure, not the end of the run."""

import multiprocessing
from multiprocessing.connection import Connection

from tests.conformance.outcome import Outcome, Status


SECONDS_PER_CHECK = 300


def _serve(connection: Connection) -> None:
    import torch

    from tests.conformance.tables import TABLES

    # Results depend on it, e.g. those of long sums.
    torch.set_num_threads(1)
    while True:
        table, entry, column = connection.recv()
        connection.send(TABLES[table].check(entry, column))


class Worker:
    """Checks entries in a child process, which is started anew when it dies."""

    def __init__(self) -> None:
        self._process: multiprocessing.process.BaseProcess | None = None

    def check(self, table: str, entry: str, column: str) -> Outcome:
        if self._process is None:
            self._start()
        try:
            self._connection.send((table, entry, column))
            if self._connection.poll(SECONDS_PER_CHECK):
                return self._connection.recv()
            reason = f"no answer in {SECONDS_PER_CHECK} s"
        except (OSError, EOFError):
            self._process.join()
            reason = f"the process died (exit code {self._process.exitcode})"
        self.stop()
        return Outcome(Status.FAILED, reason)

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._process = None

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, other = context.Pipe()
        self._process = context.Process(target=_serve, args=(other,), daemon=True)
        self._process.start()
        other.close()
