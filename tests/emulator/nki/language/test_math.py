"""Operators called on tiles, against NumPy's and torch's functions."""

import math

import ml_dtypes
import numpy as np
import pytest
import torch

from optimum_neuron_torch.emulator.nki.errors import NkiError
from tests.emulator.nki import by_numpy
from tests.emulator.nki.language.tiles import nki, nl, normal, on_tiles


erf = np.vectorize(math.erf, otypes=[np.float64])


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


UNARY = {
    "abs": np.abs,
    "square": np.square,
    "exp": np.exp,
    "log": np.log,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "reciprocal": np.reciprocal,
    "tanh": np.tanh,
    "sigmoid": sigmoid,
    "relu": lambda x: np.maximum(x, 0),
    "gelu": lambda x: x * (1 + erf(x / math.sqrt(2))) / 2,
    "gelu_apprx_sigmoid": lambda x: x * sigmoid(1.702 * x),
    "gelu_apprx_tanh": lambda x: x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2,
    "gelu_dx": lambda x: (1 + erf(x / math.sqrt(2))) / 2 + x * np.exp(-x * x / 2) / math.sqrt(2 * math.pi),
    "gelu_apprx_sigmoid_dx": lambda x: (s := sigmoid(1.702 * x)) * (1 + 1.702 * x * (1 - s)),
    "silu": lambda x: x * sigmoid(x),
    "silu_dx": lambda x: (s := sigmoid(x)) * (1 + x * (1 - s)),
    "softplus": lambda x: np.logaddexp(x, 0),
    "mish": lambda x: x * np.tanh(np.logaddexp(x, 0)),
    "erf": erf,
    "erf_dx": lambda x: 2 / math.sqrt(math.pi) * np.exp(-x * x),
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "arctan": np.arctan,
    "ceil": np.ceil,
    "floor": np.floor,
    "trunc": np.trunc,
    "negative": np.negative,
    "sign": np.sign,
    "copy": lambda x: x,
}
POSITIVE = {"log", "sqrt", "rsqrt"}
BINARY = {
    name: by_numpy.BINARY[name]
    for name in (
        "add subtract multiply divide maximum minimum fmod mod equal not_equal less less_equal greater greater_equal"
    ).split()
}


def inputs(name):
    # Within pi/2, where the Scalar Engine's arctan is defined.
    values = np.clip(normal(128, 3, 16), -1.5, 1.5)
    return np.abs(values) + np.float32(0.01) if name in POSITIVE else values


@pytest.mark.parametrize("name", UNARY)
def test_functions_of_a_tile(name):
    values = inputs(name)
    actual = on_tiles(getattr(nl, name), values)
    assert actual.dtype == np.float32
    np.testing.assert_allclose(actual, UNARY[name](values.astype(np.float64)), rtol=3e-6, atol=1e-6)


@pytest.mark.parametrize("name", UNARY)
def test_a_dtype_is_the_second_parameter(name):
    values = inputs(name).astype(ml_dtypes.bfloat16)
    function, exact = getattr(nl, name), UNARY[name](values.astype(np.float64))
    same = on_tiles(function, values)
    assert same.dtype == ml_dtypes.bfloat16
    np.testing.assert_allclose(same.astype(np.float64), exact, rtol=2**-8, atol=1e-6)
    for call in (lambda x: function(x, nl.float16), lambda x: function(x, dtype=nl.float16)):
        cast = on_tiles(call, values)
        assert cast.dtype == np.float16
        np.testing.assert_allclose(cast.astype(np.float64), exact, rtol=2**-10, atol=1e-6)


