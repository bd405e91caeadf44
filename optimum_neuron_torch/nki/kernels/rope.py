"""Rotary position embedding of queries and keys, in both conventions, and its gradient.

Shape legend: B batch, H query heads, G key heads, S positions, D head size, R rotated part of it; P partitions,
C heads of a tile, N positions on one partition.

Positions are on the partitions, so that cosines and sines are read once for all heads.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import nki
import nki.isa as nisa
import nki.language as nl

from .rows import TILE, Rows, in_stages, itemsize, sections, tiles


# Positions that follow each other on one partition: one DMA descriptor for all of a head's, up to 4 KiB.
POSITIONS = 8


@nki.jit
def rope_kernel(query_BHSD, key_BGSD, cos_BSR, sin_BSR, interleaved=False):
    """Both rotated, `x * cos + rotate_half(x) * sin` for the first R numbers of each head: `(query, key)`.

    Args:
        query_BHSD, key_BGSD: float32, bfloat16 or float16; any S and numbers of heads, D up to 4096.
        cos_BSR, sin_BSR: of the same dtype; batch 1 or B, R even and at most D. What is behind R stays as it is.
        interleaved: rotate_half pairs neighbours, (x0, x1) -> (-x1, x0); else the halves of R, (a, b) -> (-b, a).

    Both products are rounded to the dtype, and so is their sum. The gradient is the same function of the gradients,
    with the sines of each pair exchanged and negated. Runs on NeuronCore-v3 and later, each core taking a part of the
    positions.
    """
    outputs = [nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm) for x in (query_BHSD, key_BGSD)]
    pairs = list(zip((query_BHSD, key_BGSD), outputs, strict=True))
    kept_bytes = (TILE + 2 * POSITIONS * query_BHSD.shape[3]) * itemsize(query_BHSD.dtype)
    in_stages(_work(pairs, cos_BSR, sin_BSR, interleaved), (_load, _multiply, _store_sum), kept_bytes)
    return tuple(outputs)


@dataclass(frozen=True)
class _Angles:
    """Of a tile of positions, (P, 1, N, R): cosines, and sines of which the first of each pair is negated."""

    cos: Any
    sin: Any
    interleaved: bool

    @classmethod
    def of(cls, cos_BSR: Any, sin_BSR: Any, batch: int, rows: Rows, interleaved: bool) -> "_Angles":
        cos, sin = (_loaded(angles_BSR, batch, rows) for angles_BSR in (cos_BSR, sin_BSR))
        first, _ = _pair(sin, interleaved)
        nisa.tensor_scalar(dst=first, data=first, op0=nl.multiply, operand0=-1.0)
        return cls(cos, sin, interleaved)


def _loaded(angles_BSR: Any, batch: int, rows: Rows) -> Any:
    """(P, 1, N, R) of one row of the batch; of each, where the rows are those of the batch."""
    count, positions, rotated = angles_BSR.shape
    step = 0 if positions == 1 and count == 1 else rotated
    pattern = [[rows.each * step, rows.partitions], [0, 1], [step, rows.each], [1, rotated]]
    start = batch * positions * rotated if count > 1 and positions > 1 else 0
    tile = nl.ndarray((rows.partitions, 1, rows.each, rotated), dtype=angles_BSR.dtype)
    nisa.dma_copy(dst=tile, src=angles_BSR.ap(pattern=pattern, offset=start + rows.start * step))
    return tile


def _pair(tile: Any, interleaved: bool) -> tuple[Any, Any]:
    """The first and the second of each pair of the last dimension."""
    size = tile.shape[3]
    if interleaved:
        return tile[:, :, :, 0:size:2], tile[:, :, :, 1:size:2]
    return tile[:, :, :, : size // 2], tile[:, :, :, size // 2 :]


@dataclass(frozen=True)
class _Item:
    """A tile of positions of some heads: where it is read and written, and its angles."""

    source: Any
    target: Any
    angles: _Angles


def _work(pairs: list[tuple[Any, Any]], cos_BSR: Any, sin_BSR: Any, interleaved: bool) -> Iterator[_Item]:
    batch, _, positions, size = pairs[0][0].shape
    are_steps = positions == 1  # one position each: the rows of the batch are on the partitions
    for rows in tiles(batch if are_steps else positions, max(size, TILE // POSITIONS)):
        angles = None
        for row in range(1 if are_steps else batch):
            if angles is None or cos_BSR.shape[0] > 1:
                angles = _Angles.of(cos_BSR, sin_BSR, row, rows, interleaved)
            for x, output in pairs:
                for heads in sections(x.shape[1], max(1, TILE // (rows.each * size))):
                    yield _Item(*(_view(tensor, row, heads, rows) for tensor in (x, output)), angles)


def _view(x_BHSD: Any, batch: int, heads: slice, rows: Rows) -> Any:
    """(P, C, N, D) in HBM."""
    _, count, positions, size = x_BHSD.shape
    step = count * size if positions == 1 else size
    pattern = [
        [rows.each * step, rows.partitions],
        [positions * size, heads.stop - heads.start],
        [step, rows.each],
        [1, size],
    ]
    start = (batch * count + heads.start) * positions * size
    return x_BHSD.ap(pattern=pattern, offset=start + rows.start * step)


# Stages of a tile


def _load(item: _Item) -> tuple[_Item, Any]:
    x_PCND = nl.ndarray(item.source.shape, dtype=item.source.dtype)
    nisa.dma_copy(dst=x_PCND, src=item.source)
    return item, x_PCND


def _multiply(state: tuple[_Item, Any]) -> tuple[Any, ...]:
    """Products with the cosines by the Vector Engine, those of the other of each pair with the sines by GpSimd."""
    item, x_PCND = state
    heads, angles = x_PCND.shape[1], item.angles
    rotated_PCNR = x_PCND[:, :, :, : angles.cos.shape[3]]
    straight, crossed = (nl.ndarray(rotated_PCNR.shape, dtype=x_PCND.dtype) for _ in range(2))
    nisa.tensor_tensor(dst=straight, data1=rotated_PCNR, data2=angles.cos.broadcast(1, heads), op=nl.multiply)
    sources = reversed(_pair(rotated_PCNR, angles.interleaved))
    sines = _pair(angles.sin, angles.interleaved)
    for target, source, sin in zip(_pair(crossed, angles.interleaved), sources, sines, strict=True):
        sin = sin.broadcast(1, heads)
        nisa.tensor_tensor(dst=target, data1=source, data2=sin, op=nl.multiply, engine=nisa.engine.gpsimd)
    return item, x_PCND, rotated_PCNR, straight, crossed


def _store_sum(state: tuple[Any, ...]) -> None:
    item, x_PCND, rotated_PCNR, straight, crossed = state
    nisa.tensor_tensor(dst=rotated_PCNR, data1=straight, data2=crossed, op=nl.add)
    nisa.dma_copy(dst=item.target, src=x_PCND)
