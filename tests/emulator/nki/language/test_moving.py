"""Loads, stores and layouts, against NumPy's functions of the same names."""

import ml_dtypes
import numpy as np
import pytest

from optimum_neuron_torch.emulator.nki.errors import NkiError
from tests.emulator.nki.language.tiles import nki, nl, normal, on_tiles


DTYPES = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16, "int32": np.int32}


def loaded(load, array):
    def kernel(tensor):
        tile = load(tensor)
        assert tile.buffer == nl.sbuf
        out = nl.ndarray(tile.shape, tile.dtype, buffer=nl.shared_hbm)
        nl.store(out, tile)
        return out

    return nki.simulate(kernel)(array)


@pytest.mark.parametrize("dtype", DTYPES)
def test_load_and_store(dtype):
    values = (normal(300, 4, 6) * 10).astype(DTYPES[dtype])
    np.testing.assert_array_equal(loaded(lambda t: nl.load(t[100:228]), values), values[100:228])
    np.testing.assert_array_equal(loaded(lambda t: nl.load(t[7:300:4, 1:3, ::2]), values), values[7:300:4, 1:3, ::2])
    cast = loaded(lambda t: nl.load(t[0:128], dtype=nl.float16), values)
    np.testing.assert_array_equal(cast, values[:128].astype(np.float32).astype(np.float16))


def test_store_casts_and_writes_where_it_is_told():
    def kernel(out, values):
        nl.store(out[2:66, 1:9], nl.load(values))

    out, values = np.zeros((70, 12), ml_dtypes.bfloat16), normal(64, 8)
    nki.simulate(kernel)(out, values)
    expected = np.zeros((70, 12), ml_dtypes.bfloat16)
    expected[2:66, 1:9] = values.astype(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_load_transpose2d(dtype):
    values = (normal(200, 96) * 10).astype(DTYPES[dtype])
    np.testing.assert_array_equal(loaded(nl.load_transpose2d, values), values.T)
    part = loaded(lambda t: nl.load_transpose2d(t[3:150, 8:40], dtype=nl.float16), values)
    np.testing.assert_array_equal(part, values[3:150, 8:40].T.astype(np.float32).astype(np.float16))


@pytest.mark.parametrize("dtype", DTYPES)
def test_copy_is_exact(dtype):
    values = (normal(128, 3, 8) * 1e6).astype(DTYPES[dtype])
    np.testing.assert_array_equal(on_tiles(nl.copy, values), values)
    cast = on_tiles(lambda x: nl.copy(x, dtype=nl.float16), (values / 1e4).astype(values.dtype))
    expected = (values / 1e4).astype(values.dtype).astype(np.float32).astype(np.float16)
    np.testing.assert_array_equal(cast, expected)


@pytest.mark.parametrize("shape", [(128, 128), (32, 16), (64, 128), (1, 128)])
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_transpose(shape, dtype):
    values = normal(*shape).astype(dtype)

    def call(x):
        result = nl.transpose(x)
        assert result.buffer == nl.psum
        return result

    np.testing.assert_array_equal(on_tiles(call, values), values.T)


def test_transpose_to_another_dtype():
    values = normal(64, 32)
    actual = on_tiles(lambda x: nl.transpose(x, dtype=nl.bfloat16), values)
    np.testing.assert_array_equal(actual, values.T.astype(ml_dtypes.bfloat16))


@pytest.mark.parametrize("transpose_x", [False, True])
@pytest.mark.parametrize(("m", "k", "n"), [(128, 128, 512), (32, 64, 100), (1, 128, 1)])
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_matmul(m, k, n, transpose_x, dtype):
    x = normal(*((k, m) if transpose_x else (m, k))).astype(dtype)
    y = normal(k, n, seed=1).astype(dtype)

    def call(a, b):
        result = nl.matmul(a, b, transpose_x=transpose_x)
        assert result.buffer == nl.psum and result.dtype == nl.float32
        return result

    left = (x.T if transpose_x else x).astype(np.float64)
    np.testing.assert_allclose(on_tiles(call, x, y), left @ y.astype(np.float64), rtol=1e-4, atol=1e-4)


def test_expand_dims_is_a_view():
    values = normal(128, 4, 6)
    for axis, shape in [(1, (128, 1, 4, 6)), (2, (128, 4, 1, 6)), (3, (128, 4, 6, 1)), (-1, (128, 4, 6, 1))]:
        with nki.simulation() as reports:
            actual = on_tiles(lambda x, a=axis: nl.expand_dims(x, a), values)
        assert actual.shape == shape and len(reports[0].records) == 2
        np.testing.assert_array_equal(actual, np.expand_dims(values, axis))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("shape", "wanted"),
    [
        ((128, 1), (128, 64)),
        ((128, 1, 8), (128, 5, 8)),
        ((32, 1, 4, 1), (32, 3, 4, 2)),
        ((1, 48), (128, 48)),
        ((1, 1), (64, 7)),
        ((16, 8), (16, 8)),
    ],
)
def test_broadcast_to(shape, wanted, dtype):
    values = (normal(*shape) * 10).astype(DTYPES[dtype])
    np.testing.assert_array_equal(
        on_tiles(lambda x: nl.broadcast_to(x, wanted), values), np.broadcast_to(values, wanted)
    )
    cast = on_tiles(lambda x: nl.broadcast_to(x, wanted, dtype=nl.float16), values)
    np.testing.assert_array_equal(cast, np.broadcast_to(values.astype(np.float32).astype(np.float16), wanted))


