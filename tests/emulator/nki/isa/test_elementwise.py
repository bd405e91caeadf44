"""tensor_tensor, tensor_scalar, scalar_tensor_tensor, reciprocal: against NumPy, as the API reference defines them."""

import numpy as np
import pytest

import nki.isa as nisa
import nki.language as nl
from tests.emulator.nki.isa.issuing import (
    FLOATS,
    INTEGERS,
    cast,
    issued,
    normal,
    out,
    psum,
    refusal,
    run,
    sbuf,
    some,
    tile,
)


BINARY = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "equal": np.equal,
    "not_equal": np.not_equal,
    "greater_equal": np.greater_equal,
    "greater": np.greater,
    "less_equal": np.less_equal,
    "less": np.less,
    "logical_and": np.logical_and,
    "logical_or": np.logical_or,
    "logical_xor": np.logical_xor,
}
BITWISE = {"bitwise_and": np.bitwise_and, "bitwise_or": np.bitwise_or, "bitwise_xor": np.bitwise_xor}


def float32(array):
    return array.astype(np.float32)


# tensor_tensor


@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
@pytest.mark.parametrize("op", list(BINARY))
def test_operators_of_two_tensors(op, target):
    x, y = some("float32", 128, 40), some("float32", 128, 40, seed=1)
    result = issued(lambda dst, a, b: nisa.tensor_tensor(dst, a, b, getattr(nl, op)), x, y, target=target)
    np.testing.assert_array_equal(result, float32(BINARY[op](x, y)))


@pytest.mark.parametrize("out_dtype", ["float32", "bfloat16", "float8_e4m3", "int8", "uint16"])
@pytest.mark.parametrize("in_dtype", [*FLOATS, *INTEGERS])
def test_tensors_are_cast_to_float32_and_back(in_dtype, out_dtype):
    x, y = some(in_dtype, 100, 16), some("bfloat16", 100, 16, seed=1)
    result = issued(lambda dst, a, b: nisa.tensor_tensor(dst, a, b, nl.subtract), x, y, dtype=out_dtype)
    np.testing.assert_array_equal(result, cast(float32(x) - float32(y), out_dtype))


@pytest.mark.parametrize("buffer, inputs", [("psum", "sbuf"), ("sbuf", "psum"), ("psum", "psum")])
def test_one_tensor_may_be_in_psum(buffer, inputs):
    x, y = normal(128, 64), normal(128, 64, seed=1)
    emit = lambda dst, a, b: nisa.tensor_tensor(dst, a, b, nl.multiply)  # noqa: E731
    np.testing.assert_array_equal(issued(emit, x, y, buffer=buffer, inputs=inputs), x * y)


def test_elements_count_and_not_dimensions():
    x, y = normal(32, 4, 6), normal(32, 24, seed=1)
    result = issued(lambda dst, a, b: nisa.tensor_tensor(dst, a, b, nl.add), x, y, shape=(32, 2, 3, 4))
    np.testing.assert_array_equal(result.reshape(32, 24), x.reshape(32, 24) + y)


def test_strided_and_repeated_views():
    x, y = normal(64, 32), normal(64, 1, seed=1)

    def emit(dst, a, b):
        nisa.tensor_tensor(dst[:, ::2], a[:, 1::2], b.broadcast(1, 16), nl.add)
        nisa.tensor_tensor(dst[:, 1::2], a[:, ::2], b.broadcast(1, 16), nl.subtract)

    result = issued(emit, x, y)
    np.testing.assert_array_equal(result[:, ::2], x[:, 1::2] + y)
    np.testing.assert_array_equal(result[:, 1::2], x[:, ::2] - y)


def test_nan_and_infinity_of_two_tensors():
    x = np.tile(np.array([np.nan, np.inf, -np.inf, 1.0], np.float32), (16, 4))
    y = np.tile(np.repeat(np.array([np.nan, np.inf, -np.inf, 1.0], np.float32), 4), (16, 1))
    for op in ("add", "multiply", "maximum", "equal", "less"):
        result = issued(lambda dst, a, b, op=op: nisa.tensor_tensor(dst, a, b, getattr(nl, op)), x, y)
        with np.errstate(all="ignore"):
            np.testing.assert_array_equal(result, float32(BINARY[op](x, y)))


@pytest.mark.parametrize("op", list(BINARY))
@pytest.mark.parametrize("dtype", ["int32", "uint32"])
def test_words_are_computed_exactly_on_gpsimd(op, dtype):
    info = np.iinfo(dtype)
    generator = np.random.default_rng(0)
    x, y = (generator.integers(info.min, info.max, (128, 32), dtype=dtype, endpoint=True) for _ in range(2))
    y[:, ::4] = x[:, ::4]
    result = issued(lambda dst, a, b: nisa.tensor_tensor(dst, a, b, getattr(nl, op)), x, y)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(result, BINARY[op](x, y).astype(dtype))


