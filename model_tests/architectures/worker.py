"""A process for each architecture: one that crashes or hangs is an outcome, and its memory is given back."""

from __future__ import annotations

import multiprocessing
import os
import resource
import tempfile
from multiprocessing.connection import Connection

from model_tests.architectures.outcome import Outcome


SECONDS_PER_CHECK = 900
SECONDS_TO_END = 10
# torch-mlir has exhausted a machine's memory before.
ADDRESS_SPACE = 16 << 30


def check_apart(name: str) -> Outcome:
    """The outcome of the architecture called `name`, found in a process of its own."""
    context = multiprocessing.get_context("forkserver")
    # The process forks from one that has imported what each of them needs.
    context.set_forkserver_preload(["model_tests.architectures.preload"])
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_serve, args=(sender, name))
    process.start()
    sender.close()
    try:
        if receiver.poll(SECONDS_PER_CHECK):
            return receiver.recv()
        return Outcome.failed(f"no answer in {SECONDS_PER_CHECK} s")
    except EOFError:
        process.join()
        return Outcome.failed(f"the process died (exit code {process.exitcode})")
    finally:
        process.join(SECONDS_TO_END)
        process.kill()
        process.join()


def _serve(sender: Connection, name: str) -> None:
    import torch

    from model_tests.architectures.check import check, describe
    from model_tests.architectures.tables import find

    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as cache:
        os.environ["OPTIMUM_NEURON_CACHE"] = cache
        try:
            sender.send(check(find(name)))
        except Exception as error:
            sender.send(Outcome.failed(describe(error)))