def test_sine_is_right_beyond_pi():
    # The Scalar Engine alone is not: nl.sin reduces its argument first.
    values = np.linspace(-30, 30, 128 * 4, dtype=np.float32).reshape(128, 4)
    np.testing.assert_allclose(on_tiles(nl.sin, values), np.sin(values.astype(np.float64)), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", BINARY)
def test_functions_of_two_tiles_or_a_tile_and_a_number(name):
    x, y = normal(128, 4, 8), normal(128, 4, 8, seed=1)
    y[:, 0] = x[:, 0]
    function, reference = getattr(nl, name), BINARY[name]
    for call, expected in [
        (lambda a, b: function(a, b), reference(x, y)),
        (lambda a, b: function(a, 0.5), reference(x, np.float32(0.5))),
        (lambda a, b: function(0.5, b), reference(np.float32(0.5), y)),
        (lambda a, b: function(x=a, y=b, dtype=nl.float32), reference(x, y)),
    ]:
        actual = on_tiles(call, x, y)
        assert actual.dtype == np.float32
        np.testing.assert_allclose(actual, expected.astype(np.float32), rtol=1e-6, atol=1e-7)


def test_power():
    x, y = np.abs(normal(128, 16)), normal(128, 16, seed=1)
    np.testing.assert_allclose(on_tiles(nl.power, x, y), np.power(x, y), rtol=2e-6)
    np.testing.assert_allclose(on_tiles(lambda a: nl.power(a, 2.0), x), x * x, rtol=2e-6)


@pytest.mark.parametrize("name", ["abs_max", "abs_min"])
def test_magnitudes_on_trn3(name, monkeypatch):
    x, y = normal(128, 16), normal(128, 16, seed=1)
    y[:, 0] = -x[:, 0]
    compare = np.greater if name == "abs_max" else np.less
    expected = np.where(compare(np.abs(x), np.abs(y)), x, y)
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", "trn3")
    np.testing.assert_array_equal(on_tiles(getattr(nl, name), x, y), expected)
    # The documentation's own call: one element per partition against a row.
    first = on_tiles(getattr(nl, name), x, y[:, :1].copy())
    np.testing.assert_array_equal(first, np.where(compare(np.abs(x), np.abs(y[:, :1])), x, y[:, :1]))
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", "trn2")
    with pytest.raises(NkiError, match="v4"):
        on_tiles(getattr(nl, name), x, y)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32])
def test_bits(dtype):
    info = np.iinfo(dtype)
    random = np.random.default_rng(0)
    x, y = (random.integers(info.min, info.max, (128, 16), dtype=dtype, endpoint=True) for _ in range(2))
    amounts = random.integers(0, 8 * x.itemsize, (128, 16)).astype(dtype)
    unsigned = x.view(f"u{x.itemsize}")
    for call, expected in [
        (lambda a, b, s: nl.bitwise_and(a, b), x & y),
        (lambda a, b, s: nl.bitwise_or(a, b), x | y),
        (lambda a, b, s: nl.bitwise_xor(a, b), x ^ y),
        (lambda a, b, s: nl.bitwise_and(a, 0x5A), x & dtype(0x5A)),
        (lambda a, b, s: nl.invert(a), ~x),
        (lambda a, b, s: nl.left_shift(a, s), x << amounts),
        (lambda a, b, s: nl.right_shift(a, s), (unsigned >> amounts.view(unsigned.dtype)).view(dtype)),
        (lambda a, b, s: nl.right_shift(a, 3), (unsigned >> 3).view(dtype)),
    ]:
        actual = on_tiles(call, x, y, amounts)
        assert actual.dtype == dtype
        np.testing.assert_array_equal(actual, expected)


def test_logic():
    x, y = (np.random.default_rng(seed).integers(0, 2, (128, 16)).astype(np.float32) for seed in (0, 1))
    for name in ("logical_and", "logical_or", "logical_xor"):
        np.testing.assert_array_equal(on_tiles(getattr(nl, name), x, y), getattr(np, name)(x, y))
    np.testing.assert_array_equal(on_tiles(nl.logical_not, x), np.logical_not(x))


def test_a_comparison_has_the_dtype_of_its_tile_or_the_given_one():
    x, y = normal(128, 8).astype(ml_dtypes.bfloat16), normal(128, 8, seed=1).astype(ml_dtypes.bfloat16)
    assert on_tiles(nl.less, x, y).dtype == ml_dtypes.bfloat16
    flags = on_tiles(lambda a, b: nl.less(a, b, dtype=nl.uint8), x, y)
    assert flags.dtype == np.uint8
    np.testing.assert_array_equal(flags, x < y)


