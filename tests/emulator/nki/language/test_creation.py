"""Tensors that kernels make, against NumPy's functions of the same names."""

import ml_dtypes
import numpy as np
import pytest

from optimum_neuron_torch.emulator.nki.errors import NkiError
from tests.emulator.nki.language.tiles import made, nisa, nki, nl, normal, on_tiles


BUFFERS = ["sbuf", "psum", "hbm", "shared_hbm"]
DTYPES = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16, "int32": np.int32, "uint8": np.uint8}


@pytest.mark.parametrize("buffer", BUFFERS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("name", "arguments", "value"), [("zeros", (), 0), ("ones", (), 1), ("full", (7,), 7)])
def test_filled(buffer, dtype, name, arguments, value):
    function = getattr(nl, name)
    array = made(lambda: function((64, 3, 5), *arguments, dtype=getattr(nl, dtype), buffer=getattr(nl, buffer)))
    assert array.dtype == DTYPES[dtype]
    np.testing.assert_array_equal(array.astype(np.float64), np.full((64, 3, 5), value))


def test_the_buffer_is_sbuf_by_default_and_the_name_is_kept():
    def kernel():
        for make in (nl.zeros, nl.ones, nl.ndarray):
            tensor = make((128, 4), nl.float32, name="counts")
            assert tensor.buffer == nl.sbuf and tensor.name == "counts" and tensor.shape == (128, 4)

    nki.simulate(kernel)()


def test_full_takes_every_value_of_the_dtype():
    assert made(lambda: nl.full((2, 2), 2**31 - 1, nl.int32)).tolist() == [[2**31 - 1] * 2] * 2
    assert made(lambda: nl.full((2, 2), -(2**31), nl.int32, buffer=nl.hbm)).tolist() == [[-(2**31)] * 2] * 2
    assert made(lambda: nl.full((2, 2), 0.1, nl.bfloat16))[0, 0] == ml_dtypes.bfloat16(0.1)
    assert np.isneginf(made(lambda: nl.full((2, 2), float("-inf"), nl.float32))).all()


def test_like():
    def kernel():
        tile = nl.ndarray((64, 2, 6), nl.bfloat16, buffer=nl.psum)
        for tensor, expected in [
            (nl.empty_like(tile), (nl.bfloat16, nl.psum)),
            (nl.empty_like(tile, dtype=nl.int8, buffer=nl.sbuf), (nl.int8, nl.sbuf)),
            (nl.zeros_like(tile), (nl.bfloat16, nl.sbuf)),
            (nl.zeros_like(tile, dtype=nl.float32, buffer=nl.psum), (nl.float32, nl.psum)),
        ]:
            assert (tensor.shape, tensor.dtype, tensor.buffer) == (tile.shape, *expected)

    nki.simulate(kernel)()
    assert not made(lambda: nl.zeros_like(nl.ones((8, 8), nl.float32))).any()


@pytest.mark.parametrize("lnc", [1, 2])
@pytest.mark.parametrize("dtype", [*DTYPES.values(), np.float16, np.int8, ml_dtypes.float8_e4m3fn])
def test_shared_constant(lnc, dtype, tmp_path):
    constant = np.arange(-40, 40).reshape(8, 10).astype(dtype)

    def kernel():
        tensor = nl.shared_constant(constant)
        assert tensor.buffer == nl.shared_hbm and tensor.shape == (8, 10)
        return tensor

    np.testing.assert_array_equal(nki.simulate(kernel)[lnc](), constant)


def test_shared_constant_of_packed_and_of_foreign_elements():
    packed = np.arange(12, dtype=np.uint32).reshape(3, 4).view([("float8_e4m3fn_x4", "u4")])

    def kernel():
        tensor = nl.shared_constant(packed)
        assert tensor.dtype == nl.float8_e4m3fn_x4 and tensor.shape == packed.shape
        return tensor.view(nl.uint32)

    np.testing.assert_array_equal(nki.simulate(kernel)().reshape(-1), np.arange(12))
    big_endian = normal(4, 6).astype(">f4")
    for lnc in (1, 2):
        np.testing.assert_array_equal(nki.simulate(lambda: nl.shared_constant(big_endian))[lnc](), big_endian)


def test_shared_constant_of_a_file(tmp_path):
    path, constant = tmp_path / "table.npy", normal(3, 4)
    np.save(path, constant)
    np.testing.assert_array_equal(made(lambda: nl.shared_constant(str(path))), constant)


