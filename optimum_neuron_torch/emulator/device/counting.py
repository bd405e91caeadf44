"""What the device has counted: eager signatures, calls and copies, by operation and by shape."""

from typing import Any

from . import extension


def counters() -> dict[str, Any]:
    """A snapshot of all counters since the start, or the last `clear_counters()`.

    `eager_signatures`: distinct (operation, shapes, dtypes, other arguments) run eagerly, each a compilation on
    Trainium; `eager_calls`: how often operations ran; `copies`: dense copies of one dtype between host and device or
    between cores, which compile nothing; `operations`: name -> (calls, signatures); `calls_by_dtype`: name -> dtype of
    the first tensor argument -> calls ("" for a call without one); `copies_by_shape`: (direction, shape) -> count.
    """
    return extension.load().counters()


def clear_counters() -> None:
    """Sets all counters to zero and forgets the known signatures, as in a new process."""
    extension.load().clear_counters()


def executed_ops() -> list[str]:
    """Names of the operations that ran eagerly on the device, e.g. "aten::add.Tensor"."""
    return sorted(counters()["operations"])


def fallback_ops() -> list[str]:
    """Of `executed_ops()`, those that the real device would have run on the CPU."""
    return _executed_in_state("cpu")


def unknown_ops() -> list[str]:
    """Of `executed_ops()`, those of which no public source says how the real device runs them."""
    return _executed_in_state("unknown")


def _executed_in_state(state: str) -> list[str]:
    from .capabilities import capabilities

    table = capabilities()
    return [name for name in executed_ops() if table.state_of(name) == state]
