"""activation, activation_reduce, activate2, exponential: against the functions' mathematical definitions."""

import math
import re
import warnings

import numpy as np
import pytest

import nki.isa as nisa
import nki.language as nl
from optimum_neuron_torch.emulator.nki.errors import NkiWarning
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


commands = nisa.reduce_cmd
erf = np.vectorize(math.erf)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def slope_of(function):
    return lambda x: (function(x + 1e-6) - function(x - 1e-6)) / 2e-6


def gelu(x):
    return x * (1 + erf(x / math.sqrt(2))) / 2


def gelu_by_sigmoid(x):
    return x * sigmoid(1.702 * x)


# Definitions in float64, and whether the inputs are to be positive.
DEFINITIONS = {
    "copy": (lambda x: x, False),
    "square": (np.square, False),
    "sigmoid": (sigmoid, False),
    "relu": (lambda x: np.maximum(x, 0), False),
    "gelu": (gelu, False),
    "gelu_dx": (slope_of(gelu), False),
    "gelu_apprx_tanh": (
        lambda x: x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
        False,
    ),
    "gelu_apprx_sigmoid": (gelu_by_sigmoid, False),
    "gelu_apprx_sigmoid_dx": (slope_of(gelu_by_sigmoid), False),
    "silu": (lambda x: x * sigmoid(x), False),
    "silu_dx": (slope_of(lambda x: x * sigmoid(x)), False),
    "tanh": (np.tanh, False),
    "softplus": (lambda x: np.log1p(np.exp(x)), False),
    "mish": (lambda x: x * np.tanh(np.log1p(np.exp(x))), False),
    "erf": (erf, False),
    "erf_dx": (lambda x: 2 / math.sqrt(math.pi) * np.exp(-x * x), False),
    "exp": (np.exp, False),
    "log": (np.log, True),
    "sin": (np.sin, False),
    "arctan": (np.arctan, False),
    "sqrt": (np.sqrt, True),
    "rsqrt": (lambda x: 1 / np.sqrt(x), True),
    "reciprocal": (lambda x: 1 / x, True),
    "sign": (np.sign, False),
    "abs": (np.abs, False),
}


