"""One NeuronCore while a kernel runs on it, and the run as a whole."""

import math
import operator
import os
import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import watchdog
from .chips import Chip
from .dtypes import DType, as_dtype
from .errors import NkiError, NkiWarning, kernel_frame, location_of
from .memory import Bytes, MemoryRegion, PhysicalMemory, Storage, Usage
from .records import Record
from .tensor import NkiTensor


STEPS_VARIABLE = "NEURON_EMULATOR_NKI_STEPS"
STRICT_VARIABLE = "NEURON_EMULATOR_NKI_STRICT"
DEFAULT_STEPS = 20_000_000

_THREAD = threading.local()


@dataclass
class Unwritten:
    """Reads of memory that nothing had written, from one line of the kernel."""

    op: str
    tensor: str
    line: str
    elements: int = 0
    reads: int = 0

    def __str__(self) -> str:
        return (
            f"{self.op} at {self.line} read {self.elements} elements of {self.tensor} that nothing had written "
            f"({self.reads} reads)"
        )


class Stopped(BaseException):
    """Ends a core whose result nobody waits for."""


class Run:
    """One call of a kernel: what its cores share.

    Attributes:
        is_tracing: no data, shapes only.
        is_strict: reading memory that nothing has written is an error rather than a line in the report.
        unwritten: such reads, by line and tensor.
    """

    def __init__(
        self, kernel: str, chip: Chip, lnc: int, *, is_tracing: bool = False, is_strict: bool | None = None
    ) -> None:
        self.kernel, self.chip, self.lnc, self.is_tracing = kernel, chip, lnc, is_tracing
        self.is_strict = _switch(STRICT_VARIABLE) if is_strict is None else is_strict
        self.definition: tuple[str, int] | None = None  # file and line of the kernel
        self.cores = [Core(self, index) for index in range(lnc)]
        self.unwritten: dict[tuple[str, str], Unwritten] = {}
        self.messages: set[str] = set()
        self.steps = self.steps_left = _steps()
        self.is_stopped = False  # its cores are to end at their next instruction
        self.started = time.perf_counter()
        self.seconds = 0.0
        self.link: Any = None  # how two cores wait for and send to each other (lnc.py)

    def count_step(self) -> None:
        """Counts an instruction or the turn of a loop.

        Raises:
            NkiError: there were more than a kernel is allowed, so that one that never ends does end.
            Stopped: the caller was interrupted.
        """
        self.steps_left -= 1
        if self.is_stopped:
            raise Stopped
        if self.steps_left < 0:
            raise NkiError(
                f"the kernel has issued more than {self.steps} instructions and allocations: a loop that never ends? "
                f"{STEPS_VARIABLE} sets the limit"
            )

    def stop(self) -> None:
        """Ends the cores, each at its next instruction; from any thread."""
        self.is_stopped = True

    def report_unwritten(self, tensor: NkiTensor, elements: int) -> None:
        """Counts a read of memory that nothing has written, by the instruction that runs or of the kernel's result.

        Raises:
            NkiError: the run is strict.
        """
        op = getattr(_THREAD, "op", None)
        message = f"reads {elements} elements of {tensor.describe()} that nothing has written"
        if self.is_strict:
            raise NkiError(f"{'' if op else 'the result '}{message}: write them first, e.g. with nisa.memset")
        line = location_of(kernel_frame()) or "?"
        if op is None:
            op, line = "the result", line if self.definition is None else "{}:{}".format(*self.definition)
        entry = self.unwritten.setdefault((line, tensor.describe()), Unwritten(op, tensor.describe(), line))
        entry.elements += elements
        entry.reads += 1

    def release(self) -> None:
        """Gives the cores' memories back: no tensor of this run is used any more. What a report needs stays."""
        self.link = None
        for core in self.cores:
            for memory in core.memories.values():
                memory.release()

    def warn(self, message: str) -> None:
        """Says something once per run."""
        if message not in self.messages:
            self.messages.add(message)
            warnings.warn(f"{message} (at {location_of(kernel_frame())})", NkiWarning, stacklevel=2)


