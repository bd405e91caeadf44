"""Element types: names, and the casts to and from float32, against ml_dtypes', torch's and the definitions."""

import copy
import pickle
import sys
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
import torch

from optimum_neuron_torch.emulator.nki import dtypes
from optimum_neuron_torch.emulator.nki.dtypes import (
    ALL_DTYPES,
    DType,
    as_dtype,
    convert,
    convert_bits,
    store,
    to_float32,
)


FLOATS = [dtype for dtype in ALL_DTYPES if dtype.is_float]
INTEGERS = [dtype for dtype in ALL_DTYPES if dtype.is_integer]
NARROW_FLOATS = [dtype for dtype in FLOATS if dtype not in ("float32", "tfloat32")]
SPECIAL = np.array(
    [
        0.0,
        -0.0,
        np.inf,
        -np.inf,
        np.nan,
        1e-45,
        -1e-45,
        1.1754944e-38,
        3.4028235e38,
        -3.4028235e38,
        0.5,
        1.5,
        2.5,
        -0.5,
    ],
    dtype=np.float32,
)


@pytest.fixture(params=["NumPy", "torch"])
def without_or_with_torch(request, monkeypatch):
    if request.param == "NumPy":
        monkeypatch.setitem(sys.modules, "torch", None)


def samples(dtype: DType) -> np.ndarray:
    """Every element of a narrow type, its neighbours' midpoints and a little to either side, and random bits."""
    stored = np.arange(256 if dtype.itemsize == 1 else 65536, dtype=f"u{dtype.itemsize}").view(dtype.storage)
    values = stored.astype(np.float32)
    finite = np.sort(values[np.isfinite(values)]).astype(np.float64)
    middles = ((finite[1:] + finite[:-1]) / 2).astype(np.float32)
    beside = [np.nextafter(middles, np.float32(side)) for side in (-np.inf, np.inf)]
    random = np.random.default_rng(0).integers(0, 2**32, 100_000, dtype=np.uint32).view(np.float32)
    return np.concatenate([values, middles, *beside, random, SPECIAL])


def same(actual: np.ndarray, expected: np.ndarray) -> None:
    """Equal, with NaN where NaN and the signs of zeros."""
    assert actual.dtype == expected.dtype and actual.shape == expected.shape
    actual, expected = actual.astype(np.float32), expected.astype(np.float32)
    np.testing.assert_array_equal(actual, expected)
    zero = expected == 0
    np.testing.assert_array_equal(np.signbit(actual[zero]), np.signbit(expected[zero]))


@pytest.mark.parametrize("dtype", NARROW_FLOATS)
def test_a_float_is_rounded_to_the_nearest_even(dtype, without_or_with_torch):
    values = samples(dtype)
    with np.errstate(all="ignore"):
        expected = values.astype(dtype.storage)
    same(convert(values, dtype), expected)
    same(convert(values[::-3], dtype), expected[::-3])


@pytest.mark.parametrize("dtype", NARROW_FLOATS)
def test_every_stored_float_is_read_exactly(dtype, without_or_with_torch):
    stored = np.arange(256 if dtype.itemsize == 1 else 65536, dtype=f"u{dtype.itemsize}").view(dtype.storage)
    same(to_float32(stored, dtype), stored.astype(np.float32))
    same(to_float32(stored[::-3], dtype), stored[::-3].astype(np.float32))
    same(convert(to_float32(stored, dtype), dtype), stored)


@pytest.mark.parametrize("dtype", NARROW_FLOATS)
def test_reading_and_writing_leave_the_given_array_alone(dtype, without_or_with_torch):
    values = np.linspace(-3, 3, 64, dtype=np.float32)
    values.flags.writeable = False
    stored = convert(values, dtype)
    assert not np.shares_memory(stored, values)
    kept = stored.tobytes()
    to_float32(stored, dtype)[...] = 7
    assert stored.tobytes() == kept


@pytest.mark.parametrize(
    ("dtype", "largest", "beyond"),
    [
        ("float16", 65504.0, np.inf),
        ("bfloat16", 3.3895314e38, np.inf),
        ("float8_e4m3", 240.0, np.inf),
        ("float8_e5m2", 57344.0, np.inf),
        ("float8_e4m3fn", 448.0, np.nan),
    ],
)
def test_too_large_a_float_overflows_and_does_not_saturate(dtype, largest, beyond):
    dtype = as_dtype(dtype)
    assert (dtype.max, dtype.min) == (pytest.approx(largest, rel=1e-6), pytest.approx(-largest, rel=1e-6))
    written = to_float32(convert(np.float32([largest, -largest, 3.4028235e38, -3.4028235e38, np.inf]), dtype), dtype)
    np.testing.assert_array_equal(written, np.float32([largest, -largest, beyond, -beyond, beyond]))