def test_words_of_two_kinds():
    x = np.full((16, 8), -5, np.int32)
    y = np.full((16, 8), 2**31 + 3, np.uint32)
    result = issued(lambda dst, a, b: nisa.tensor_tensor(dst, a, b, nl.add), x, y)
    np.testing.assert_array_equal(result, 2**31 - 2)


@pytest.mark.parametrize("where", ["engine", "psum"])
def test_words_on_the_vector_engine_are_rounded(where):
    x, y = np.full((16, 8), 2**24, np.int32), np.ones((16, 8), np.int32)
    engine = nisa.engine.vector if where == "engine" else nisa.engine.unknown
    result = issued(
        lambda dst, a, b: nisa.tensor_tensor(dst, a, b, nl.add, engine=engine),
        x,
        y,
        buffer="psum" if where == "psum" else "sbuf",
    )
    np.testing.assert_array_equal(result, 2**24)


@pytest.mark.parametrize("op", list(BITWISE))
@pytest.mark.parametrize("dtype", INTEGERS)
def test_bits_of_two_tensors(op, dtype):
    info = np.iinfo(dtype)
    generator = np.random.default_rng(0)
    x, y = (generator.integers(info.min, info.max, (64, 32), dtype=dtype, endpoint=True) for _ in range(2))
    result = issued(lambda dst, a, b: nisa.tensor_tensor(dst, a, b, getattr(nl, op)), x, y)
    np.testing.assert_array_equal(result, BITWISE[op](x, y))


def test_power_of_two_tensors():
    x, y = np.abs(normal(128, 16)), normal(128, 16, seed=1)
    result = issued(lambda dst, a, b: nisa.tensor_tensor(dst, a, b, nl.power), x, y)
    np.testing.assert_allclose(result, x.astype(np.float64) ** y, rtol=1e-5)


def test_results_may_overwrite_operands():
    x = normal(128, 64)

    def kernel(values):
        data = tile(values)
        nisa.tensor_tensor(dst=data[:, 1:], data1=data[:, :-1], data2=data[:, 1:], op=nl.add)
        return out(data)

    np.testing.assert_array_equal(run(kernel, x)[:, 1:], x[:, :-1] + x[:, 1:])


# tensor_scalar


@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
@pytest.mark.parametrize("is_reversed", [False, True])
@pytest.mark.parametrize("kind", ["number", "tensor", "psum"])
@pytest.mark.parametrize("op", ["subtract", "multiply", "maximum", "less", "logical_and"])
def test_operators_with_one_number_per_partition(op, kind, is_reversed, target):
    x, scalars = some("float32", 128, 24), some("float32", 128, 1, seed=1)

    def emit(dst, data, numbers):
        if kind == "psum":
            numbers = nl.ndarray((128, 1), nl.float32, buffer=nl.psum)
            nisa.memset(dst=numbers, value=1.5)
        operand = 1.5 if kind == "number" else numbers
        nisa.tensor_scalar(dst, data, getattr(nl, op), operand, reverse0=is_reversed)

    operand = scalars if kind == "tensor" else np.float32(1.5)
    expected = BINARY[op](operand, x) if is_reversed else BINARY[op](x, operand)
    np.testing.assert_array_equal(issued(emit, x, scalars, target=target), float32(expected))


@pytest.mark.parametrize("reverse1", [False, True])
@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS])
def test_two_operators_one_after_the_other(dtype, reverse1):
    x = some(dtype, 100, 2, 12)
    result = issued(
        lambda dst, data: nisa.tensor_scalar(dst, data, nl.multiply, 0.5, False, nl.subtract, 3.0, reverse1),
        x,
        dtype="float32",
    )
    inner = float32(x) * np.float32(0.5)
    np.testing.assert_array_equal(result, 3 - inner if reverse1 else inner - 3)


@pytest.mark.parametrize(
    "op, function, target",
    [
        ("abs", np.abs, "trn2"),
        ("reciprocal", lambda x: 1 / x, "trn2"),
        ("rsqrt", lambda x: 1 / np.sqrt(x), "trn2"),
        ("square", np.square, "trn3"),
        ("relu", lambda x: np.maximum(x, 0), "trn3"),
    ],
)
@pytest.mark.parametrize("operand", [None, 0, 0.0])
def test_operators_of_one_operand(op, function, target, operand):
    x = normal(128, 16)
    x = np.abs(x) if op == "rsqrt" else x
    result = issued(lambda dst, data: nisa.tensor_scalar(dst, data, getattr(nl, op), operand), x, target=target)
    np.testing.assert_allclose(result, function(x), rtol=1e-6)


