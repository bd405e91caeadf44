"""The comparison of one model in a process of its own."""

from __future__ import annotations

from model_tests.apart import CheckFailedError, run_apart
from model_tests.generation.outcome import FAILED, Cell, Outcome


SECONDS = 600


def check_apart(name: str) -> Outcome:
    """The outcome of what is called `name`, found in a process of its own."""
    try:
        return run_apart(_check, name, seconds=SECONDS, preload="model_tests.generation.preload")
    except CheckFailedError as error:
        return Outcome(cells={"single": Cell(state=FAILED, reason=str(error))})


def sections_by_name() -> dict[str, str]:
    """The section of everything that can be compared, by name, in order."""
    from model_tests.generation.classes import every

    return {name: entry.kind for name, entry in every().items()}


def _check(name: str) -> Outcome:
    from model_tests.generation.classes import every
    from model_tests.generation.sweep import sweep

    return sweep(every()[name])
