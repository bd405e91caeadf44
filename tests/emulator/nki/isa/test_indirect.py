"""Dynamic addresses: rows chosen by tensors and registers, in reads and in writes."""

import numpy as np
import pytest

import nki
import nki.isa as nisa
import nki.language as nl
from optimum_neuron_torch.emulator.nki.errors import NkiError
from tests.emulator.nki.isa.issuing import out as stored
from tests.emulator.nki.isa.issuing import tile as loaded


ROWS, WIDTH = 40, 12
TABLE = np.arange(ROWS * WIDTH, dtype=np.float32).reshape(ROWS, WIDTH)


@nki.jit
def gathered(table, indices, oob_mode=nisa.oob_mode.error, fill=-1.0):
    index = loaded(indices)
    rows = nl.ndarray((indices.shape[0], table.shape[1]), table.dtype)
    nisa.memset(dst=rows, value=fill)
    pattern = [[table.shape[1], indices.shape[0]], [1, table.shape[1]]]
    nisa.dma_copy(dst=rows, src=table.ap(pattern, vector_offset=index), oob_mode=oob_mode)
    return stored(rows)


@nki.jit
def scattered(values, indices, target, oob_mode=nisa.oob_mode.error):
    index, rows = loaded(indices), loaded(values)
    pattern = [[target.shape[1], indices.shape[0]], [1, target.shape[1]]]
    nisa.dma_copy(dst=target.ap(pattern, vector_offset=index), src=rows, oob_mode=oob_mode)


def some_indices(count=16, dtype=np.int32):
    return np.random.default_rng(count).permutation(ROWS)[:count].reshape(count, 1).astype(dtype)


@pytest.mark.parametrize("dtype", [np.int32, np.uint32])
def test_gather(dtype):
    indices = some_indices(dtype=dtype)
    np.testing.assert_array_equal(gathered(TABLE, indices), TABLE[indices[:, 0]])


def test_vector_select_is_a_gather():
    @nki.jit
    def kernel(table, indices):
        rows = nl.ndarray((indices.shape[0], table.shape[1]), table.dtype)
        nisa.dma_copy(dst=rows, src=table.vector_select(0, loaded(indices)))
        return stored(rows)

    indices = some_indices()
    np.testing.assert_array_equal(kernel(TABLE, indices), TABLE[indices[:, 0]])


@pytest.mark.parametrize("bad", [-1, ROWS])
def test_rows_out_of_bounds_are_an_error_or_skipped(bad):
    indices = some_indices()
    indices[3] = bad
    with pytest.raises(NkiError, match=f"out of bounds: the dynamic index {bad} reaches beyond the {ROWS} elements"):
        gathered(TABLE, indices)
    expected = TABLE[np.clip(indices[:, 0], 0, ROWS - 1)]
    expected[3] = -1
    np.testing.assert_array_equal(gathered(TABLE, indices, nisa.oob_mode.skip), expected)


@pytest.mark.parametrize("bad", [None, -1, ROWS])
def test_scatter(bad):
    indices, values = some_indices(), TABLE[:16] + 1000
    target = np.zeros_like(TABLE)
    expected = target.copy()
    expected[indices[:, 0]] = values
    if bad is None:
        scattered(values, indices, target)
    else:
        expected[indices[5]] = 0
        indices[5] = bad
        with pytest.raises(NkiError, match="out of bounds"):
            scattered(values, indices, target)
        assert not target.any()
        scattered(values, indices, target, nisa.oob_mode.skip)
    np.testing.assert_array_equal(target, expected)


@pytest.mark.parametrize("by", ["register", "tensor", "ds", "ap"])
def test_a_dynamic_row(by):
    @nki.jit
    def kernel(table, position):
        index = loaded(position)
        register = nisa.register_alloc()
        nisa.register_load(register, index)
        width = table.shape[1]
        row = {
            "register": lambda: table[register],
            "tensor": lambda: table.select(0, index),
            "ds": lambda: table[nl.ds(register, 1), :],
            "ap": lambda: table.ap([[width, 1], [1, width]], scalar_offset=register),
        }[by]()
        tile = nl.ndarray((1, width), table.dtype)
        nisa.dma_copy(dst=tile, src=row)
        return stored(tile)

    for position in (0, 17, ROWS - 1):
        result = kernel(TABLE, np.array([[position]], np.int32))
        np.testing.assert_array_equal(result.reshape(-1), TABLE[position])
    for bad in (-1, ROWS):
        with pytest.raises(NkiError, match=f"out of bounds.* {bad} "):
            kernel(TABLE, np.array([[bad]], np.int32))