@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
@pytest.mark.parametrize("op", list(DEFINITIONS))
def test_functions(op, target):
    function, is_positive = DEFINITIONS[op]
    x = np.clip(normal(128, 30), -1.5, 1.5)
    x = np.abs(x) + np.float32(0.1) if is_positive else x
    result = issued(lambda dst, data: nisa.activation(dst, getattr(nl, op), data), x, target=target)
    np.testing.assert_allclose(result, function(x.astype(np.float64)), rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("bias", [None, "number", "tensor"])
@pytest.mark.parametrize("scale", ["number", "tensor"])
def test_scale_and_bias(scale, bias):
    x, scales, biases = some("float32", 100, 3, 8), some("float32", 100, 1, seed=1), some("bfloat16", 100, 1, seed=2)

    def emit(dst, data, scale_tile, bias_tile):
        given = {None: None, "number": -1.5, "tensor": bias_tile}[bias]
        nisa.activation(dst, nl.relu, data, bias=given, scale=scale_tile if scale == "tensor" else 2.5)

    factor = scales[:, :, None] if scale == "tensor" else np.float32(2.5)
    term = {None: 0, "number": np.float32(-1.5), "tensor": biases.astype(np.float32)[:, :, None]}[bias]
    np.testing.assert_array_equal(issued(emit, x, scales, biases), np.maximum(x * factor + term, 0))


@pytest.mark.parametrize("out_dtype", ["float32", "bfloat16", "float8_e5m2", "int16", "uint8"])
@pytest.mark.parametrize("in_dtype", [*FLOATS, *INTEGERS])
def test_activations_are_cast_to_float32_and_back(in_dtype, out_dtype):
    x = some(in_dtype, 128, 16)
    result = issued(lambda dst, data: nisa.activation(dst, nl.square, data, scale=0.5), x, dtype=out_dtype)
    np.testing.assert_array_equal(result, cast(np.square(x.astype(np.float32) * np.float32(0.5)), out_dtype))


@pytest.mark.parametrize("buffer, inputs", [("psum", "sbuf"), ("sbuf", "psum"), ("psum", "psum")])
def test_activations_in_psum(buffer, inputs):
    x = normal(128, 64)
    result = issued(lambda dst, data: nisa.activation(dst, nl.abs, data), x, buffer=buffer, inputs=inputs)
    np.testing.assert_array_equal(result, np.abs(x))


def test_the_chip_extrapolates_sine():
    x = np.full((16, 8), 9.0, np.float32)
    x[:, ::2] = -9
    with pytest.warns(NkiWarning, match="nl.sin"):
        result = issued(lambda dst, data: nisa.activation(dst, nl.sin, data), x)
    np.testing.assert_allclose(result, 27.65 * np.sign(x), rtol=1e-3)


@pytest.mark.parametrize(
    "op, inside, outside",
    [
        ("log", 2.0**64, 2.0**65),
        ("sqrt", 2.0**-116, 0.0),
        ("rsqrt", 2.0**97, 2.0**98),
        ("reciprocal", -(2.0**42), 2.0**-43),
        ("arctan", 1.5, -1.6),
        ("sin", 3.14, 3.15),
    ],
)
def test_inputs_outside_the_valid_range_are_warned_of(op, inside, outside):
    def emit(dst, data):
        nisa.activation(dst, getattr(nl, op), data)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        issued(emit, np.full((8, 4), inside, np.float32))
    x = np.full((8, 4), inside, np.float32)
    x[3, 1] = outside
    with pytest.warns(NkiWarning, match=re.escape(f"nl.{op} of {outside:g}")):
        issued(emit, x)


def test_infinity_and_nan():
    x = np.tile(np.array([np.nan, np.inf, -np.inf, 0.0], np.float32), (8, 1))
    expected = {"exp": [np.nan, np.inf, 0, 1], "relu": [np.nan, np.inf, 0, 0], "sigmoid": [np.nan, 1, 0, 0.5]}
    for op, row in expected.items():
        result = issued(lambda dst, data, op=op: nisa.activation(dst, getattr(nl, op), data), x)
        np.testing.assert_array_equal(result[0], np.float32(row))


def test_the_lowest_float_is_no_nan_in_a_softmax():
    lowest = float(np.finfo(np.float32).min)
    x, highest = np.full((8, 4), lowest, np.float32), np.full((8, 1), lowest, np.float32)
    result = issued(lambda dst, data, top: nisa.activation(dst, nl.exp, data, bias=negated(top)), x, highest)
    np.testing.assert_array_equal(result, 1)


def negated(top):
    result = nl.ndarray(top.shape, nl.float32)
    nisa.tensor_scalar(result, top, nl.multiply, -1.0)
    return result


# Accumulators


@pytest.mark.parametrize("shape", [(128, 12), (100, 3, 4)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_sums_are_of_what_is_computed_not_of_what_is_stored(shape, dtype):
    x = normal(*shape)

    def kernel(values):
        data, powers = tile(values), nl.ndarray(shape, dtype)
        sums = [nl.ndarray((shape[0], 1), nl.float32) for _ in range(2)]
        nisa.activation(powers, nl.exp, data, None, 0.5, nl.add, sums[0], commands.reset_reduce)
        nisa.activation_reduce(powers, nl.exp, data, nl.add, sums[1], scale=0.5)
        return (out(powers), *map(out, sums))

    powers, first, second = run(kernel, x)
    expected = np.exp(x.astype(np.float64) / 2)
    np.testing.assert_allclose(powers.astype(np.float64), expected, rtol=2e-6 if dtype == "float32" else 1e-2)
    total = expected.reshape(shape[0], -1).sum(1, keepdims=True)
    np.testing.assert_allclose(first, total, rtol=2e-6)
    np.testing.assert_array_equal(first, second)


def test_the_accumulators_outlive_an_instruction():
    x = some("float32", 64, 12)

    def kernel(values):
        data, copy = tile(values), nl.ndarray((64, 4), nl.float32)
        sums = [nl.ndarray((64, 1), nl.float32) for _ in range(4)]

        def step(part, result, command):
            columns = data[:, 4 * part : 4 * part + 4]
            nisa.activation(copy, nl.copy, columns, reduce_op=nl.add, reduce_res=result, reduce_cmd=command)

        step(0, None, commands.reset)
        step(0, None, commands.reduce)
        step(1, sums[0], commands.reduce)
        step(2, sums[1], commands.idle)  # reads them out, and adds nothing
        step(2, sums[2], commands.reset)
        step(2, sums[3], commands.reset_reduce)
        return tuple(map(out, sums))

    two, read, reset, last = run(kernel, x)
    np.testing.assert_array_equal(two[:, 0], x[:, :8].sum(1))
    np.testing.assert_array_equal(read, two)
    np.testing.assert_array_equal(reset, 0)
    np.testing.assert_array_equal(last[:, 0], x[:, 8:].sum(1))


def test_the_sum_may_be_written_over_the_results():
    x = some("float32", 16, 6)

    def kernel(values):
        data, results = tile(values), nl.ndarray((16, 6), nl.float32)
        nisa.activation(results, nl.copy, data, None, 1.0, nl.add, results[:, 0:1], commands.reset_reduce)
        return out(results)

    result = run(kernel, x)
    np.testing.assert_array_equal(result[:, 0], x.sum(1))
    np.testing.assert_array_equal(result[:, 1:], x[:, 1:])


# activate2


PAIRS = [
    ("multiply", "add"),
    ("multiply", "subtract"),
    ("multiply", "bypass"),
    ("add", "bypass"),
    ("subtract", "bypass"),
    ("bypass", "bypass"),
]
TWO = {"multiply": np.multiply, "add": np.add, "subtract": np.subtract, "bypass": lambda x, y: x}


@pytest.mark.parametrize("op0, op1", PAIRS)
@pytest.mark.parametrize("is_reversed", [False, True])
@pytest.mark.parametrize("is_tensor", [False, True])
def test_activate2(op0, op1, is_reversed, is_tensor):
    x, first, second = (some("float32", 64, size, seed=size) for size in (10, 1, 1))
    reverse0, reverse1 = is_reversed and op0 != "bypass", is_reversed and op1 != "bypass"

    def emit(dst, data, a, b):
        imm0, imm1 = (a, b) if is_tensor else (1.5, -2.0)
        nisa.activate2(
            dst, nl.square, data, imm0, imm1, getattr(nl, op0), getattr(nl, op1), reverse0=reverse0, reverse1=reverse1
        )

    a, b = (first, second) if is_tensor else (np.float32(1.5), np.float32(-2))
    inner = TWO[op0](a, x) if reverse0 else TWO[op0](x, a)
    inner = TWO[op1](b, inner) if reverse1 else TWO[op1](inner, b)
    np.testing.assert_array_equal(issued(emit, x, first, second, target="trn3"), np.square(inner))


@pytest.mark.parametrize("is_tensor", [False, True])
def test_the_slope_of_prelu(is_tensor):
    x, slopes = normal(32, 8), normal(32, 1, seed=1)

    def emit(dst, data, tensor):
        slope = tensor if is_tensor else 0.25
        nisa.activate2(dst, nl.prelu, data, 1.0, 0.0, nl.multiply, nl.add, relu_param=slope)

    slope = slopes if is_tensor else np.float32(0.25)
    np.testing.assert_array_equal(issued(emit, x, slopes, target="trn3"), np.where(x > 0, x, slope * x))


@pytest.mark.parametrize("op", ["add", "maximum", "minimum", "abs_max", "abs_min"])
def test_reductions_of_activate2(op):
    x = some("float32", 32, 8)

    def kernel(values):
        data, copy = tile(values), nl.ndarray((32, 4), nl.float32)
        total = nl.ndarray((32, 1), nl.float32)
        for part, command, result in ((0, commands.reset_reduce, None), (1, commands.reduce, total)):
            nisa.activate2(
                copy,
                nl.copy,
                data[:, 4 * part : 4 * part + 4],
                None,
                None,
                nl.bypass,
                nl.bypass,
                reduce_op=getattr(nl, op),
                reduce_res=result,
                reduce_cmd=command,
            )
        return out(total)

    result = run(kernel, x, target="trn3")[:, 0]
    if op.startswith("abs"):
        pick = max if op == "abs_max" else min
        np.testing.assert_array_equal(np.abs(result), [pick(abs(row)) for row in x])
    else:
        function = {"add": np.sum, "maximum": np.max, "minimum": np.min}[op]
        np.testing.assert_array_equal(result, function(x, axis=1))


# exponential


@pytest.mark.parametrize("is_tensor", [False, True])
@pytest.mark.parametrize(
    "in_dtype, out_dtype", [("float32", "bfloat16"), ("bfloat16", "float32"), ("uint8", "float32")]
)
def test_exponential(in_dtype, out_dtype, is_tensor):
    x, highest = some(in_dtype, 100, 2, 6), some("float32", 100, 1, seed=1)
    result = issued(
        lambda dst, src, top: nisa.exponential(dst, src, top if is_tensor else 2.0),
        x,
        highest,
        dtype=out_dtype,
        target="trn3",
    )
    shift = highest[:, :, None] if is_tensor else 2
    expected = np.exp(x.astype(np.float64) - shift)
    np.testing.assert_allclose(result.astype(np.float64), expected, rtol=1e-6 if out_dtype == "float32" else 1e-2)


def test_sums_of_exponentials():
    x, start = normal(64, 12), normal(64, 1, seed=1)

    def kernel(values, initial):
        src, powers = tile(values), nl.ndarray((64, 6), nl.float32)
        both, loaded = nl.ndarray((64, 1), nl.float32), nl.ndarray((64, 1), nl.float32)
        nisa.exponential(powers, src[:, :6], 1.0, None, commands.reset_reduce)
        nisa.exponential(powers, src[:, 6:], 1.0, both, commands.reduce)
        nisa.exponential(powers, src[:, 6:], 1.0, loaded, commands.load_reduce, tile(initial))
        return out(both), out(loaded)

    both, loaded = run(kernel, x, start, target="trn3")
    powers = np.exp(x.astype(np.float64) - 1)
    np.testing.assert_allclose(both[:, 0], powers.sum(1), rtol=1e-5)
    np.testing.assert_allclose(loaded[:, 0], powers[:, 6:].sum(1) + start[:, 0], rtol=1e-5)


def test_idle_spoils_the_accumulators_of_the_vector_engine():
    def emit():
        nisa.exponential(sbuf(8, 4), sbuf(8, 4), reduce_cmd=commands.reset_reduce)
        nisa.exponential(sbuf(8, 4), sbuf(8, 4))
        nisa.exponential(sbuf(8, 4), sbuf(8, 4), reduce_cmd=commands.reduce)

    assert "hold nothing" in refusal(emit, "trn3")


def activate(op=nl.exp, dst="float32", target=None, **more):
    nisa.activation(sbuf(8, 4, dtype=dst), op, sbuf(8, 4), **more)


def activate_two(op0=nl.multiply, op1=nl.add, imm0=1.0, imm1=1.0, **more):
    nisa.activate2(sbuf(8, 4), nl.exp, sbuf(8, 4), imm0, imm1, op0, op1, **more)


@pytest.mark.parametrize(
    "target, words, emit",
    [
        ("trn2", "no activation function", lambda: activate(nl.add)),
        ("trn2", "relu_param", lambda: activate(nl.prelu)),
        ("trn2", "scale must be float32", lambda: activate(scale=sbuf(8, 1, dtype="bfloat16"))),
        ("trn2", "shape (8, 1)", lambda: activate(scale=sbuf(8, 4))),
        ("trn2", "shape (8, 1)", lambda: activate(bias=sbuf(4, 1))),
        ("trn2", "any dtype but tfloat32", lambda: activate(bias=sbuf(8, 1, dtype="tfloat32"))),
        ("trn1", "NeuronCore-v3", lambda: activate(bias=1.0)),
        ("trn1", "takes no bias on NeuronCore-v2", lambda: activate(nl.reciprocal, bias=sbuf(8, 1))),
        ("trn2", "no reduce_op", lambda: activate(reduce_cmd=commands.reduce)),
        ("trn2", "no reduction of this", lambda: activate(reduce_op=nl.maximum, reduce_cmd=commands.reset_reduce)),
        ("trn2", "reduce_cmd is one of", lambda: activate(reduce_op=nl.add, reduce_cmd=commands.load_reduce)),
        ("trn2", "reduce_cmd is one of", lambda: activate(reduce_op=nl.add, reduce_cmd="reset_reduce")),
        ("trn2", "reduce_res is a tensor", lambda: activate(reduce_res=sbuf(8, 2))),
        ("trn2", "hold nothing", lambda: activate(reduce_res=sbuf(8, 1))),
        ("trn2", "hold nothing", lambda: activate(reduce_op=nl.add, reduce_cmd=commands.reduce)),
        (
            "trn2",
            "bring it on chip",
            lambda: nisa.activation(nl.ndarray((8, 4), nl.float32, nl.hbm), nl.exp, psum(8, 4)),
        ),
        ("trn2", "activate2 needs NeuronCore-v4", activate_two),
        ("trn3", "the Scalar Engine has", lambda: activate_two(nl.add, nl.multiply)),
        ("trn3", "nothing to reverse", lambda: activate_two(nl.bypass, nl.bypass, reverse0=True)),
        ("trn3", "same dtype", lambda: activate_two(imm0=sbuf(8, 1), imm1=sbuf(8, 1, dtype="bfloat16"))),
        ("trn3", "imm0 is a number", lambda: activate_two(imm0=None)),
        (
            "trn3",
            "no reduction of this",
            lambda: activate_two(reduce_op=nl.multiply, reduce_cmd=commands.reset_reduce),
        ),
        ("trn2", "exponential needs NeuronCore-v4", lambda: nisa.exponential(sbuf(8, 4), sbuf(8, 4))),
        ("trn3", "dst has dtype", lambda: nisa.exponential(sbuf(8, 4, dtype="uint32"), sbuf(8, 4))),
        ("trn3", "src has dtype", lambda: nisa.exponential(sbuf(8, 4), sbuf(8, 4, dtype="tfloat32"))),
        ("trn3", "only for reduce_cmd.load", lambda: nisa.exponential(sbuf(8, 4), sbuf(8, 4), reduce_init=1.0)),
        ("trn3", "must be float32", lambda: nisa.exponential(sbuf(8, 4), sbuf(8, 4), sbuf(8, 1, dtype="float16"))),
        ("trn3", "without a reduction", lambda: nisa.exponential(sbuf(8, 4), sbuf(8, 4), reduce_res=sbuf(8, 1))),
    ],
)
def test_what_is_refused(target, words, emit):
    assert words in refusal(emit, target)
