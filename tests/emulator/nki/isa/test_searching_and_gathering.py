"""Searches, statistics, gathers and shuffles against loops written from their documented definitions."""

import numpy as np
import pytest

import nki
import nki.isa as nisa
import nki.language as nl
from tests.emulator.nki.isa.issuing import out as stored
from tests.emulator.nki.isa.issuing import tile as loaded


def with_ties(partitions, columns):
    """Values of which some occur several times."""
    return np.random.default_rng(partitions).integers(-9, 9, (partitions, columns)).astype(np.float32)


@nki.jit
def eight_largest(values):
    data, rows = loaded(values), values.shape[0]
    largest = nl.ndarray((rows, 8), nl.float32)
    nisa.max8(dst=largest, src=data)
    positions = nl.ndarray((rows, 8), nl.uint32)
    nisa.nc_find_index8(dst=positions, data=data, vals=largest)
    replaced, matched = nl.ndarray(values.shape, nl.float32), nl.ndarray((rows, 8), nl.uint32)
    nisa.nc_match_replace8(dst=replaced, data=data, vals=largest, imm=-100.0, dst_idx=matched)
    return stored(largest), stored(positions), stored(replaced), stored(matched)


@pytest.mark.parametrize(("partitions", "columns"), [(1, 8), (37, 20), (128, 300)])
def test_the_eight_largest(partitions, columns):
    values = with_ties(partitions, columns)
    largest, positions, replaced, matched = eight_largest(values)
    for row in range(partitions):
        assert largest[row].tolist() == sorted(values[row], reverse=True)[:8]
        # Equal values are found at their successive positions: ascending, and in the replacing search descending.
        free, expected = list(values[row]), values[row].copy()
        for column in range(8):
            assert positions[row, column] == free.index(largest[row, column])
            free[positions[row, column]] = None
        free = list(values[row])
        for column in range(7, -1, -1):
            position = free.index(largest[row, column])
            assert matched[row, column] == position
            free[position], expected[position] = None, -100
        np.testing.assert_array_equal(replaced[row], expected)


def test_the_documented_example_of_replacing():
    @nki.jit
    def kernel(values, wanted):
        replaced, matched = nl.ndarray(values.shape, nl.float32), nl.ndarray((1, 8), nl.uint32)
        nisa.nc_match_replace8(dst=replaced, data=loaded(values), vals=loaded(wanted), imm=0.0, dst_idx=matched)
        return stored(matched)

    values = np.array([[1, 2, 3, 4, 8, 8, 8, 8, 8, 8, 8]], np.float32)
    wanted = np.array([[3, 8, 8, 8, 8, 8, 8, 8]], np.float32)
    assert kernel(values, wanted).tolist() == [[2, 10, 9, 8, 7, 6, 5, 4]]


def test_values_that_are_not_there_are_all_ones():
    @nki.jit
    def kernel(values, wanted):
        positions = nl.ndarray((1, 8), nl.uint16)
        nisa.nc_find_index8(dst=positions, data=loaded(values), vals=loaded(wanted))
        return stored(positions)

    values = np.arange(10, dtype=np.float32)[None]
    wanted = np.array([[0, 1, 2, 3, 4, 5, 6, 77]], np.float32)
    assert kernel(values, wanted).tolist() == [[0, 1, 2, 3, 4, 5, 6, 0xFFFF]]


def test_nonzero_with_count_reads_every_sixteenth_partition():
    @nki.jit
    def kernel(values):
        found = nl.ndarray((values.shape[0], values.shape[1] + 1), nl.int32)
        nisa.memset(dst=found, value=-7)
        nisa.nonzero_with_count(dst=found, src=loaded(values), index_offset=16, padding_val=-1)
        return stored(found)

    values = np.zeros((32, 8), np.float32)
    values[0] = values[1] = [0, 1, 1, 0, 0, 1, 0, 0]
    found = kernel(values)
    assert found[0].tolist() == [17, 18, 21, -1, -1, -1, -1, -1, 3]
    assert found[16].tolist() == [-1] * 8 + [0]
    untouched = [row for row in range(32) if row % 16]
    assert (found[untouched] == -7).all()