def test_the_index_is_looked_up_when_the_instruction_runs():
    @nki.jit
    def kernel(table):
        index = nl.ndarray((1, 1), nl.int32)
        row = table.select(0, index)
        tile = nl.ndarray((1, 2 * table.shape[1]), table.dtype)
        for turn, position in enumerate((5, 9)):
            nisa.memset(dst=index, value=position)
            nisa.dma_copy(dst=tile[:, nl.ds(turn * table.shape[1], table.shape[1])], src=row)
        return stored(tile)

    np.testing.assert_array_equal(kernel(TABLE).reshape(2, -1), TABLE[[5, 9]])


def test_a_loop_counter_indexes():
    @nki.jit
    def kernel(table):
        out = nl.ndarray(table.shape, table.dtype, buffer=nl.shared_hbm)

        def body(i):
            nisa.dma_copy(dst=out[nl.ds(i, 1)], src=table[nl.ds(i, 1)])

        nl.fori_loop(0, table.shape[0], body)
        return out

    np.testing.assert_array_equal(kernel(TABLE), TABLE)


def test_an_index_counts_as_read():
    @nki.jit
    def kernel(table):
        index = nl.ndarray((8, 1), nl.int32, name="index")
        rows = nl.ndarray((8, table.shape[1]), table.dtype)
        nisa.memset(dst=index, value=1)
        nisa.dma_copy(dst=rows, src=table.vector_select(0, index))
        return stored(rows)

    with nki.simulation() as reports:
        kernel(TABLE)
    copy = next(record for record in reports[0].records if record.op == "dma_copy")
    assert [operand.dtype for operand in copy.reads] == ["float32", "int32"]


@pytest.mark.parametrize("start", [-50, -3, 0, 30, 36, 39, 40, 90])
def test_rows_behind_a_dynamic_start_that_are_out_of_bounds_are_skipped(start):
    @nki.jit
    def kernel(values, position, target):
        register = nisa.register_alloc()
        nisa.register_load(register, position)
        tile, width = loaded(values), values.shape[1]
        pattern = [[width, values.shape[0]], [1, width]]
        nisa.dma_copy(dst=target.ap(pattern, scalar_offset=register), src=tile, oob_mode=nisa.oob_mode.skip)
        back = nl.ndarray(values.shape, values.dtype)
        nisa.memset(dst=back, value=-1)
        nisa.dma_copy(dst=back, src=target.ap(pattern, scalar_offset=register), oob_mode=nisa.oob_mode.skip)
        return stored(back)

    values, target = TABLE[:8] + 1000, np.zeros_like(TABLE)
    expected, expected_back = target.copy(), np.full_like(values, -1)
    for row in range(8):
        if 0 <= start + row < ROWS:
            expected[start + row] = expected_back[row] = values[row]
    back = kernel(values, np.array([[start]], np.int32), target)
    np.testing.assert_array_equal(target, expected)
    np.testing.assert_array_equal(back, expected_back)


def test_gathered_rows_that_nothing_has_written_are_reported():
    @nki.jit
    def kernel(values, indices):
        table = nl.ndarray((ROWS, WIDTH), values.dtype, buffer=nl.private_hbm)
        nisa.dma_copy(dst=table[0:16], src=values[0:16])
        rows = nl.ndarray((4, WIDTH), values.dtype)
        nisa.dma_copy(dst=rows, src=table.vector_select(0, loaded(indices)))
        return stored(rows)

    with nki.simulation() as reports:
        kernel(TABLE, np.array([[0], [3], [15], [2]], np.int32))
        kernel(TABLE, np.array([[0], [3], [16], [2]], np.int32))
    assert not reports[0].unwritten
    assert len(reports[1].unwritten) == 1