def test_tfloat32_keeps_ten_bits_of_mantissa():
    random = np.random.default_rng(0).integers(0, 2**32, 20_000, dtype=np.uint32).view(np.float32)
    values = np.concatenate([random[np.isfinite(random)], np.float32([1 + 2**-11, 1 + 3 * 2**-11, 0.0, -0.0])])
    values = values[np.abs(values) <= dtypes.tfloat32.max]
    step = np.exp2(np.maximum(np.frexp(values.astype(np.float64))[1] - 1, -126) - 10)
    # Division by a power of two is exact in float64, and rint goes to even.
    same(convert(values, dtypes.tfloat32), (np.rint(values / step) * step).astype(np.float32))
    same(to_float32(values, dtypes.tfloat32), convert(values, dtypes.tfloat32))
    same(
        convert(np.float32([np.inf, -np.inf, np.nan, 3.4028235e38]), dtypes.tfloat32),
        np.float32("inf -inf nan inf".split()),
    )


def nearest_even(value: float) -> int:
    return round(Fraction(value))


@pytest.mark.parametrize("dtype", INTEGERS)
def test_a_float_becomes_the_nearest_even_integer_in_range(dtype):
    bounds = [float(dtype.min), float(dtype.max)]
    values = np.float32(
        [-2.5, -1.5, -0.5, -0.49, 0.5, 0.51, 1.5, 2.5, 1e9 + 64, -0.0, *bounds, *np.float32(bounds) * 1.5]
    )
    values = np.concatenate([values, np.nextafter(values, np.float32(np.inf)), np.float32([3e38, -3e38])])
    expected = [min(max(nearest_even(float(value)), dtype.min), dtype.max) for value in values]
    assert convert(values, dtype).tolist() == expected
    assert convert(values.astype(np.float64), dtype).tolist() == expected
    assert convert(np.float32([np.inf, -np.inf, np.nan]), dtype).tolist() == [dtype.max, dtype.min, 0]
    assert convert(values, dtype).dtype == dtype.storage