class Core:
    """One physical NeuronCore: its memories, the state of its engines, and what was issued."""

    def __init__(self, run: Run, index: int) -> None:
        chip = run.chip
        self.run, self.index = run, index
        self.is_tracing = run.is_tracing
        self.memories = {
            MemoryRegion.sbuf: PhysicalMemory(
                MemoryRegion.sbuf, chip.partitions, chip.sbuf_partition_bytes, run.is_tracing, chip.sbuf_min_align
            ),
            MemoryRegion.psum: PhysicalMemory(
                MemoryRegion.psum, chip.partitions, chip.psum_partition_bytes, run.is_tracing, chip.psum_min_align
            ),
        }
        self.accumulators: dict[str, Any] = {}  # by engine, kept by isa/accumulators.py
        self.random_state: dict[str, Any] = {}
        self.records: list[Record] = []
        self.usages: list[Usage] = []
        self.loop_depth = 0  # of loops over registers
        self.ordered_depth = 0  # of nl.no_reorder

    def allocate(
        self, shape: tuple[int, ...], dtype: Any, buffer: MemoryRegion, name: str = "", address: Any = None
    ) -> NkiTensor:
        self.run.count_step()
        dtype, shape, buffer = as_dtype(dtype), _sizes(shape), _region(buffer)
        if buffer.is_hbm:
            return self._allocate_hbm(shape, dtype, buffer, name, address)
        memory = self.memories[buffer]
        if len(shape) < 2:
            raise NkiError(
                f"{buffer.name} tensor {list(shape)}: on-chip tensors have a partition and a free dimension"
            )
        if shape[0] > memory.partitions:
            raise NkiError(
                f"{buffer.name} tensor {name or ''}{list(shape)}: the first dimension is the partition, and there are "
                f"{memory.partitions} of them"
            )
        row_nbytes = math.prod(shape[1:]) * dtype.itemsize
        if row_nbytes > memory.partition_nbytes:
            raise NkiError(
                f"{buffer.name} tensor {name or ''}{list(shape)} {dtype} needs {row_nbytes} bytes per partition; "
                f"{buffer.name.upper()} of {self.run.chip.name} has {memory.partition_nbytes}"
            )
        line = location_of(kernel_frame())
        if address is not None:
            storage = memory.place(shape, dtype, address, name, line)
        else:
            nbytes = row_nbytes * shape[0]
            data = Bytes(None) if self.is_tracing else Bytes.unwritten(nbytes)
            usage = Usage(name, buffer, shape, dtype, 0, shape[0], row_nbytes, None, line)
            storage = Storage(
                data, buffer, pitch=row_nbytes, row_nbytes=row_nbytes, nbytes=nbytes, usage=usage, name=name
            )
        storage.is_complete = storage.is_complete or self.is_tracing
        storage.home = self
        self.usages.append(storage.usage)
        storage.number, storage.usage.allocated = len(self.usages), len(self.records)
        return NkiTensor(shape, dtype, storage, buffer, name)

    def _allocate_hbm(
        self, shape: tuple[int, ...], dtype: Any, buffer: MemoryRegion, name: str, address: Any
    ) -> NkiTensor:
        if address is not None:
            raise NkiError("address= places tensors in SBUF and PSUM; HBM tensors have none")
        if self.run.link is not None and buffer is MemoryRegion.shared_hbm:
            return self.run.link.shared_tensor(self, shape, dtype, name)
        return self.new_hbm_tensor(shape, dtype, buffer, name)

    def new_hbm_tensor(self, shape: tuple[int, ...], dtype: DType, buffer: MemoryRegion, name: str) -> NkiTensor:
        """A tensor of this core, or of its run where all cores share it."""
        nbytes = math.prod(shape) * dtype.itemsize
        data = Bytes(None) if self.is_tracing else Bytes.unwritten(nbytes)
        storage = Storage(data, buffer, nbytes=nbytes, name=name, is_complete=self.is_tracing)
        storage.home = self if buffer is MemoryRegion.private_hbm else self.run
        return NkiTensor(shape, dtype, storage, buffer, name)


def _switch(variable: str) -> bool:
    value = os.environ.get(variable, "").strip()
    if value not in ("", "0", "1"):
        raise NkiError(f"{variable}={value}: 1 switches it on, 0 off")
    return value == "1"


def _steps() -> int:
    value = os.environ.get(STEPS_VARIABLE, "").strip() or str(DEFAULT_STEPS)
    if not value.isdecimal() or int(value) == 0:
        raise NkiError(f"{STEPS_VARIABLE}={value}: it is how many instructions a kernel may issue, at least 1")
    return int(value)


def _sizes(shape: Sequence[Any]) -> tuple[int, ...]:
    try:
        sizes = tuple(map(operator.index, shape))
    except TypeError:
        raise NkiError(f"a tensor of shape {shape!r}: a shape is a list or tuple of integers") from None
    if not sizes or min(sizes) < 1:
        raise NkiError(f"a tensor of shape {list(sizes)}: every dimension needs one element at least")
    return sizes


def _region(buffer: Any) -> MemoryRegion:
    if isinstance(buffer, MemoryRegion):
        return buffer
    if isinstance(buffer, str) and buffer in (*MemoryRegion.__members__, "hbm"):
        raise NkiError(f"buffer={buffer!r}: names of memories as strings are gone since NKI 0.3; write nl.{buffer}")
    regions = ", ".join(f"nl.{region.name}" for region in MemoryRegion)
    raise NkiError(f"buffer={buffer!r}: tensors lie in {regions}")


def current() -> Core:
    """The core that this thread's kernel runs on.

    Raises:
        NkiError: no kernel is running.
    """
    core = getattr(_THREAD, "core", None)
    if core is None:
        raise NkiError("NKI tensors and instructions exist only inside a kernel: call this from an @nki.jit function")
    return core


def is_running() -> bool:
    return getattr(_THREAD, "core", None) is not None


@contextmanager
def running(core: Core) -> Iterator[None]:
    """This thread executes for `core`."""
    previous = getattr(_THREAD, "core", None)
    if previous is None:
        watchdog.watch(core.run)
    _THREAD.core = core
    try:
        with np.errstate(all="ignore"):
            yield
    except watchdog.EndlessLoopError as error:
        error.place_in_kernel()
        raise
    finally:
        _THREAD.core = previous
        if previous is None:
            watchdog.leave()


def set_engine(engine: str) -> None:
    """Which engine executes the instruction of this thread."""
    _THREAD.engine = engine


def current_engine() -> str:
    return _THREAD.engine


def warn_once(message: str) -> None:
    current().run.warn(message)
