"""Which of the logical NeuronCore's cores this is."""

from ..core import current
from ..errors import NkiError


def program_id(axis: int = 0) -> int:
    """The number of this core, from 0."""
    if axis != 0:
        raise NkiError(f"program_id({axis}): the grid has one axis, 0")
    return current().index


def num_programs(axes: int = 0) -> int:
    """How many cores run the kernel: 1, or 2 with LNC 2."""
    return current().run.lnc


def program_ndim() -> int:
    """Axes of the grid: 0 without one, 1 with LNC 2."""
    return 0 if current().run.lnc == 1 else 1