@pytest.mark.parametrize("source", INTEGERS)
@pytest.mark.parametrize("dtype", INTEGERS)
def test_an_integer_saturates_or_keeps_its_low_bits(source, dtype):
    values = np.array([source.min, source.min // 2, 0, 1, 77, source.max // 2, source.max], dtype=source.storage)
    assert convert(values, dtype).tolist() == [min(max(int(value), dtype.min), dtype.max) for value in values]
    modulus = 2 ** (8 * dtype.itemsize)
    wrapped = [(int(value) - dtype.min) % modulus + dtype.min for value in values]
    assert convert_bits(values, dtype).tolist() == wrapped


@pytest.mark.parametrize("source", INTEGERS)
def test_an_integer_becomes_the_nearest_float(source):
    values = np.array([source.min, 0, 3, source.max, source.max - 1], dtype=source.storage)
    expected = torch.tensor(values.tolist(), dtype=torch.float64).to(torch.float32)
    same(to_float32(values, source), expected.numpy())
    same(convert(values, dtypes.bfloat16), expected.to(torch.bfloat16).float().numpy().astype(ml_dtypes.bfloat16))


def test_a_bool_is_what_is_not_zero():
    written = convert(np.float32([0, -0.0, 0.25, 2, np.nan, -1]), dtypes.bool_)
    assert written.tolist() == [False, False, True, True, True, True]
    same(to_float32(written, dtypes.bool_), np.float32([0, 0, 1, 1, 1, 1]))
    assert convert(written, dtypes.int8).tolist() == [0, 0, 1, 1, 1, 1]


def test_from_one_narrow_float_to_another():
    stored = np.arange(65536, dtype=np.uint16).view(ml_dtypes.bfloat16)
    with np.errstate(all="ignore"):
        same(convert(stored, dtypes.float8_e4m3), stored.astype(np.float32).astype(ml_dtypes.float8_e4m3))
        same(convert(stored, dtypes.float16), stored.astype(np.float32).astype(np.float16))
    assert convert(stored, dtypes.bfloat16) is stored


@pytest.mark.parametrize("dtype", [dtype for dtype in ALL_DTYPES if not dtype.is_packed])
def test_storing_is_converting_and_assigning(dtype, without_or_with_torch):
    values = np.linspace(-300, 300, 1024, dtype=np.float32).reshape(32, 32)
    values[3, 4] = np.nan
    read_only = values.copy()
    read_only.flags.writeable = False
    for given in (values, values.T, values[::-1], values[:, ::-1], read_only, values.astype(np.float64)):
        memory = np.zeros((40, 50, dtype.itemsize), np.uint8)
        for out in (memory[2:34, 7:39], memory[33:1:-1, 7:39], memory[2:34, 38:6:-1]):
            out = np.ndarray((32, 32), dtype.storage, memory, out.ctypes.data - memory.ctypes.data, out.strides[:2])
            store(given, dtype, out)
            same(out, convert(given, dtype))
        assert not memory[:2].any() and not memory[34:].any() and not memory[:, :6].any() and not memory[:, 40:].any()


@pytest.mark.parametrize("dtype", [dtypes.bfloat16, dtypes.float16])
@pytest.mark.parametrize("offset", [0, 2, 64])
def test_storing_over_the_values_themselves(dtype, offset, without_or_with_torch):
    memory = np.zeros(4096, np.uint8)
    values = np.ndarray((16, 16), np.float32, memory, 256, (64, 4))
    values[...] = np.arange(256).reshape(16, 16)
    expected = convert(values.copy(), dtype)
    out = np.ndarray((16, 16), dtype.storage, memory, 256 + offset, (32, 2))
    store(values, dtype, out)
    same(out, expected)


def test_float32_is_never_copied():
    values = np.ones((4, 8), np.float32)
    assert to_float32(values, dtypes.float32) is values and convert(values, dtypes.float32) is values


@pytest.mark.parametrize("dtype", [dtype for dtype in ALL_DTYPES if not dtype.is_packed])
def test_shapes_are_kept_down_to_none_and_empty(dtype):
    for shape in [(), (0, 3), (2, 0), (2, 3, 4)]:
        written = convert(np.ones(shape, np.float32), dtype)
        assert written.shape == shape and written.dtype == dtype.storage
        read = to_float32(written, dtype)
        assert read.shape == shape and read.dtype == np.float32 and (read == 1).all()


@pytest.mark.parametrize("dtype", [dtype for dtype in ALL_DTYPES if dtype.is_packed])
def test_packed_elements_are_neither_read_nor_cast(dtype):
    stored = np.zeros(3, dtype.storage)
    assert convert(stored, dtype) is stored
    with pytest.raises(ValueError, match="nc_matmul_mx"):
        to_float32(stored, dtype)
    with pytest.raises(ValueError, match="quantize_mx"):
        convert(np.zeros(3, np.float32), dtype)


def test_a_dtype_is_its_name():
    assert dtypes.bfloat16 == "bfloat16" and str(dtypes.bfloat16) == "bfloat16" and f"{dtypes.bool_}" == "bool"
    assert {dtypes.float32: 1}["float32"] == 1
    assert (repr(dtypes.float32), repr(dtypes.bool_)) == ("nl.float32", "nl.bool_")


@pytest.mark.parametrize("dtype", ALL_DTYPES)
def test_there_is_one_object_per_type(dtype):
    for same_type in (
        copy.deepcopy(dtype),
        pickle.loads(pickle.dumps(dtype)),
        DType(str(dtype)),
        as_dtype(str(dtype)),
    ):
        assert same_type is dtype
    assert dtype.itemsize == dtype.storage.itemsize
    assert dtype.is_float + dtype.is_integer + dtype.is_packed == (dtype != "bool")


@pytest.mark.parametrize(
    ("given", "name"),
    [
        (np.float32, "float32"),
        (np.dtype("int16"), "int16"),
        (np.dtype(bool), "bool"),
        (np.bool_, "bool"),
        (bool, "bool"),
        ("bool_", "bool"),
        (ml_dtypes.bfloat16, "bfloat16"),
        (np.dtype(ml_dtypes.float8_e4m3), "float8_e4m3"),
        (torch.float8_e4m3fn, "float8_e4m3fn"),
        (torch.bfloat16, "bfloat16"),
        (torch.bool, "bool"),
        (torch.uint16, "uint16"),
        ("float4_e2m1fn_x4", "float4_e2m1fn_x4"),
    ],
)
def test_what_names_a_dtype(given, name):
    assert as_dtype(given) is as_dtype(name)


def test_jax_types_name_dtypes():
    jnp = pytest.importorskip("jax.numpy")
    assert as_dtype(jnp.bfloat16) is dtypes.bfloat16 and as_dtype(jnp.int8) is dtypes.int8


@pytest.mark.parametrize("given", [np.float64, np.dtype("int64"), torch.int64, "float64", torch.float64, np.uint64])
def test_64_bit_types_are_refused_with_the_way_out(given):
    with pytest.raises(ValueError, match="convert to (float|int|uint)32"):
        as_dtype(given)


@pytest.mark.parametrize("given", ["fp32", torch.complex64, float, int, None, 32, [1], {}, torch.float4_e2m1fn_x2])
def test_what_names_no_dtype_is_refused(given):
    with pytest.raises(ValueError, match="no NKI dtype; there are float32, tfloat32, bfloat16"):
        as_dtype(given)
