"""What kernels that work on the rows of a matrix share: rows over cores and partitions, tiles in stages, vectors
on all partitions, sums over rows.

Shape legend: T rows, W width, P partitions, R rows on one partition, C columns of a section, M sections of a sum.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple

import nki.isa as nisa
import nki.language as nl


PARTITIONS = 128
# Columns that one instruction works on. Long enough that the fixed cost of an instruction does not count (64 cycles),
# short enough that what is kept between instructions does not fill SBUF.
SECTION = 2048
# Elements per partition that one DMA brings: rows that are shorter share one, as each transfer costs about 600 ns.
TILE = 4096
# Float32 elements per partition of what one engine hands another through PSUM, a quarter of it. The Vector Engine
# reads two tiles of float32 at once where one of them is there, and else one after the other.
PSUM_BLOCK = 1024
# Of a partition, for tiles that are in different stages.
STAGED_BYTES = 112 * 1024
# The same where what each stage keeps has been counted.
COUNTED_BYTES = 148 * 1024
# Of a partition, for those and for what all tiles share: the rest of 224 KiB is for what one stage makes and uses up.
SHARED_BYTES = 176 * 1024
# Float32 sums in one bank of PSUM.
BANK = 512


class Rows(NamedTuple):
    """`partitions` times `each` rows from `start` on; a partition has rows that follow each other."""

    start: int
    partitions: int
    each: int

    def of(self, matrix_TW: Any, columns: slice | None = None) -> Any:
        """(P, R, W), or (P, R, C): the view of a tensor in HBM, which is contiguous."""
        width = matrix_TW.shape[1]
        columns = slice(0, width) if columns is None else columns
        pattern = [[self.each * width, self.partitions], [width, self.each], [1, columns.stop - columns.start]]
        return matrix_TW.ap(pattern=pattern, offset=self.start * width + columns.start)


def tiles(rows: int, width: int) -> Iterator[Rows]:
    """The rows of this core, in tiles: full ones, then at most two smaller ones."""
    cores, core = nl.num_programs(), nl.program_id(0)
    share = -(-rows // cores)
    start, stop = min(rows, core * share), min(rows, (core + 1) * share)
    each = max(1, TILE // width)
    while start < stop:
        left = stop - start
        each = min(each, max(1, left // PARTITIONS))
        tile = Rows(start, min(PARTITIONS, left // each), each)
        yield tile
        start += tile.partitions * tile.each


def sections(width: int, size: int = SECTION) -> list[slice]:
    """Slices of the columns, of as many as an instruction works on."""
    return [slice(start, min(start + size, width)) for start in range(0, width, size)]


def loaded(matrix_TW: Any, rows: Rows, columns: slice | None = None) -> Any:
    """(P, R, W), or (P, R, C): a tile of a tensor in HBM, in SBUF."""
    source = rows.of(matrix_TW, columns)
    tile = nl.ndarray(source.shape, dtype=matrix_TW.dtype)
    nisa.dma_copy(dst=tile, src=source)
    return tile


def in_stages(
    work: Iterable[Any],
    stages: Sequence[Callable[[Any], Any]],
    kept_bytes: int | Sequence[int],
    fixed_bytes: int = 0,
) -> None:
    """Put each item of `work` through all stages, each of which gets what the one before gave.

    Engines run in the order of the program, side by side: so that none waits for another's part of the same tile, a
    tile is in its second stage where the next one is in its first. `kept_bytes` is what a tile keeps per partition
    from stage to stage, or what it keeps after each but the last: where that is too much for as many tiles as stages,
    the last stages are taken together. `fixed_bytes` is what all tiles share.
    """
    depth = _depth(len(stages), kept_bytes, fixed_bytes)
    groups = [*([stage] for stage in stages[: depth - 1]), stages[depth - 1 :]]
    coming: list[Any] = [None] * depth
    for item in chain(work, [None] * (depth - 1)):
        coming[0] = item
        done = [None if state is None else _through(group, state) for group, state in zip(groups, coming, strict=True)]
        coming = [None, *done[:-1]]


def _depth(stages: int, kept_bytes: int | Sequence[int], fixed_bytes: int) -> int:
    """How many tiles there are at a time."""
    if isinstance(kept_bytes, int):
        kept, room = [kept_bytes] * (stages - 1), STAGED_BYTES
    else:
        kept, room = list(kept_bytes), COUNTED_BYTES
    room = min(room, SHARED_BYTES - fixed_bytes)
    for depth in range(stages, 1, -1):
        if sum(kept[: depth - 1]) + max(kept[depth - 2 :]) <= room:
            return depth
    return 1


def _through(stages: Sequence[Callable[[Any], Any]], state: Any) -> Any:
    for stage in stages:
        state = stage(state)
    return True if state is None else state


def row_bytes(*matrices_TW: Any) -> int:
    """What a row of each takes, or a tile of shorter rows."""
    return sum(max(TILE, matrix.shape[1]) * itemsize(matrix.dtype) for matrix in matrices_TW)


def itemsize(dtype: Any) -> int:
    return 4 if dtype == nl.float32 else 2


def on_all_partitions(vector_W: Any) -> Any:
    """(128, 1, W): a vector in HBM, once on each partition."""
    width = vector_W.shape[0]
    tile = nl.ndarray((PARTITIONS, 1, width), dtype=vector_W.dtype)
    nisa.dma_copy(dst=tile, src=vector_W.ap(pattern=[[0, PARTITIONS], [0, 1], [1, width]]))
    return tile


def repeated_like(vector_P1W: Any, tile_PRC: Any, columns: slice) -> Any:
    """(P, R, C): columns of a vector on all partitions, as often as a tile has rows."""
    partitions, each, _ = tile_PRC.shape
    return vector_P1W[:partitions, :, columns].broadcast(1, each)


def multiply_tiles(dst: Any, data1: Any, data2: Any, engine: Any) -> None:
    """The products of two tiles, by `engine`."""
    nisa.tensor_tensor(dst=dst, data1=data1, data2=data2, op=nl.multiply, engine=engine)


def multiply_rows(dst_PRC: Any, data_PRC: Any, factor_PR: Any, op: Any = None, other_PRC: Any = None) -> None:
    """Each row times a number, and then, with `op`, what that makes of it and of another tile; by the Vector
    Engine."""
    for row in range(data_PRC.shape[1]):
        operands = {"dst": dst_PRC[:, row], "data": data_PRC[:, row]}
        factor = {"op0": nl.multiply, "operand0": factor_PR[:, row : row + 1]}
        if op is None:
            nisa.tensor_scalar(**operands, **factor)
        else:
            nisa.scalar_tensor_tensor(**operands, **factor, op1=op, operand1=other_PRC[:, row])


def sums_of_rows(x_PRW: Any, op: Any, bias_PR: Any = None, sums_PR: Any = None) -> Any:
    """(P, R) float32: the sum of `op` of each row, to which a number was added; by the Scalar Engine."""
    partitions, each, width = x_PRW.shape
    sums_PR = nl.ndarray((partitions, each), dtype=nl.float32) if sums_PR is None else sums_PR
    parts = sections(width)
    for row in range(each):
        for columns in parts:
            data = x_PRW[:, row, columns]
            nisa.activation(
                # Nobody reads what is summed; float32, as float16 would overflow.
                dst=nl.ndarray(data.shape, dtype=nl.float32),
                op=op,
                data=data,
                bias=None if bias_PR is None else bias_PR[:, row : row + 1],
                reduce_op=nl.add,
                reduce_cmd=nisa.reduce_cmd.reset_reduce if columns is parts[0] else nisa.reduce_cmd.reduce,
                reduce_res=sums_PR[:, row : row + 1] if columns is parts[-1] else None,
            )
    return sums_PR


def negative_means(sums_PRS: Any, width: int) -> Any:
    """(P, R) float32: minus the mean of rows of which there are sums of sections.

    Not where the sums are made: the Vector Engine would wait for them there, and not do what comes next.
    """
    means_PR = nl.ndarray(sums_PRS.shape[:2], dtype=nl.float32)
    nisa.tensor_reduce(dst=means_PR, op=nl.add, data=sums_PRS, axis=2)
    nisa.tensor_scalar(dst=means_PR, data=means_PR, op0=nl.multiply, operand0=-1.0 / width)
    return means_PR


def reciprocal_roots(sums_PR: Any, width: int, eps: float) -> Any:
    """(P, R) float32: rsqrt(sum / width + eps)."""
    reciprocal_PR = nl.ndarray(sums_PR.shape, dtype=nl.float32)
    nisa.activation(dst=reciprocal_PR, op=nl.rsqrt, data=sums_PR, scale=1.0 / width, bias=float(eps))
    return reciprocal_PR


def blocks(each: int, width: int, size: int) -> Iterator[tuple[slice, slice]]:
    """Slices of a tile's rows and columns, of up to `size` elements per partition together."""
    rows = max(1, size // width)
    for start in range(0, each, rows):
        for columns in sections(width, size):
            yield slice(start, min(start + rows, each)), columns


class SumOverRows:
    """Sums of columns over all rows that are added, by the Tensor Engine, in float32.

    Each 128 columns are multiplied with a vector of 1, which puts their sums on the partitions, in one column of a
    bank of PSUM: 65,536 columns fit. A sum is of its own column alone, whatever is not finite in others.
    """

    def __init__(self, width: int, dtype: Any) -> None:
        self.width, self.count = width, -(-width // PARTITIONS)
        if self.count > BANK:
            raise ValueError(f"sums of {width} columns, and a bank of PSUM has room for {PARTITIONS * BANK}")
        self.sums_CM = nl.ndarray((min(PARTITIONS, width), self.count), dtype=nl.float32, buffer=nl.psum)
        self.begun: set[int] = set()
        self.ones_P1 = nl.ndarray((PARTITIONS, 1), dtype=dtype)
        nisa.memset(dst=self.ones_P1, value=1.0)

    def add(self, values_PRC: Any, columns: slice) -> None:
        """Add the rows of `values_PRC`, which are the columns `columns`, of the dtype that this was made for."""
        partitions, each, _ = values_PRC.shape
        for block in sections(columns.stop - columns.start, PARTITIONS):
            m = (columns.start + block.start) // PARTITIONS
            for row in range(each):
                nisa.nc_matmul(
                    dst=self.sums_CM[: block.stop - block.start, m : m + 1],
                    stationary=values_PRC[:, row, block],
                    moving=self.ones_P1[:partitions],
                    accumulate=m in self.begun,
                )
                self.begun.add(m)

    def store(self, vector_W: Any, pipe: int = 0) -> None:
        """Write the sums of all cores to a float32 vector in HBM; `pipe` tells sums of one kernel apart."""
        sums_CM = nl.ndarray(self.sums_CM.shape, dtype=nl.float32)
        full, rest = divmod(self.width, sums_CM.shape[0])
        if rest or not self.begun:
            nisa.memset(dst=sums_CM, value=0.0)
        if self.begun:
            nisa.tensor_copy(dst=sums_CM[:, :full], src=self.sums_CM[:, :full])
        if self.begun and rest:
            nisa.tensor_copy(dst=sums_CM[:rest, full:], src=self.sums_CM[:rest, full:])
        if nl.num_programs() == 2:
            other, others_CM = 1 - nl.program_id(0), nl.ndarray(sums_CM.shape, dtype=nl.float32)
            nisa.sendrecv(src=sums_CM, dst=others_CM, send_to_rank=other, recv_from_rank=other, pipe_id=pipe)
            nisa.tensor_tensor(dst=sums_CM, data1=sums_CM, data2=others_CM, op=nl.add)
        if nl.program_id(0) == 0:
            for part in sections(self.count, PARTITIONS):
                self._write(vector_W, sums_CM[:, part], part)

    def _write(self, vector_W: Any, sums_CM: Any, part: slice) -> None:
        """Transposed, so that what lies together in HBM lies together in SBUF."""
        size, count = sums_CM.shape
        in_psum = nl.ndarray((count, size), dtype=nl.float32, buffer=nl.psum)
        nisa.nc_transpose(dst=in_psum, data=sums_CM, engine=nisa.engine.tensor)
        sums_MC = nl.ndarray((count, size), dtype=nl.float32)
        nisa.tensor_copy(dst=sums_MC, src=in_psum)
        full, rest = divmod(min(self.width - part.start * size, count * size), size)
        if full:
            whole = vector_W.ap(pattern=[[size, full], [1, size]], offset=part.start * size)
            nisa.dma_copy(dst=whole, src=sums_MC[:full])
        if rest:
            end = vector_W.ap(pattern=[[rest, 1], [1, rest]], offset=(part.start + full) * size)
            nisa.dma_copy(dst=end, src=sums_MC[full : full + 1, :rest])
