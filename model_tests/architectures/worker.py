"""The check of one architecture in a process of its own."""

from __future__ import annotations

from model_tests.apart import CheckFailedError, run_apart
from model_tests.architectures.outcome import Outcome


SECONDS_PER_CHECK = 900


def check_apart(name: str) -> Outcome:
    """The outcome of the architecture called `name`, found in a process of its own."""
    try:
        return run_apart(_check, name, seconds=SECONDS_PER_CHECK, preload="model_tests.architectures.preload")
    except CheckFailedError as error:
        return Outcome.failed(str(error))


def _check(name: str) -> Outcome:
    from model_tests.architectures.check import check
    from model_tests.architectures.tables import find

    return check(find(name))