def test_the_first_operator_may_be_left_out():
    x = normal(32, 8)
    result = issued(lambda dst, data: nisa.tensor_scalar(dst, data, None, None, op1=nl.maximum, operand1=0.25), x)
    np.testing.assert_array_equal(result, np.maximum(x, np.float32(0.25)))


@pytest.mark.parametrize(
    "stages", [("multiply", "add"), ("multiply", None), ("add", None)], ids=["multiply-add", "multiply", "add"]
)
def test_what_the_scalar_engine_has(stages):
    first, second = stages
    x = normal(128, 16)
    second_stage = {} if second is None else {"op1": getattr(nl, second), "operand1": 1.0}
    result = issued(
        lambda dst, data: nisa.tensor_scalar(
            dst, data, getattr(nl, first), 2.0, engine=nisa.engine.scalar, **second_stage
        ),
        x,
    )
    expected = BINARY[first](x, np.float32(2))
    np.testing.assert_array_equal(result, expected if second is None else expected + 1)


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("op", ["bitwise_and", "bitwise_or", "bitwise_xor", "left_shift", "right_shift"])
@pytest.mark.parametrize("is_tensor", [False, True])
def test_bits_with_one_number_per_partition(op, dtype, is_tensor):
    info = np.iinfo(dtype)
    generator = np.random.default_rng(0)
    x = generator.integers(info.min, info.max, (128, 16), dtype=dtype, endpoint=True)
    number = 3 if "shift" in op else 0x55
    numbers = np.full((128, 1), number, dtype)
    result = issued(
        lambda dst, data, tensor: nisa.tensor_scalar(dst, data, getattr(nl, op), tensor if is_tensor else number),
        x,
        numbers,
    )
    if op == "right_shift":  # logical: zeros come in, whatever the sign
        bits = f"u{x.dtype}".replace("uu", "u")
        expected = (x.view(bits) >> np.array(number, bits)).view(dtype)
    else:
        expected = getattr(np, op)(x, np.array(number, dtype))
    np.testing.assert_array_equal(result, expected)


def test_two_bit_operators():
    x = np.arange(16 * 8, dtype=np.uint32).reshape(16, 8)
    result = issued(
        lambda dst, data: nisa.tensor_scalar(dst, data, nl.right_shift, 2, op1=nl.bitwise_and, operand1=7), x
    )
    np.testing.assert_array_equal(result, x >> 2 & 7)


def test_all_bits_inverted():
    x = np.arange(16 * 8, dtype=np.int32).reshape(16, 8)
    np.testing.assert_array_equal(issued(lambda dst, data: nisa.tensor_scalar(dst, data, nl.invert, None), x), ~x)


@pytest.mark.parametrize("dtype", ["int32", "uint32"])
def test_addresses_are_exact(dtype):
    x = np.arange(128 * 4, dtype=dtype).reshape(128, 4) + 2**24
    base = np.arange(128, dtype=np.int32)[:, None] * 1001
    result = issued(
        lambda dst, data, b: nisa.tensor_scalar(dst, data, nl.multiply, 3, op1=nl.add, operand1=b), x, base
    )
    np.testing.assert_array_equal(result, x * 3 + base)


# scalar_tensor_tensor, reciprocal


