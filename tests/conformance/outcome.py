"""What a check of one entry of PyTorch's tables found."""

import enum
from dataclasses import dataclass


class Status(enum.StrEnum):
    PASSED = "passed"
    FAILED = "failed"
    # There is no reference to compare with: the CPU has no kernel for this dtype, or none of its samples run there.
    NOT_ON_CPU = "not on the CPU"
    # The device raises a NotImplementedError that was decided for: see refusals.py.
    REFUSED = "refused"
    # The table has nothing of this kind for the entry, e.g. no gradient.
    NONE = "none"


@dataclass(frozen=True)
class Outcome:
    status: Status
    reason: str = ""


class Mismatch(AssertionError):
    """The device gave another answer than the CPU."""


def found(error: Exception, refused: str | None = None) -> Outcome:
    """The outcome of a check that ended with this error. `refused`: the decided reason of a NotImplementedError."""
    if refused is not None and isinstance(error, NotImplementedError):
        return Outcome(Status.REFUSED, refused)
    text = first_line(error) if isinstance(error, Mismatch) else named(error)
    return Outcome(Status.FAILED, "; ".join([*getattr(error, "__notes__", []), text]))


def named(error: Exception) -> str:
    return f"{type(error).__name__}: {first_line(error)}"


def first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [""])[0][:200]