def test_sequence_bounds():
    @nki.jit
    def kernel(ids):
        bounds = nl.ndarray((1, 2, ids.shape[1]), nl.int32)
        nisa.sequence_bounds(dst=bounds, segment_ids=loaded(ids))
        return stored(bounds)

    ids = np.array([[1, 1, 2, 2, 2, 3, 0, 0]], np.int32)
    starts, ends = kernel(ids)[0].tolist()
    assert starts == [0, 0, 2, 2, 2, 5, 8, 8]
    assert ends == [2, 2, 5, 5, 5, 6, -1, -1]


@pytest.mark.parametrize("columns", [1, 2, 7, 512])
def test_statistics_give_mean_and_variance(columns):
    @nki.jit
    def kernel(values):
        half = nl.ndarray((values.shape[0], 6), nl.float32)
        nisa.bn_stats(dst=half, data=loaded(values))
        both = nl.ndarray((values.shape[0], 2), nl.float32)
        nisa.bn_aggr(dst=both, data=half)
        return stored(half), stored(both)

    values = np.random.default_rng(columns).standard_normal((64, columns)).astype(np.float32) * 3 + 1
    half, both = kernel(values)
    even = values[:, ::2].astype(np.float64)
    np.testing.assert_allclose(half[:, 0], even.shape[1])
    np.testing.assert_allclose(half[:, 1], even.mean(1), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(half[:, 2], even.var(1) * even.shape[1], rtol=1e-4, atol=1e-4)
    exact = values.astype(np.float64)
    np.testing.assert_allclose(both, np.stack([exact.mean(1), exact.var(1)], 1), rtol=1e-4, atol=1e-4)


def test_statistics_of_several_tiles():
    @nki.jit
    def kernel(values):
        data = loaded(values)
        parts = nl.ndarray((values.shape[0], 3, 6), nl.float32)
        for part in range(3):
            nisa.bn_stats(dst=parts[:, part], data=data[:, part * 100 : part * 100 + 100])
        both = nl.ndarray((values.shape[0], 2), nl.float32)
        nisa.bn_aggr(dst=both, data=parts)
        return stored(both)

    values = np.random.default_rng(0).standard_normal((16, 300)).astype(np.float32)
    exact = values.astype(np.float64)
    np.testing.assert_allclose(kernel(values), np.stack([exact.mean(1), exact.var(1)], 1), rtol=1e-4, atol=1e-5)


def test_gathers_within_partitions():
    @nki.jit
    def kernel(values, indices):
        gathered = nl.ndarray(indices.shape, values.dtype)
        nisa.nc_n_gather(dst=gathered, data=loaded(values), indices=loaded(indices))
        return stored(gathered)

    values = with_ties(64, 40)
    indices = np.random.default_rng(1).integers(0, 40, (64, 11)).astype(np.uint32)
    np.testing.assert_array_equal(kernel(values, indices), np.take_along_axis(values, indices.astype(int), axis=1))


def test_gathers_within_groups_of_partitions():
    @nki.jit
    def kernel(values, indices):
        gathered = nl.ndarray((values.shape[0], 16 * indices.shape[1]), values.dtype)
        nisa.local_gather(dst=gathered, src_buffer=loaded(values), index=loaded(indices))
        return stored(gathered)

    values = with_ties(32, 50)
    indices = np.random.default_rng(2).integers(0, 50, (32, 3)).astype(np.uint16)
    result = kernel(values, indices)
    for partition in range(32):
        group = partition // 16 * 16
        # The indices of a group, along its partitions first.
        chosen = [indices[group + i % 16, i // 16] for i in range(48)]
        np.testing.assert_array_equal(result[partition], values[partition, chosen])


def test_shuffles_within_quadrants():
    mask = [int(entry) for entry in np.random.default_rng(3).permutation(32)]
    mask[5] = 255

    @nki.jit
    def kernel(values):
        shuffled = nl.ndarray(values.shape, values.dtype)
        nisa.memset(dst=shuffled, value=-1.0)
        nisa.nc_stream_shuffle(dst=shuffled, src=loaded(values), shuffle_mask=mask)
        return stored(shuffled)

    values = with_ties(96, 6)
    expected = np.full_like(values, -1)
    for partition in range(96):
        if mask[partition % 32] != 255:
            expected[partition] = values[partition // 32 * 32 + mask[partition % 32]]
    np.testing.assert_array_equal(kernel(values), expected)
