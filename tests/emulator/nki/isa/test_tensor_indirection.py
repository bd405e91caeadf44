"""Columns chosen by offsets that each group of partitions holds (Trn3), against loops written from the definition."""

import numpy as np
import pytest

import nki
import nki.isa as nisa
import nki.language as nl
from optimum_neuron_torch.emulator.nki.errors import NkiError
from tests.emulator.nki.isa.issuing import out as stored
from tests.emulator.nki.isa.issuing import tile as loaded


@pytest.fixture(autouse=True)
def _trn3(monkeypatch):
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", "trn3")


def column(index, partition, position, group):
    """Offset `position` of the group that `partition` is in."""
    first = partition // group * group
    return index[first + position % group, position // group]


def some_data(partitions, columns=40, held=2):
    generator = np.random.default_rng(partitions)
    values = generator.standard_normal((partitions, columns)).astype(np.float16)
    return values, np.argsort(generator.random((partitions, columns)), axis=1)[:, :held].astype(np.int32)


@nki.jit
def gathered(values, index, count, engine):
    source, offsets = loaded(values), loaded(index)
    tile = nl.ndarray((values.shape[0], count), values.dtype)
    nisa.tensor_copy(dst=tile, src=source.indirect(offsets, count), engine=engine)
    return stored(tile)


@pytest.mark.parametrize("partitions", [16, 32, 128])
@pytest.mark.parametrize("engine", [nisa.engine.vector, nisa.engine.scalar])
def test_gather(partitions, engine):
    values, index = some_data(partitions)
    result = gathered(values, index, 25, engine)
    for partition in range(partitions):
        expected = [values[partition, column(index, partition, i, 16)] for i in range(25)]
        np.testing.assert_array_equal(result[partition], expected)


@pytest.mark.parametrize("is_written", [True, False])
def test_scatter(is_written):
    @nki.jit
    def scattered(values, index, target):
        source, offsets = loaded(values), loaded(index)
        tile = nl.ndarray(target.shape, target.dtype)
        if is_written:
            nisa.dma_copy(dst=tile, src=target)
        else:
            for first in range(0, target.shape[1], 8):
                nisa.memset(dst=tile[:, first : first + 8], value=0)
        nisa.tensor_copy(dst=tile.indirect(offsets, values.shape[1]), src=source)
        return stored(tile)

    _, index = some_data(32)
    index[:16] = np.arange(32).reshape(2, 16).T  # no offset twice
    index[16:] = 39 - np.arange(32).reshape(2, 16).T
    values = np.arange(32 * 20).reshape(32, 20).astype(np.float32)
    target = np.zeros((32, 40), np.float32)
    result = scattered(values, index, target)
    for partition in range(32):
        for i in range(20):
            target[partition, column(index, partition, i, 16)] = values[partition, i]
    np.testing.assert_array_equal(result, target)


def test_matmul_groups_by_32_partitions():
    @nki.jit
    def product(left, right, index):
        stationary, moving, offsets = loaded(left), loaded(right), loaded(index)
        result = nl.ndarray((left.shape[1], 50), nl.float32, buffer=nl.psum)
        nisa.nc_matmul(dst=result, stationary=stationary, moving=moving.indirect(offsets, 50))
        tile = nl.ndarray(result.shape, nl.float32)
        nisa.tensor_copy(dst=tile, src=result)
        return stored(tile)

    right, index = some_data(64)
    left = np.random.default_rng(1).standard_normal((64, 16)).astype(np.float16)
    chosen = np.array([[right[p, column(index, p, i, 32)] for i in range(50)] for p in range(64)])
    expected = left.astype(np.float64).T @ chosen.astype(np.float64)
    np.testing.assert_allclose(product(left, right, index), expected, rtol=1e-5, atol=1e-5)


def test_what_is_refused(monkeypatch):
    values, index = some_data(32)
    with pytest.raises(NkiError, match="hold 32 offsets"):
        gathered(values, index, 33, nisa.engine.vector)
    with pytest.raises(NkiError, match="not on gpsimd"):
        gathered(values, index, 4, nisa.engine.gpsimd)
    with pytest.raises(NkiError, match="column 40 of the 40"):
        gathered(values, np.full_like(index, 40), 4, nisa.engine.vector)

    @nki.jit
    def as_second_operand(values, index):
        tile, offsets = loaded(values), loaded(index)
        view = tile.indirect(offsets, 4)
        nisa.tensor_tensor(dst=tile[:, 0:4], data1=tile[:, 0:4], data2=view, op=nl.add)

    with pytest.raises(NkiError, match="data2 does not take"):
        as_second_operand(values, index)
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", "trn2")
    with pytest.raises(NkiError, match="needs NeuronCore-v4"):
        gathered(values, index, 4, nisa.engine.vector)
