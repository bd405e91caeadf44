"""DMA against its documented definitions: copies that cast, transposes, gathers that transpose, sums on the way."""

import ml_dtypes
import numpy as np
import pytest

import nki
import nki.isa as nisa
import nki.language as nl
from optimum_neuron_torch.emulator.nki.errors import NkiError
from tests.emulator.nki.isa.issuing import out as stored
from tests.emulator.nki.isa.issuing import tile as loaded
from tests.emulator.nki.violating import refused


def normal(*shape, dtype=np.float32):
    return np.random.default_rng(shape[0]).standard_normal(shape).astype(dtype)


# Copies


@pytest.mark.parametrize("given", [np.float32, np.float16, ml_dtypes.bfloat16, np.int32, np.uint8])
@pytest.mark.parametrize("wanted", [np.float32, np.float16, ml_dtypes.bfloat16, np.int32, np.int8])
def test_copies_cast_by_way_of_float32(given, wanted):
    @nki.jit
    def kernel(values, kind):
        tile = nl.ndarray(values.shape, kind.dtype)
        nisa.dma_copy(dst=tile, src=values)
        return stored(tile)

    values = np.arange(64).reshape(16, 4).astype(given)
    if np.dtype(given).kind == "f":
        values = values + np.asarray(0.37, given)
    through = values.astype(np.float32)
    expected = (np.rint(through) if np.dtype(wanted).kind == "i" else through).astype(wanted)
    np.testing.assert_array_equal(kernel(values, np.zeros(1, wanted)), expected)


def test_equal_dtypes_are_copied_bit_by_bit():
    @nki.jit
    def kernel(values):
        return stored(loaded(values))

    bits = np.random.default_rng(0).integers(0, 2**32, (16, 64), dtype=np.uint32)
    np.testing.assert_array_equal(kernel(bits.view(np.float32)).view(np.uint32), bits)
    np.testing.assert_array_equal(kernel(bits.view(np.int32)).view(np.uint32), bits)


def test_elements_keep_their_order_in_other_shapes():
    @nki.jit
    def kernel(values):
        tile = nl.ndarray((8, 6), values.dtype)
        nisa.dma_copy(dst=tile, src=values)
        return stored(tile)

    values = normal(2, 3, 8)
    np.testing.assert_array_equal(kernel(values), values.reshape(8, 6))


@pytest.mark.parametrize("by", ["vector", "scalar"])
def test_rows_are_skipped_on_both_sides(by):
    """Row i is copied where the index of its source and that of its destination are in bounds."""

    @nki.jit
    def kernel(table, target, sources, targets):
        width, count = table.shape[1], sources.shape[0]
        pattern = [[width, count], [1, width]]
        if by == "vector":
            chosen = target.ap(pattern, vector_offset=loaded(targets))
        else:
            chosen = target.ap(pattern, scalar_offset=loaded(targets[0:1]))
        src = table.ap(pattern, vector_offset=loaded(sources))
        nisa.dma_copy(dst=chosen, src=src, oob_mode=nisa.oob_mode.skip)

    table, target = normal(20, 6), np.zeros((20, 6), np.float32)
    sources = np.array([3, -1, 19, 20, 0, 7], np.int32).reshape(-1, 1)
    targets = np.array([16, 0, 50, 5, 2, 17], np.int32).reshape(-1, 1)
    expected = target.copy()
    for i, source in enumerate(sources[:, 0]):
        row = targets[i, 0] if by == "vector" else targets[0, 0] + i
        if 0 <= source < 20 and 0 <= row < 20:
            expected[row] = table[source]
    kernel(table, target, sources, targets)
    np.testing.assert_array_equal(target, expected)
    assert expected.any()


# Transposes


@pytest.mark.parametrize(
    ("shape", "order"), [((48, 20), (1, 0)), ((4, 3, 30), (2, 1, 0)), ((5, 2, 3, 16), (3, 1, 2, 0))]
)
@pytest.mark.parametrize("is_in_sbuf", [False, True])
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_transpose(shape, order, is_in_sbuf, dtype):
    @nki.jit
    def kernel(values):
        source = loaded(values) if is_in_sbuf else values
        tile = nl.ndarray([values.shape[axis] for axis in order], values.dtype)
        nisa.dma_transpose(dst=tile, src=source, axes=order)
        return stored(tile)

    values = normal(*shape, dtype=dtype)
    np.testing.assert_array_equal(kernel(values), values.transpose(order))


def some_indices(partitions, columns, rows):
    return np.random.default_rng(columns).integers(0, rows, (partitions, columns)).astype(np.uint32)


