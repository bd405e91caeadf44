"""The comparison of one model in a process of its own."""

from __future__ import annotations

from model_tests.apart import CheckFailedError, run_apart
from model_tests.generation.outcome import FAILED, Cell, Outcome


SECONDS = 600


def check_apart(name: str) -> Outcome:
    """The outcome of what is called `name`, found in a process of its own."""
    try:
        return run_apart(check, name, seconds=SECONDS, preload="model_tests.generation.preload")
    except CheckFailedError as error:
        return Outcome(cells={"single": Cell(state=FAILED, reason=str(error))})


def sections_by_name() -> dict[str, str]:
    """The section of everything that can be compared, by name, in order."""
    from model_tests.generation import classes, matrix

    families = {name: section for section, entries in matrix.SECTIONS.items() for name in entries}
    return families | {name: entry.kind for name, entry in classes.every().items()}


def check(name: str) -> Outcome:
    """The outcome of what is called `name`, found in this process."""
    from model_tests.generation import classes, matrix, sweep

    for families in matrix.SECTIONS.values():
        if name in families:
            return matrix.matrix(families[name])
    return sweep.sweep(classes.every()[name])
