"""A child process that compiles host graphs, and its handle in the parent.

The parent writes a line of JSON for each graph to the child's input; the child answers with one for each. The graph
itself travels as a file, the program comes back through the store. The child ends with its parent, however that ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any


if TYPE_CHECKING:
    from optimum_neuron_torch.emulator.compiler.executors.host import HostProgram


_MODULE = "optimum_neuron_torch.emulator.compiler.worker"
_IDLE, _ORDINARY = "idle", "ordinary"
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


class Worker:
    """The parent's handle of one child; the process starts with the first graph.

    Args:
        idle_only: give the child only processor time that no other process wants.
    """

    def __init__(self, *, idle_only: bool) -> None:
        self.idle_only = idle_only
        self._process: subprocess.Popen[str] | None = None
        self._answer: dict[str, Any] | None = None
        self._job: Path | None = None

    def start(self, program: HostProgram) -> bool:
        """Begin to compile `program`; False if its graph cannot be handed over."""
        import torch

        from optimum_neuron_torch.emulator.compiler import isa, programs

        parent = programs.root()
        parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            content = pickle.dumps(program.source())
        except Exception:  # pickling runs foreign code: operators of the user's own module, say
            return False
        handle, name = tempfile.mkstemp(dir=parent, prefix=".job-")
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        self._job, self._answer = Path(name), None
        if not self.is_alive():  # here, since the child ends with the thread that started it
            self._process = self._spawn()
        key = programs.key_of(program.digest)
        request = {"job": name, "key": key, "isa": isa.chosen(), "threads": torch.get_num_threads()}
        threading.Thread(target=self._converse, args=(request,), daemon=True).start()
        return True

    def outcome(self) -> dict[str, Any] | None:
        """What became of the graph, once that is known: its seconds, or an error."""
        return self._answer

    def is_alive(self) -> bool:
        """Whether the child can take another graph."""
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        """End the child now."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._remove_job()

    def _converse(self, request: dict[str, Any]) -> None:
        answer: dict[str, Any] = {"error": "the compiling process ended without an answer"}
        try:
            self._process.stdin.write(json.dumps(request) + "\n")  # type: ignore[union-attr]
            self._process.stdin.flush()  # type: ignore[union-attr]
            answer = json.loads(self._process.stdout.readline() or json.dumps(answer))  # type: ignore[union-attr]
        except (OSError, ValueError) as error:
            answer = {"error": str(error)}
        self._remove_job()
        self._answer = answer

    def _spawn(self) -> subprocess.Popen[str]:
        arguments = [sys.executable, "-m", _MODULE, str(os.getpid()), _IDLE if self.idle_only else _ORDINARY]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "NEURON_EMULATOR_BACKGROUND": "0"}
        # A session of its own: Ctrl-C in a terminal is the parent's affair, and its compilers end along with it.
        return subprocess.Popen(
            arguments,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
            start_new_session=True,
        )

    def _remove_job(self) -> None:
        if self._job is not None:
            self._job.unlink(missing_ok=True)


def main() -> None:
    """The child's life: `python -m ... PARENT PRIORITY`, graphs on the input, answers on the output."""
    parent, priority = sys.argv[1:3]
    _end_with(int(parent))
    if priority == _IDLE:
        _take_idle_time_only()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    for line in sys.stdin:
        answers.write(json.dumps(_compile(json.loads(line))) + "\n")
        answers.flush()


def _compile(request: dict[str, Any]) -> dict[str, Any]:
    from optimum_neuron_torch.emulator.compiler import programs

    start = time.perf_counter()
    try:
        source = pickle.loads(Path(request["job"]).read_bytes())
        programs.build(request["key"], source.graph(), name=request["isa"], threads=request["threads"])
    except Exception as error:
        return {"error": (str(error).splitlines() or [type(error).__name__])[0]}
    return {"seconds": time.perf_counter() - start}


def _end_with(parent: int) -> None:
    """Die when the parent does, be it by SIGKILL, and in the middle of a graph."""
    import ctypes

    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit()


def _take_idle_time_only() -> None:
    try:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    except (OSError, AttributeError):  # not Linux, or not allowed in this container
        os.nice(19)


if __name__ == "__main__":
    main()