def test_shared_constant_is_copied():
    constant = normal(4, 4)
    expected = constant.copy()

    def kernel():
        tensor = nl.shared_constant(constant)
        nisa.dma_copy(dst=tensor, src=nl.zeros((4, 4), nl.float32))

    nki.simulate(kernel)()
    np.testing.assert_array_equal(constant, expected)


def test_cores_share_one_constant():
    def kernel(differ):
        return nl.shared_constant(np.full((2, 2), 1.0 + differ * nl.program_id(0), np.float32))

    assert nki.simulate(kernel)[2](0).tolist() == [[1, 1], [1, 1]]
    with pytest.raises(NkiError, match="different constants"):
        nki.simulate(kernel)[2](1)


def test_one_core_may_make_an_identity_matrix_alone():
    def kernel():
        out = nl.ndarray((2, 8, 8), nl.float32, buffer=nl.shared_hbm)
        core = nl.program_id(0)
        tile = nl.shared_identity_matrix(8, dtype=nl.float32) if core else nl.zeros((8, 8), nl.float32)
        nisa.dma_copy(dst=out[core], src=tile)
        late = nl.ndarray((4, 4), nl.float32, buffer=nl.shared_hbm)
        assert late.shape == (4, 4)
        return out

    np.testing.assert_array_equal(nki.simulate(kernel)[2](), [np.zeros((8, 8)), np.eye(8)])


def test_shared_constant_refuses_what_is_no_constant():
    for given, message in [([1, 2], "takes a NumPy array"), (np.arange(3), "int32"), (np.arange(3.0), "float32")]:
        with pytest.raises(NkiError, match=message):
            made(lambda given=given: nl.shared_constant(given))


@pytest.mark.parametrize("dtype", [None, "float32", "bfloat16", "int32"])
@pytest.mark.parametrize("n", [1, 32, 128])
def test_shared_identity_matrix(n, dtype):
    given = {} if dtype is None else {"dtype": getattr(nl, dtype)}
    array = made(lambda: nl.shared_identity_matrix(n, **given))
    assert array.dtype == DTYPES[dtype or "uint8"]
    np.testing.assert_array_equal(array.astype(int), np.eye(n, dtype=int))


def test_shared_identity_matrix_in_a_given_tile():
    def make():
        tile = nl.zeros((16, 40), nl.bfloat16)
        assert nl.shared_identity_matrix(16, dst=tile[:, 8:24]) is not None
        return tile

    expected = np.zeros((16, 40))
    expected[:, 8:24] = np.eye(16)
    np.testing.assert_array_equal(made(make).astype(np.float32), expected)


def test_bad_tensors_say_what_to_do():
    for make, message in [
        (lambda: nl.zeros((128, 4), nl.float32, buffer="sbuf"), "write nl.sbuf"),
        (lambda: nl.zeros((128, 4), "float64"), "convert to float32"),
        (lambda: nl.zeros((256, 4), nl.float32), "partition"),
        (lambda: nl.zeros(128, nl.float32), "a list or tuple"),
        (lambda: nl.ndarray((128, 4), nl.float32, buffer=None), "tensors lie in"),
    ]:
        with pytest.raises(NkiError, match=message):
            made(make)


@pytest.mark.parametrize("buffer", ["sbuf", "hbm"])
@pytest.mark.parametrize(
    ("value", "dtype", "message"),
    [
        (2.5, "int32", "pass an integer"),
        (float("nan"), "int8", "pass an integer"),
        (300, "uint8", "0 to 255"),
        (-1, "uint32", "0 to 4294967295"),
        ("1", "float32", "is a number"),
        (None, "int32", "is a number"),
    ],
)
def test_full_refuses_what_the_dtype_does_not_have(buffer, value, dtype, message):
    with pytest.raises(NkiError, match=message):
        made(lambda: nl.full((2, 2), value, getattr(nl, dtype), buffer=getattr(nl, buffer)))


def test_ndarray_outside_a_kernel():
    with pytest.raises(NkiError, match="inside a kernel"):
        nl.ndarray((128, 4), nl.float32)


def test_on_tiles_itself():
    values = normal(128, 8)
    np.testing.assert_array_equal(on_tiles(lambda x: x, values), values)