def test_broadcast_to_the_same_shape_is_the_same_tile():
    def kernel():
        tile = nl.zeros((64, 8), nl.float32)
        assert nl.broadcast_to(tile, (64, 8)) is tile
        assert nl.broadcast_to(tile, (64, 8), dtype=nl.float32) is tile

    nki.simulate(kernel)()


@pytest.mark.parametrize("dtype", [np.uint32, np.int32])
def test_gather_flattened(dtype):
    data = normal(64, 4, 16)
    indices = np.random.default_rng(0).integers(0, 64, (64, 10)).astype(dtype)
    expected = np.take_along_axis(data.reshape(64, 64), indices.astype(int), axis=1)
    np.testing.assert_array_equal(on_tiles(nl.gather_flattened, data, indices), expected)
    cast = on_tiles(lambda d, i: nl.gather_flattened(d, i, dtype=nl.float16), data, indices)
    np.testing.assert_array_equal(cast, expected.astype(np.float16))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda tile, hbm: nl.load(tile), "takes a tensor in HBM"),
        (lambda tile, hbm: nl.load(3), "takes a tensor in HBM"),
        (lambda tile, hbm: nl.store(tile, tile), "takes a tensor in HBM"),
        (lambda tile, hbm: nl.load(hbm), "partition"),
        (lambda tile, hbm: nl.load_transpose2d(hbm[0:8].expand_dim(1)), "takes a matrix"),
        (lambda tile, hbm: nl.transpose(tile.expand_dim(1)), "2D tile"),
        (lambda tile, hbm: nl.broadcast_to(tile, (128, 9)), "does not repeat"),
        (lambda tile, hbm: nl.broadcast_to(tile, (128, 2, 8)), "does not repeat"),
        (lambda tile, hbm: nl.matmul(tile, nl.zeros((64, 8), nl.float32), transpose_x=True), r"128.*64"),
        (lambda tile, hbm: nl.gather_flattened(tile, tile, axis=1), "axis 0 only"),
        (lambda tile, hbm: nl.gather_flattened(hbm, tile), "nl.load"),
        (lambda tile, hbm: nl.broadcast_to(hbm, (300, 8)), "nl.load"),
        (lambda tile, hbm: nl.transpose(hbm), "nl.load"),
        (lambda tile, hbm: nl.matmul(tile, hbm), "nl.load"),
        (lambda tile, hbm: nl.add(tile, hbm), "nl.load"),
        (lambda tile, hbm: nl.exp(hbm), "nl.load"),
        (lambda tile, hbm: nl.softmax(hbm), "nl.load"),
        (lambda tile, hbm: nl.where(hbm, 1.0, 0.0), "nl.load"),
        (lambda tile, hbm: nl.where(True, tile, tile), "takes a tile"),
        (lambda tile, hbm: nl.dropout(hbm, 0.5), "nl.load"),
        (lambda tile, hbm: nl.sum(3.0, 1), "takes a tile"),
    ],
)
def test_what_does_not_fit_is_refused(call, message):
    def kernel(hbm):
        call(nl.zeros((128, 8), nl.float32), hbm)

    with pytest.raises(NkiError, match=message):
        nki.simulate(kernel)(normal(300, 8))


def test_device_print(capsys):
    values = np.arange(8, dtype=np.float32).reshape(2, 4)

    def kernel(tensor):
        nl.device_print("in HBM", tensor)
        nl.device_print("in SBUF", nl.load(tensor, dtype=nl.bfloat16))

    nki.simulate(kernel)(values)
    assert capsys.readouterr().out == f"in HBM {values}\nin SBUF {values}\n"
    nki.simulate(kernel)[2](values)
    printed = capsys.readouterr().out
    assert f"in HBM (core 0) {values}" in printed and f"in HBM (core 1) {values}" in printed
    for arguments in [(1, None), ("x", 3)]:
        with pytest.raises(NkiError, match="prefix|tensor"):
            nki.simulate(lambda arguments=arguments: nl.device_print(*arguments))()