@pytest.mark.parametrize("name", ["add", "subtract", "multiply"])
def test_integers_of_32_bits_are_exact(name):
    random = np.random.default_rng(0)
    x, y = (random.integers(-(2**15), 2**15, (128, 16)).astype(np.int32) * 1000 + 1 for _ in range(2))
    if name == "multiply":
        y = np.full_like(y, 57)
    np.testing.assert_array_equal(on_tiles(getattr(nl, name), x, y), getattr(np, name)(x, y))


PROMOTIONS = [
    ("float32", "bfloat16", "float32"),
    ("float16", "bfloat16", "float32"),
    ("float8_e4m3", "float16", "float16"),
    ("float8_e4m3", "bfloat16", "bfloat16"),
    ("float8_e4m3", "float8_e5m2", "bfloat16"),
    ("float32", "tfloat32", "float32"),
    ("int32", "float16", "float16"),
    ("uint16", "bfloat16", "bfloat16"),
    ("int16", "int32", "int32"),
    ("uint8", "uint16", "uint16"),
    ("uint16", "int32", "int32"),
    ("int8", "uint8", "int16"),
    ("int8", "uint16", "int32"),
    ("int32", "uint32", "float32"),
]


@pytest.mark.parametrize(("first", "second", "expected"), PROMOTIONS)
def test_promotion(first, second, expected):
    def kernel():
        x, y = (nl.zeros((128, 4), getattr(nl, dtype)) for dtype in (first, second))
        for total in (nl.add(x, y), nl.add(y, x)):
            assert total.dtype == expected
        assert nl.add(x, y, dtype=nl.float16).dtype == "float16"

    nki.simulate(kernel)()


def test_a_number_takes_the_dtype_of_the_tile():
    def kernel():
        for dtype in (nl.bfloat16, nl.int8, nl.float32):
            assert nl.add(nl.zeros((128, 4), dtype), 2).dtype == dtype
        assert nl.multiply(nl.zeros((128, 4), nl.bfloat16), 0.5).dtype == nl.bfloat16
        for fraction in (0.5, np.float32(0.5)):
            assert nl.multiply(nl.zeros((128, 4), nl.int32), fraction).dtype == nl.float32
        assert nl.multiply(nl.zeros((128, 4), nl.int32), 2.0).dtype == nl.int32

    nki.simulate(kernel)()


def test_free_dimensions_of_one_are_repeated():
    x, y = normal(128, 4, 8), normal(128, 1, 8, seed=1)
    np.testing.assert_array_equal(on_tiles(nl.add, x, y), x + y)
    np.testing.assert_array_equal(on_tiles(nl.subtract, y, x), y - x)
    column = normal(128, 1, seed=2)
    np.testing.assert_array_equal(on_tiles(nl.multiply, x[:, 0].copy(), column), x[:, 0] * column)


def test_psum_tiles_are_read():
    x, y = normal(64, 32), normal(64, 32, seed=1)

    def call(a, b):
        in_psum = nl.ndarray(a.shape, a.dtype, buffer=nl.psum)
        from nki.isa import tensor_copy

        tensor_copy(dst=in_psum, src=a)
        result = nl.add(nl.exp(in_psum), b)
        assert result.buffer == nl.sbuf
        return result

    np.testing.assert_allclose(on_tiles(call, x, y), np.exp(x) + y, rtol=1e-6)


def test_what_does_not_fit_is_refused():
    def call(function):
        def kernel():
            function(nl.zeros((128, 4), nl.float32), nl.zeros((64, 4), nl.float32), nl.zeros((128, 2, 2), nl.float32))

        return lambda: nki.simulate(kernel)()

    for function, message in [
        (lambda a, b, c: nl.add(a, b), "same number of partitions"),
        (lambda a, b, c: nl.add(a, c), "do not fit"),
        (lambda a, b, c: nl.add(1.0, 2.0), "must be a tile"),
        (lambda a, b, c: nl.exp(3.0), "must be a tile"),
        (lambda a, b, c: nl.prelu(a, 0.1), "only for op="),
        (lambda a, b, c: nl.exp(a, dtype="float64"), "convert to float32"),
        (lambda a, b, c: nl.invert(a), "bits are of integers"),
        (lambda a, b, c: nl.bitwise_and(a, a), "integer"),
    ]:
        with pytest.raises(NkiError, match=message):
            call(function)()
    for function in (lambda a, b, c: nl.add(a), lambda a, b, c: nl.exp(a, nl.float32, nl.float32)):
        with pytest.raises(TypeError):
            call(function)()


