"""What is kept of every instruction: enough for the performance report, little enough to cost nearly nothing.

While the kernel runs only tuples are stored, one `Footprint` per operand. What the report needs of them is worked out
when it is asked for.
"""

import os
from functools import cached_property
from typing import Any, NamedTuple

from .dtypes import DType


class Footprint(NamedTuple):
    """Where an operand lies, as the instruction addressed it.

    `pitch` is the number of bytes between partitions, 0 in HBM; `offset` and `strides` are bytes from the start of the
    memory (for a tensor with an explicit address), else of the allocation. `owner` names the allocation; 0 is all of
    the physical memory, where tensors with explicit addresses overlay each other. `tensor` counts the core's tensors
    on the chip, from 1; 0 stands for one in HBM, or one whose place depends on data.
    """

    space: str
    owner: int
    pitch: int
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: DType
    tensor: int = 0


class Region(NamedTuple):
    """A box of memory: `partitions` partitions from `partition` on, bytes `start` to `stop` in each of them."""

    space: str
    owner: int
    partition: int
    partitions: int
    start: int
    stop: int


class Operand(NamedTuple):
    """One tensor of an instruction. `contiguous_bytes` is the length of the longest runs of adjacent bytes."""

    region: Region
    shape: tuple[int, ...]
    dtype: DType
    contiguous_bytes: int


class Record:
    """One issued instruction.

    `engine` is "tensor", "vector", "scalar", "gpsimd", "dma" or "sync"; `detail` holds what its operands do not tell.
    """

    __slots__ = ("op", "engine", "core", "code", "lineno", "written", "read", "detail", "__dict__")

    def __init__(
        self,
        op: str,
        engine: str,
        core: int,
        code: str,
        lineno: int,
        written: tuple[Footprint, ...],
        read: tuple[Footprint, ...],
        detail: dict[str, Any] | None,
    ) -> None:
        self.op, self.engine, self.core, self.code, self.lineno = op, engine, core, code, lineno
        self.written, self.read, self.detail = written, read, detail

    @property
    def line(self) -> str:
        """The kernel's line, e.g. "flash.py:12"."""
        return f"{os.path.basename(self.code)}:{self.lineno}"

    @cached_property
    def writes(self) -> tuple[Operand, ...]:
        return tuple(map(operand_at, self.written))

    @cached_property
    def reads(self) -> tuple[Operand, ...]:
        return tuple(map(operand_at, self.read))

    def __repr__(self) -> str:
        operands = [f"{o.region.space} {o.dtype}{list(o.shape)}" for o in (*self.writes, *self.reads)]
        return f"{self.line} {self.engine:7} {self.op}({', '.join(operands)})"


def operand_at(footprint: Footprint) -> Operand:
    space, owner, pitch, offset, shape, strides, dtype, _ = footprint
    partition, partitions, start = 0, 1, offset
    free_shape, free_strides = shape, strides
    if pitch:
        partition, start = divmod(offset, pitch)
        step = strides[0] // pitch if strides else 0
        partitions = (shape[0] - 1) * step + 1 if shape and shape[0] else 0
        free_shape, free_strides = shape[1:], strides[1:]
    last = sum((size - 1) * stride for size, stride in zip(free_shape, free_strides, strict=True) if size)
    region = Region(space, owner, partition, partitions, start, start + last + dtype.itemsize)
    return Operand(region, shape, dtype, _contiguous_bytes(free_shape, free_strides, dtype.itemsize))


def _contiguous_bytes(shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int) -> int:
    run = itemsize
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size == 1:
            continue
        if stride != run:
            break
        run *= size
    return run
