"""Runs without data: the shapes of a kernel's results and the list of its instructions.

All that a call checks is checked, but for what depends on data: dynamic indices, memory that nothing has written, and
loops on registers, whose body runs once.
"""

from collections.abc import Callable
from typing import Any

from .chips import Chip, current_chip
from .conversion import Arguments
from .core import Run, running
from .kernel import Kernel, blaming, bound_arguments, execute, lnc_size, new_run
from .measuring.report import PerformanceReport
from .records import Footprint, Record


class Trace:
    """What a kernel would do with arguments of given shapes.

    Attributes:
        outputs: what the kernel returns, with a `TensorSpec` (shape and dtype) for every tensor; its `argument` is the
            caller's tensor where the kernel returns one of those.
        run: the run, for `run.cores[i].records` and what reads them.
    """

    def __init__(self, run: Run, arguments: Arguments, outputs: Any) -> None:
        self.run, self.outputs, self._arguments = run, outputs, arguments

    @property
    def instructions(self) -> tuple[Record, ...]:
        """All instructions in the order of issue, those of the first core first."""
        return tuple(record for core in self.run.cores for record in core.records)

    @property
    def report(self) -> PerformanceReport:
        """The performance report of a run with such arguments."""
        return PerformanceReport(self.run)

    def written_arguments(self) -> list[Any]:
        """The arrays, tensors and `TensorSpec`s among the arguments that the kernel writes to."""
        return self._arguments.written()

    def empty_outputs(self) -> Any:
        """`outputs` as tensors of the caller's kind whose elements mean nothing; fake ones under a FakeTensorMode."""
        return self._arguments.emptied(self.outputs)

    def __str__(self) -> str:
        cores = f", {self.run.lnc} cores" if self.run.lnc > 1 else ""
        instructions = self.instructions
        head = f"{self.run.kernel} on {self.run.chip.name}{cores}: {len(instructions)} instructions -> {self.outputs}"
        return "\n".join([head, *map(self._line, range(len(instructions)), instructions)])

    def _line(self, index: int, record: Record) -> str:
        core = f" core {record.core}" if self.run.lnc > 1 else ""
        written, read = (", ".join(map(_operand, side)) for side in (record.written, record.read))
        arrow = " <- " if written and read else ""
        return f"{index:5}{core} {record.line:24} {record.engine:7} {record.op:24} {written}{arrow}{read}".rstrip()


def _operand(footprint: Footprint) -> str:
    return f"{footprint.space} {footprint.dtype}{list(footprint.shape)}"


def trace(
    kernel: Callable[..., Any], *args: Any, lnc: int | None = None, chip: Chip | None = None, **kwargs: Any
) -> Trace:
    """Runs a kernel without data.

    Arrays and tensors among the arguments, fake and meta tensors and `TensorSpec`s, stand for their shapes and dtypes:
    none of their elements is read or written.

    Args:
        lnc: cores, by default those of `kernel[lnc]`, else 1.

    Raises:
        NkiError: the kernel breaks a rule, or asks Python for a number that only the chip knows.
    """
    function = kernel.func if isinstance(kernel, Kernel) else kernel
    cores = getattr(kernel, "lnc", 1) if lnc is None else lnc_size(lnc)
    run = new_run(function, cores, chip or current_chip(), is_tracing=True)
    arguments = Arguments(run)
    args, kwargs = bound_arguments(function, args, kwargs, arguments)
    returned = execute(run, function, args, kwargs)
    with running(run.cores[0]), blaming(function):
        return Trace(run, arguments, arguments.unwrap(returned))