@pytest.mark.parametrize(("partitions", "columns"), [(16, 1), (128, 1), (128, 2)])
@pytest.mark.parametrize("skipped", [(), (3, 15)])
def test_rows_that_an_index_chooses_are_transposed(partitions, columns, skipped):
    @nki.jit
    def kernel(table, indices):
        count, width = indices.shape[0] * indices.shape[1], table.shape[1]
        tile = nl.ndarray((width, count), table.dtype)
        nisa.memset(dst=tile, value=0.0)
        rows = table.ap([[width, count], [1, width]], vector_offset=loaded(indices), indirect_dim=0)
        nisa.dma_transpose(dst=tile, src=rows, axes=(1, 0), oob_mode=mode)
        return stored(tile)

    table, indices = normal(300, 40, dtype=np.float16), some_indices(partitions, columns, 300)
    flat = indices.T.reshape(-1)
    expected = table[flat].T.copy()
    mode = nisa.oob_mode.skip if skipped else nisa.oob_mode.error
    for position in skipped:
        indices[position % partitions, position // partitions] = 300
        expected[:, position] = 0
    np.testing.assert_array_equal(kernel(table, indices), expected)
    mode = nisa.oob_mode.error
    if skipped:
        with pytest.raises(NkiError, match="out of bounds"):
            kernel(table, indices)


@pytest.mark.parametrize("inner", [(1, 4), (4, 1)])
def test_four_dimensions_that_an_index_chooses_are_transposed(inner):
    @nki.jit
    def kernel(table, indices):
        _, one, two, width = table.shape
        tile = nl.ndarray((width, one, two, 128), table.dtype)
        pattern = [[one * two * width, 128], [two * width, one], [width, two], [1, width]]
        rows = table.ap(pattern, vector_offset=loaded(indices), indirect_dim=0)
        nisa.dma_transpose(dst=tile, src=rows, axes=(3, 1, 2, 0), dge_mode=nisa.dge_mode.swdge)
        return stored(tile)

    table, indices = normal(50, *inner, 32, dtype=np.float16), some_indices(128, 1, 50)
    expected = table[indices[:, 0]].transpose(3, 1, 2, 0)
    np.testing.assert_array_equal(kernel(table, indices), expected)


# Sums


@pytest.mark.parametrize("count", [1, 2, 16])
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_sums_are_float32_and_then_rounded(count, dtype):
    @nki.jit
    def kernel(values):
        tile = nl.ndarray(values.shape[1:], values.dtype)
        nisa.dma_compute(tile, [values[i] for i in range(count)], nl.add, scales=[1.0] * count)
        return stored(tile)

    values = normal(count, 12, 33, dtype=dtype)
    total = values[0].astype(np.float32)
    for i in range(1, count):
        total = total + values[i].astype(np.float32)
    np.testing.assert_array_equal(kernel(values), total.astype(dtype))


@pytest.mark.parametrize("bad", [None, 20])
def test_rows_in_hbm_are_added_to(bad):
    @nki.jit
    def kernel(values, indices, target):
        index = loaded(indices)
        rows = target.ap([[8, 16], [1, 8]], vector_offset=index)
        again = target.ap([[8, 16], [1, 8]], vector_offset=index)
        nisa.dma_compute(rows, [again, loaded(values)], nl.add, oob_mode=mode)

    values, target = normal(16, 8), normal(20, 8)
    indices = np.random.default_rng(0).permutation(20)[:16].reshape(16, 1).astype(np.int32)
    expected, mode = target.copy(), nisa.oob_mode.error
    expected[indices[:, 0]] += values
    if bad is not None:
        expected[indices[2, 0]] = target[indices[2, 0]]
        indices[2], mode = bad, nisa.oob_mode.skip
    kernel(values, indices, target)
    np.testing.assert_array_equal(target, expected)


@pytest.mark.parametrize("bad", [None, -1])
def test_rows_of_hbm_are_added(bad):
    @nki.jit
    def kernel(values, indices, table):
        tile = loaded(values)
        rows = table.ap([[8, 16], [1, 8]], vector_offset=loaded(indices))
        nisa.dma_compute(tile, [tile, rows], nl.add, oob_mode=mode)
        return stored(tile)

    values, table, indices = normal(16, 8), normal(20, 8), some_indices(16, 1, 20).astype(np.int32)
    expected, mode = values + table[indices[:, 0]], nisa.oob_mode.error
    if bad is not None:
        expected[2], indices[2], mode = values[2], bad, nisa.oob_mode.skip
    np.testing.assert_array_equal(kernel(values, indices, table), expected)


# What is refused


def sbuf(*shape, dtype=nl.float16):
    return nl.ndarray(shape, dtype)


def hbm(*shape, dtype=nl.float16):
    return nl.ndarray(shape, dtype, buffer=nl.private_hbm)


def indices(partitions=16, columns=1, dtype=nl.uint32):
    index = sbuf(partitions, columns, dtype=dtype)
    nisa.iota(dst=index, pattern=[[16, columns]], channel_multiplier=1)
    return index


def rows(count=16, width=32, *, index=None, dtype=nl.float16):
    table = hbm(64, width, dtype=dtype)
    return table.ap(
        [[width, count], [1, width]], vector_offset=indices(count) if index is None else index, indirect_dim=0
    )


@refused("dge_mode=hwdge", "swdge", op="dma_copy")
def test_gather_by_hardware_descriptors():
    nisa.dma_copy(dst=sbuf(16, 32), src=rows(), dge_mode=nisa.dge_mode.hwdge)  # <- here


@refused("dge_mode=none", "swdge", op="dma_copy")
def test_scatter_by_descriptors_made_before():
    nisa.dma_copy(dst=rows(), src=sbuf(16, 32), dge_mode=nisa.dge_mode.none)  # <- here


@refused("in SBUF", "private_hbm", op="dma_copy")
def test_indices_in_hbm():
    nisa.dma_copy(dst=sbuf(16, 32), src=rows(index=hbm(16, 1, dtype=nl.uint32)))  # <- here


@refused("without one", op="dma_transpose")
def test_software_descriptors_without_an_index():
    nisa.dma_transpose(dst=sbuf(32, 16), src=hbm(16, 32), dge_mode=nisa.dge_mode.swdge)  # <- here


@refused("2 bytes", op="dma_transpose")
def test_gather_transpose_of_four_bytes():
    nisa.dma_transpose(dst=sbuf(32, 16, dtype=nl.float32), src=rows(dtype=nl.float32))  # <- here


@refused("multiple of 16 rows", op="dma_transpose")
def test_gather_transpose_of_twelve_rows():
    nisa.dma_transpose(dst=sbuf(32, 12), src=rows(12, index=indices(16)))  # <- here


@refused("128 where there are several columns", op="dma_transpose")
def test_gather_transpose_with_two_columns_of_few_indices():
    nisa.dma_transpose(dst=sbuf(32, 32), src=rows(32, index=indices(16, 2)))  # <- here


@refused("NeuronCore-v3", op="dma_transpose", target="trn1")
def test_gather_transpose_on_trn1():
    nisa.dma_transpose(dst=sbuf(32, 16), src=rows())  # <- here


@refused("second or the third", op="dma_transpose")
def test_gather_transpose_of_four_full_dimensions():
    table = hbm(64, 2, 3, 8)
    src = table.ap([[48, 16], [24, 2], [8, 3], [1, 8]], vector_offset=indices(), indirect_dim=0)
    nisa.dma_transpose(dst=sbuf(8, 2, 3, 16), src=src)  # <- here


@refused("16 rows", "hwdge", op="dma_transpose")
def test_hardware_transpose_of_many_rows():
    nisa.dma_transpose(dst=sbuf(32, 64), src=hbm(64, 32), dge_mode=nisa.dge_mode.hwdge)  # <- here


@refused("dst is", "[32, 16]", op="dma_transpose")
def test_transpose_into_another_shape():
    nisa.dma_transpose(dst=sbuf(16, 32), src=hbm(16, 32))  # <- here


@refused("1.0", op="dma_compute")
def test_scales():
    nisa.dma_compute(sbuf(16, 32), [hbm(16, 32)], nl.add, scales=[0.5])  # <- here


@refused("nl.add", op="dma_compute")
def test_another_reduction():
    nisa.dma_compute(sbuf(16, 32), [hbm(16, 32)], nl.maximum)  # <- here


@refused("1 to 16", op="dma_compute")
def test_seventeen_sources():
    nisa.dma_compute(sbuf(16, 32), [hbm(16, 32)] * 17, nl.add)  # <- here


@refused("is a list", op="dma_compute")
def test_a_source_that_is_no_list():
    nisa.dma_compute(sbuf(16, 32), hbm(16, 32), nl.add)  # <- here


@refused("two srcs", op="dma_compute")
def test_three_sources_with_an_index():
    tile = sbuf(16, 32)
    nisa.dma_compute(tile, [tile, rows(), hbm(16, 32)], nl.add)  # <- here


@refused("dst itself", op="dma_compute")
def test_no_source_is_the_destination():
    nisa.dma_compute(sbuf(16, 32), [sbuf(16, 32), rows()], nl.add)  # <- here


@refused("unique_indices", op="dma_compute")
def test_indices_that_may_repeat():
    tile = sbuf(16, 32)
    nisa.dma_compute(tile, [tile, rows()], nl.add, unique_indices=False)  # <- here


@refused("index 5", "more than once", op="dma_compute")
def test_indices_that_do_repeat():
    index, values = sbuf(16, 1, dtype=nl.uint32), sbuf(16, 32)
    nisa.memset(dst=index, value=5)
    nisa.memset(dst=values, value=1.0)
    target = rows(index=index)
    nisa.dma_compute(target, [target, values], nl.add)  # <- here


def test_a_pattern_made_from_the_shape_of_a_view_counts_its_partitions():
    """As nki-library's TensorView makes them of slices."""

    @nki.jit
    def kernel(values):
        tile = nl.ndarray(values.shape, values.dtype)
        nisa.dma_copy(dst=tile, src=values)
        part = tile[:, 6:10].ap([[4, values.shape[0]], [1, 4]])
        out = nl.ndarray(part.shape, values.dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=out, src=part)
        return out

    values = np.arange(5 * 18, dtype=np.float32).reshape(5, 18)
    np.testing.assert_array_equal(kernel(values), values[:, 6:10])
