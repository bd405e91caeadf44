"""tensor_scalar_cumulative and tensor_tensor_scan: against loops over the elements, as the API reference has them."""

import numpy as np
import pytest

import nki.isa as nisa
import nki.language as nl
from tests.emulator.nki.isa.issuing import FLOATS, cast, issued, normal, out, psum, refusal, run, sbuf, some, tile


commands = nisa.reduce_cmd
FUNCTIONS = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "less": lambda x, y: np.less(x, y).astype(np.float32),
}
START = {"add": 0, "subtract": 0, "multiply": 1, "maximum": -np.inf, "minimum": np.inf}


def cumulated(values, op, start):
    register, result = np.broadcast_to(np.float32(start), values[:, 0].shape), np.empty_like(values)
    for i in range(values.shape[1]):
        register = result[:, i] = FUNCTIONS[op](values[:, i], register)
    return result


@pytest.mark.parametrize("op1", list(START))
@pytest.mark.parametrize("op0", ["multiply", "maximum"])
@pytest.mark.parametrize("is_tensor", [False, True])
def test_cumulative(op0, op1, is_tensor):
    x, numbers = normal(100, 12), normal(100, 1, seed=1)
    result = issued(
        lambda dst, src, imm: nisa.tensor_scalar_cumulative(
            dst, src, getattr(nl, op0), getattr(nl, op1), imm if is_tensor else 0.75
        ),
        x,
        numbers,
    )
    values = FUNCTIONS[op0](x, numbers if is_tensor else np.float32(0.75))
    np.testing.assert_array_equal(result, cumulated(values, op1, START[op1]))


@pytest.mark.parametrize("dtype", [*FLOATS, "int8", "int16", "uint8", "uint16"])
def test_cumulative_of_dtypes(dtype):
    x = some(dtype, 32, 2, 4)
    result = issued(lambda dst, src: nisa.tensor_scalar_cumulative(dst, src, nl.multiply, nl.maximum, 0.5), x)
    values = x.astype(np.float32).reshape(32, 8) * np.float32(0.5)
    np.testing.assert_array_equal(result.reshape(32, 8), cast(cumulated(values, "maximum", -np.inf), dtype))


@pytest.mark.parametrize("op", ["add", "subtract", "multiply", "maximum"])
def test_cumulative_goes_on(op):
    x, start = normal(64, 12), normal(64, 1, seed=1)

    def kernel(values, initial):
        src, dst = tile(values), nl.ndarray(values.shape, nl.float32)
        for columns, command, given in (
            (slice(0, 6), commands.load_reduce, tile(initial)),
            (slice(6, 12), commands.reduce, None),
        ):
            nisa.tensor_scalar_cumulative(
                dst[:, columns], src[:, columns], nl.multiply, getattr(nl, op), 1.0, given, command
            )
        return out(dst)

    np.testing.assert_array_equal(run(kernel, x, start), cumulated(x, op, start[:, 0]))


def scanned(x, y, initial, op0, op1, reverse0=False, reverse1=False):
    state, result = np.broadcast_to(np.asarray(initial, np.float32), x[:, 0].shape), np.empty_like(x)
    for i in range(x.shape[1]):
        inner = FUNCTIONS[op0](state, x[:, i]) if reverse0 else FUNCTIONS[op0](x[:, i], state)
        state = FUNCTIONS[op1](y[:, i], inner) if reverse1 else FUNCTIONS[op1](inner, y[:, i])
        result[:, i] = state
    return result


@pytest.mark.parametrize("reverse0, reverse1", [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize(
    "op0, op1", [("multiply", "add"), ("subtract", "maximum"), ("add", "subtract"), ("minimum", "less")]
)
def test_scan(op0, op1, reverse0, reverse1):
    x, y = normal(100, 10), normal(100, 10, seed=1)
    result = issued(
        lambda dst, a, b: nisa.tensor_tensor_scan(
            dst, a, b, 0.5, getattr(nl, op0), getattr(nl, op1), reverse0, reverse1
        ),
        x,
        y,
    )
    np.testing.assert_array_equal(result, scanned(x, y, 0.5, op0, op1, reverse0, reverse1))


@pytest.mark.parametrize("op1", ["add", "maximum", "minimum"])
@pytest.mark.parametrize("memory", ["sbuf", "psum"])
def test_running_sums_and_extremes(op1, memory):
    x, y, start = np.ones((128, 20), np.float32), normal(128, 20), normal(128, 1, seed=1)
    result = issued(
        lambda dst, a, b, c: nisa.tensor_tensor_scan(dst, a, b, c, nl.multiply, getattr(nl, op1)),
        x,
        y,
        start,
        inputs=memory,
    )
    np.testing.assert_array_equal(result, scanned(x, y, start[:, 0], "multiply", op1))


@pytest.mark.parametrize("dtype", [*FLOATS, "int8", "uint16", "int32"])
def test_scan_of_dtypes(dtype):
    x, y, start = some(dtype, 32, 6), some("bfloat16", 32, 6, seed=1), some(dtype, 32, 1, seed=2)
    result = issued(
        lambda dst, a, b, c: nisa.tensor_tensor_scan(dst, a, b, c, nl.maximum, nl.subtract),
        x,
        y,
        start,
        dtype="float32",
    )
    expected = scanned(
        x.astype(np.float32), y.astype(np.float32), start[:, 0].astype(np.float32), "maximum", "subtract"
    )
    np.testing.assert_array_equal(result, expected)


def cumulative(op0=nl.add, op1=nl.add, imm0=1.0, imm1=None, command=commands.reset_reduce, dtype="float32"):
    nisa.tensor_scalar_cumulative(sbuf(8, 4, dtype=dtype), sbuf(8, 4), op0, op1, imm0, imm1, command)


@pytest.mark.parametrize(
    "words, emit",
    [
        ("accumulates with", lambda: cumulative(op1=nl.logical_or)),
        ("arithmetic operators", lambda: cumulative(op0=nl.bitwise_or)),
        ("32-bit integer", lambda: cumulative(dtype="int32")),
        ("must be float32", lambda: cumulative(imm0=sbuf(8, 1, dtype="bfloat16"))),
        ("starts from a value", lambda: cumulative(command=commands.load_reduce)),
        ("only for reduce_cmd.load_reduce", lambda: cumulative(imm1=1.0)),
        ("hold nothing", lambda: cumulative(command=commands.reduce)),
        ("reduce_cmd is one of", lambda: cumulative(command=commands.idle)),
        (
            "cannot both be in PSUM",
            lambda: nisa.tensor_tensor_scan(sbuf(8, 4), psum(8, 4), psum(8, 4), 0.0, nl.multiply, nl.add),
        ),
        (
            "binary arithmetic",
            lambda: nisa.tensor_tensor_scan(sbuf(8, 4), sbuf(8, 4), sbuf(8, 4), 0.0, nl.abs, nl.add),
        ),
        (
            "arithmetic operators",
            lambda: nisa.tensor_tensor_scan(sbuf(8, 4), sbuf(8, 4), sbuf(8, 4), 0.0, nl.add, nl.bitwise_or),
        ),
        (
            "shape (8, 1)",
            lambda: nisa.tensor_tensor_scan(sbuf(8, 4), sbuf(8, 4), sbuf(8, 4), sbuf(8, 2), nl.add, nl.add),
        ),
    ],
)
def test_what_is_refused(words, emit):
    assert words in refusal(emit)