@pytest.mark.parametrize("reverse0, reverse1", [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize("is_tensor", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int16"])
def test_a_number_and_a_tensor(dtype, is_tensor, reverse0, reverse1):
    x, y, numbers = some(dtype, 100, 3, 8), some("float16", 100, 24, seed=1), some("bfloat16", 100, 1, seed=2)

    def emit(dst, data, other, per_partition):
        nisa.scalar_tensor_tensor(
            dst,
            data,
            nl.subtract,
            per_partition if is_tensor else 2.0,
            nl.subtract,
            other,
            reverse0=reverse0,
            reverse1=reverse1,
        )

    a, b = float32(x).reshape(100, 24), float32(numbers) if is_tensor else np.float32(2)
    inner = b - a if reverse0 else a - b
    expected = float32(y) - inner if reverse1 else inner - float32(y)
    result = issued(emit, x, y, numbers, dtype="float32")
    np.testing.assert_array_equal(result.reshape(100, 24), expected)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32"])
@pytest.mark.parametrize("buffer", ["sbuf", "psum"])
def test_reciprocal(dtype, buffer):
    x = some(dtype, 128, 32)
    x[0, :4] = 0
    result = issued(lambda dst, data: nisa.reciprocal(dst, data), x, dtype="float32", buffer=buffer, inputs=buffer)
    with np.errstate(divide="ignore"):
        np.testing.assert_array_equal(result, np.float32(1) / float32(x))


# What is refused


@pytest.mark.parametrize(
    "words, emit",
    [
        ("op=nl.exp is no arithmetic", lambda: nisa.tensor_tensor(sbuf(8, 4), sbuf(8, 4), sbuf(8, 4), nl.exp)),
        ("has one operand", lambda: nisa.tensor_tensor(sbuf(8, 4), sbuf(8, 4), sbuf(8, 4), nl.abs)),
        ("is no operator", lambda: nisa.tensor_tensor(sbuf(8, 4), sbuf(8, 4), sbuf(8, 4), np.add)),
        ("cannot both be in PSUM", lambda: nisa.tensor_tensor(sbuf(8, 4), psum(8, 4), psum(8, 4), nl.add)),
        ("GpSimd cannot access PSUM", lambda: nisa.tensor_tensor(psum(8, 4), sbuf(8, 4), sbuf(8, 4), nl.power)),
        ("engine=scalar", lambda: nisa.tensor_tensor(sbuf(8, 4), sbuf(8, 4), sbuf(8, 4), nl.add, nisa.engine.scalar)),
        ("is one of", lambda: nisa.tensor_tensor(sbuf(8, 4), sbuf(8, 4), sbuf(8, 4), nl.add, "vector")),
        ("take integers", lambda: nisa.tensor_tensor(sbuf(8, 4), sbuf(8, 4), sbuf(8, 4), nl.bitwise_or)),
        ("NeuronCore-v4", lambda: nisa.tensor_tensor(sbuf(8, 4), sbuf(8, 4), sbuf(8, 4), nl.abs_max)),
        ("operands have the same numbers", lambda: nisa.tensor_tensor(sbuf(8, 4), sbuf(8, 4), sbuf(8, 1), nl.add)),
        ("needs operand0", lambda: nisa.tensor_scalar(sbuf(8, 4), sbuf(8, 4), nl.add, None)),
        ("without op1", lambda: nisa.tensor_scalar(sbuf(8, 4), sbuf(8, 4), nl.add, 1.0, operand1=2.0)),
        ("must be None or 0", lambda: nisa.tensor_scalar(sbuf(8, 4), sbuf(8, 4), nl.abs, 1.0)),
        ("of two kinds", lambda: nisa.tensor_scalar(sbuf(8, 4), sbuf(8, 4), nl.add, 1, False, nl.bitwise_or, 1)),
        ("must be float32", lambda: nisa.tensor_scalar(sbuf(8, 4), sbuf(8, 4), nl.add, sbuf(8, 1, dtype="bfloat16"))),
        ("shape (8, 1)", lambda: nisa.tensor_scalar(sbuf(8, 4), sbuf(8, 4), nl.add, sbuf(8, 4))),
        ("must be an integer", lambda: nisa.tensor_scalar(*[sbuf(8, 4, dtype="int8")] * 2, nl.bitwise_or, 1.5)),
        ("engine=gpsimd", lambda: nisa.tensor_scalar(*[sbuf(8, 4)] * 2, nl.add, 1.0, engine=nisa.engine.gpsimd)),
        ("engine=vector", lambda: nisa.tensor_scalar(*[sbuf(8, 4)] * 2, nl.rsqrt, 0, engine=nisa.engine.vector)),
        ("Scalar Engine", lambda: nisa.tensor_scalar(*[sbuf(8, 4)] * 2, nl.maximum, 1.0, engine=nisa.engine.scalar)),
        ("NeuronCore-v4", lambda: nisa.tensor_scalar(sbuf(8, 4), sbuf(8, 4), nl.square, 0)),
        (
            "arithmetic operators",
            lambda: nisa.scalar_tensor_tensor(*[sbuf(8, 4, dtype="int8")] * 2, nl.bitwise_or, 1, nl.add, sbuf(8, 4)),
        ),
        (
            "cannot both be in PSUM",
            lambda: nisa.scalar_tensor_tensor(sbuf(8, 4), psum(8, 4), nl.add, 1.0, nl.add, psum(8, 4)),
        ),
        ("operands are tensors", lambda: nisa.scalar_tensor_tensor(sbuf(8, 4), sbuf(8, 4), nl.add, 1.0, nl.add, 2.0)),
        (
            "bring it on chip",
            lambda: nisa.reciprocal(sbuf(8, 4), nl.ndarray((8, 4), nl.float32, buffer=nl.shared_hbm)),
        ),
    ],
)
def test_what_is_refused(words, emit):
    assert words in refusal(emit)
