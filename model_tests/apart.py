"""A process for each check: one that crashes or hangs is an outcome, and its memory is given back."""

from __future__ import annotations

import multiprocessing
import os
import resource
import tempfile
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any


SECONDS_TO_END = 10
# torch-mlir has exhausted a machine's memory before.
ADDRESS_SPACE = 16 << 30


class CheckFailedError(Exception):
    """The check raised, did not answer in time, or its process died; the message says which."""


def run_apart(check: Callable[[str], Any], name: str, *, seconds: int, preload: str) -> Any:
    """
    What `check(name)` returns, found in a process of its own with an empty compile cache.

    `check` is a function of a module; `preload` names the module that the processes are forked after importing.

    Raises:
        CheckFailedError: there is no answer.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([preload])
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_serve, args=(sender, check, name))
    process.start()
    sender.close()
    try:
        if not receiver.poll(seconds):
            raise CheckFailedError(f"no answer in {seconds} s")
        is_answer, value = receiver.recv()
    except EOFError:
        process.join()
        raise CheckFailedError(f"the process died (exit code {process.exitcode})") from None
    finally:
        process.join(SECONDS_TO_END)
        process.kill()
        process.join()
    if not is_answer:
        raise CheckFailedError(value)
    return value


def _serve(sender: Connection, check: Callable[[str], Any], name: str) -> None:
    import torch

    from model_tests.architectures.check import describe

    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as cache:
        os.environ["OPTIMUM_NEURON_CACHE"] = cache
        try:
            sender.send((True, check(name)))
        except Exception as error:
            sender.send((False, describe(error)))
