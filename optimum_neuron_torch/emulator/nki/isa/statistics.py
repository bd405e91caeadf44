"""Mean and variance per partition, in two steps."""

import numpy as np

from ..core import current
from ..errors import NkiError
from ..instruction import Step, instruction
from ..tensor import NkiTensor
from .operands import on_chip


@instruction
def bn_stats(dst: NkiTensor, data: NkiTensor) -> Step:
    """Count, mean and variance * count of the even elements of each partition, then of the odd ones."""
    on_chip(dst, data)
    limit = current().run.chip.bn_stats_free_max
    if data.free_size > limit:
        raise NkiError(f"data has {data.free_size} elements per partition, and the limit is {limit}: use several")
    if dst.shape[0] != data.shape[0] or dst.free_size != 6:
        raise NkiError(f"dst has {data.shape[0]} partitions of 6 elements, but is {dst.describe()}")

    def compute() -> None:
        values = data.read_float32()
        parts = []
        for part in (values[:, ::2], values[:, 1::2]):
            count = part.shape[1]
            if count == 0:
                parts += [np.zeros(len(values), np.float32)] * 3
                continue
            parts += [np.full(len(values), count, np.float32), part.mean(1), part.var(1) * np.float32(count)]
        dst.write(np.stack(parts, axis=1))

    return Step("vector", (dst,), (data,), compute)


@instruction
def bn_aggr(dst: NkiTensor, data: NkiTensor) -> Step:
    """Mean and variance of each partition, from what `bn_stats` gave."""
    on_chip(dst, data)
    if data.free_size % 3:
        raise NkiError(f"data is (count, mean, variance * count) triples per partition, not {data.describe()}")
    if dst.shape[0] != data.shape[0] or dst.free_size != 2:
        raise NkiError(f"dst has {data.shape[0]} partitions of 2 elements, but is {dst.describe()}")

    def compute() -> None:
        triples = data.read_float32().reshape(data.shape[0], -1, 3)
        count, mean, spread = triples[..., 0], triples[..., 1], triples[..., 2]
        total = count.sum(1)
        center = (count * mean).sum(1) / total
        variance = (spread + count * (mean - center[:, None]) ** 2).sum(1) / total
        dst.write(np.stack([center, variance], axis=1))

    return Step("vector", (dst,), (data,), compute)
