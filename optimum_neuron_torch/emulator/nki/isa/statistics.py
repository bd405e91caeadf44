"""Mean and variance along the free dimension, by parts of up to 512 elements."""

import numpy as np

from ..core import current
from ..errors import NkiError
from ..instruction import Step, instruction
from ..tensor import NkiTensor
from .operands import on_chip


@instruction
def bn_stats(dst: NkiTensor, data: NkiTensor) -> Step:
    """Number, mean, and variance times number, of the even and then of the odd elements of each partition."""
    on_chip(dst, data)
    limit = current().run.chip.bn_stats_free_max
    if data.free_size > limit:
        raise NkiError(
            f"data has {data.free_size} elements per partition, and the limit is {limit} "
            "(nl.tile_size.bn_stats_fmax): take parts, and join their statistics with nisa.bn_aggr"
        )
    _check_result(dst, data, 6)

    def compute() -> None:
        values = data.read_float32()
        result = np.empty((len(values), 6), np.float32)
        for column, part in ((0, values[:, ::2]), (3, values[:, 1::2])):
            count = part.shape[1]
            mean = (
                part.mean(axis=1, keepdims=True, dtype=np.float32) if count else np.zeros((len(part), 1), np.float32)
            )
            result[:, column] = count
            result[:, column + 1] = mean[:, 0]
            result[:, column + 2] = np.square(part - mean).sum(axis=1)
        dst.write(result)

    return Step("vector", (dst,), (data,), compute)


def _check_result(dst: NkiTensor, data: NkiTensor, size: int) -> None:
    if dst.shape[0] != data.shape[0] or dst.free_size != size:
        raise NkiError(f"dst has shape [{data.shape[0]}, {size}], but is {dst.describe()}")


@instruction
def bn_aggr(dst: NkiTensor, data: NkiTensor) -> Step:
    """Mean and variance from (number, mean, variance times number) triples, which `bn_stats` makes."""
    on_chip(dst, data)
    if data.free_size % 3:
        raise NkiError(
            f"data has {data.free_size} elements per partition, no multiple of 3: it holds triples of count, "
            f"mean and variance * count, one of every part ({data.describe()})"
        )
    _check_result(dst, data, 2)

    def compute() -> None:
        triples = data.read_float32().reshape(data.shape[0], -1, 3)
        counts, means, sums = triples[..., 0], triples[..., 1], triples[..., 2]
        total = counts.sum(axis=1, keepdims=True)
        mean = (counts * means).sum(axis=1, keepdims=True) / total
        variance = (sums + counts * np.square(means - mean)).sum(axis=1, keepdims=True) / total
        dst.write(np.concatenate((mean, variance), axis=1))

    return Step("vector", (dst,), (data,), compute)