def test_where():
    x, y = normal(128, 2, 8), normal(128, 2, 8, seed=1)
    condition = (x > y).astype(np.float32)
    np.testing.assert_array_equal(on_tiles(nl.where, condition, x, y), np.where(condition, x, y))
    np.testing.assert_array_equal(on_tiles(lambda c, a: nl.where(c, a, 0.0), condition, x), np.where(condition, x, 0))
    np.testing.assert_array_equal(on_tiles(lambda c: nl.where(c, 10.0, 5.0), condition), np.where(condition, 10, 5))
    cast = on_tiles(lambda c, a, b: nl.where(c, a, b, dtype=nl.bfloat16), condition, x, y)
    assert cast.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(cast, np.where(condition, x, y).astype(ml_dtypes.bfloat16))
    rows = np.ascontiguousarray(y[:, :1])
    np.testing.assert_array_equal(on_tiles(nl.where, condition, x, rows), np.where(condition, x, rows))


def test_where_does_not_let_the_other_value_through():
    condition = np.tile(np.float32([0, 1]), (128, 4))
    x, y = np.full((128, 8), np.nan, np.float32), np.ones((128, 8), np.float32)
    x[:, 1::2] = 3
    np.testing.assert_array_equal(on_tiles(nl.where, condition, x, y), np.where(condition, 3, 1))


def test_dropout():
    values = np.abs(normal(128, 512)) + 1
    np.testing.assert_array_equal(on_tiles(lambda x: nl.dropout(x, 0.0), values), values)
    assert not on_tiles(lambda x: nl.dropout(x, 1.0), values).any()
    dropped = on_tiles(lambda x: nl.dropout(x, 0.3, dtype=nl.bfloat16), values)
    assert dropped.dtype == ml_dtypes.bfloat16
    # 65,536 draws at 0.3: a standard deviation of 0.0018.
    assert abs((dropped == 0).mean() - 0.3) < 0.01
    kept = dropped != 0
    np.testing.assert_array_equal(dropped[kept], values[kept].astype(ml_dtypes.bfloat16))
    rates = np.zeros((128, 1), np.float32)
    rates[64:] = 1
    by_partition = on_tiles(nl.dropout, values, rates)
    assert (by_partition[:64] == values[:64]).all() and not by_partition[64:].any()


def test_every_step_is_an_instruction_of_an_engine():
    with nki.simulation() as reports:
        on_tiles(lambda x: nl.divide(nl.exp(nl.add(x, 1.0)), x), np.abs(normal(128, 8)) + 1)
    issued = [(record.op, record.engine) for record in reports[0].records]
    assert issued == [
        ("dma_copy", "dma"),
        ("tensor_scalar", "vector"),
        ("activation", "scalar"),
        ("divide", "vector"),
        ("dma_copy", "dma"),
    ]
    assert reports[0].busy_us["vector"] > 0


def test_gradient_functions_are_derivatives():
    x = torch.linspace(-3, 3, 128 * 4, dtype=torch.float64).reshape(128, 4).requires_grad_()
    for name, function in [
        ("silu_dx", torch.nn.functional.silu),
        ("gelu_dx", torch.nn.functional.gelu),
        ("erf_dx", torch.erf),
    ]:
        (gradient,) = torch.autograd.grad(function(x).sum(), x)
        actual = on_tiles(getattr(nl, name), x.detach().float().numpy())
        np.testing.assert_allclose(actual, gradient.numpy(), rtol=1e-5, atol=1e-6)
