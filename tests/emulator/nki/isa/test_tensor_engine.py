"""Products and transposes of the Tensor Engine against NumPy in float64, and how products accumulate in PSUM."""

import ml_dtypes
import numpy as np
import pytest

import nki
import nki.isa as nisa
import nki.language as nl
from optimum_neuron_torch.emulator.nki.errors import NkiError, NkiWarning
from tests.emulator.nki.isa.issuing import out as stored
from tests.emulator.nki.isa.issuing import tile as loaded


def random(*shape, dtype=np.float32, seed=0):
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(dtype)


@nki.jit
def product(left, right, accumulate=None, rounds=1):
    stationary, moving = loaded(left), loaded(right)
    result = nl.ndarray((left.shape[1], right.shape[1]), nl.float32, buffer=nl.psum)
    for turn in range(rounds):
        flag = turn > 0 if accumulate == "first overwrites" else accumulate
        nisa.nc_matmul(dst=result, stationary=stationary, moving=moving, accumulate=flag)
    return stored(result)


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16, np.float16, ml_dtypes.float8_e4m3])
@pytest.mark.parametrize(("k", "m", "n"), [(1, 1, 1), (32, 7, 100), (128, 128, 512), (100, 64, 3)])
def test_products(dtype, k, m, n):
    left, right = random(k, m, dtype=dtype), random(k, n, dtype=dtype, seed=1)
    expected = left.astype(np.float64).T @ right.astype(np.float64)
    np.testing.assert_allclose(product(left, right), expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(("accumulate", "times"), [(None, 3), (False, 1), ("first overwrites", 3)])
def test_three_products_in_one_place(accumulate, times):
    left, right = random(64, 32), random(64, 48, seed=1)
    expected = times * (left.astype(np.float64).T @ right)
    np.testing.assert_allclose(product(left, right, accumulate, 3), expected, rtol=1e-5, atol=1e-4)


def test_overlapping_places_accumulate_by_element():
    @nki.jit
    def kernel(left, right):
        stationary, moving = loaded(left), loaded(right)
        result = nl.ndarray((left.shape[1], 96), nl.float32, buffer=nl.psum)
        for start in (0, 32, 16):
            nisa.nc_matmul(dst=result[:, start : start + 64], stationary=stationary, moving=moving)
        return stored(result)

    left, right = random(64, 32), random(64, 64, seed=1)
    one = left.astype(np.float64).T @ right
    expected = np.zeros((32, 96))
    for start in (0, 32, 16):
        expected[:, start : start + 64] += one
    np.testing.assert_allclose(kernel(left, right), expected, rtol=1e-5, atol=1e-4)


def test_accumulating_onto_what_no_product_has_written_warns():
    with pytest.warns(NkiWarning, match="no matmul has written"):
        product(random(4, 4), random(4, 4, seed=1), True)


def test_double_row_contracts_over_pairs():
    @nki.jit
    def kernel(left, right):
        result = nl.ndarray((left.shape[2], right.shape[2]), nl.float32, buffer=nl.psum)
        mode = nisa.matmul_perf_mode.double_row
        nisa.nc_matmul(dst=result, stationary=loaded(left), moving=loaded(right), perf_mode=mode)
        return stored(result)

    dtype = ml_dtypes.float8_e4m3
    left, right = random(128, 2, 16, dtype=dtype), random(128, 2, 24, dtype=dtype, seed=1)
    expected = np.einsum("ptm,ptn->mn", left.astype(np.float64), right.astype(np.float64))
    np.testing.assert_allclose(kernel(left, right), expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16, np.int32, np.uint8])
@pytest.mark.parametrize("engine", ["tensor", "vector"])
@pytest.mark.parametrize("shape", [(32, 16), (5, 32)])
def test_transposes_keep_every_bit(dtype, engine, shape):
    @nki.jit
    def kernel(values):
        result = nl.ndarray(values.shape[::-1], values.dtype, buffer=nl.psum)
        nisa.nc_transpose(dst=result, data=loaded(values), engine=nisa.engine[engine])
        return stored(result)

    values = np.random.default_rng(0).integers(0, 256, (*shape, np.dtype(dtype).itemsize), np.uint8)
    values = values.view(dtype)[..., 0]
    result = kernel(values)
    np.testing.assert_array_equal(result.view(np.uint8), np.ascontiguousarray(values.T).view(np.uint8))


@pytest.mark.parametrize(
    ("position", "size", "words"),
    [
        ((0, 0), (), "given together"),
        ((0, 0), (48, 128), "tiles of"),
        ((16, 0), (32, 128), "no multiple"),
        ((0, 0), (32, 128), "limit is 32"),
    ],
)
def test_tiles_of_the_array_that_do_not_exist(position, size, words):
    @nki.jit
    def kernel(left, right):
        result = nl.ndarray((16, 16), nl.float32, buffer=nl.psum)
        nisa.nc_matmul(
            dst=result, stationary=loaded(left), moving=loaded(right), tile_position=position, tile_size=size
        )

    with pytest.raises(NkiError, match=words):
        kernel(random(64, 16), random(64, 16))
