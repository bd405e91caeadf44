"""The comparison of one model in a process of its own."""

from __future__ import annotations

from model_tests.apart import CheckFailedError, run_apart
from model_tests.kernels.outcome import FAILED, Cell, Outcome


SECONDS = 900


def check_apart(name: str) -> Outcome:
    """The outcome of the architecture called `name`, found in a process of its own."""
    try:
        return run_apart(check, name, seconds=SECONDS, preload="model_tests.architectures.preload")
    except CheckFailedError as error:
        return Outcome(cells={"float32": Cell(state=FAILED, reason=str(error))})


def sections_by_name() -> dict[str, str]:
    """The section of every model that is compared, by name, in order."""
    from model_tests.kernels.rows import NAMES

    return {name: section for section, names in NAMES.items() for name in names}


def check(name: str) -> Outcome:
    """The outcome of the architecture called `name`, found in this process."""
    from model_tests.architectures.tables import find
    from model_tests.kernels.check import check as check_architecture

    return check_architecture(find(name))
