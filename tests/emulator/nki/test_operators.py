"""Operators: their functions against the definitions in float64, by `math`, NumPy or torch; special values too."""

import copy
import math
import pickle
import sys
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from optimum_neuron_torch.emulator.nki.operators import OPERATORS, Operator, as_operator
from tests.emulator.nki.by_numpy import BINARY


SPECIAL = np.float32([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-38, 3.4e38, -3.4e38])
DENSE = np.concatenate([np.linspace(-12, 12, 4001), np.geomspace(1e-30, 1e30, 400), -np.geomspace(1e-30, 1e30, 400)])
INPUTS = np.concatenate([DENSE.astype(np.float32), SPECIAL])

# The functions of one operand, in float64.
UNARY = {
    "copy": lambda x: x,
    "square": lambda x: x * x,
    "sigmoid": torch.sigmoid,
    "relu": torch.relu,
    "gelu": F.gelu,
    "gelu_apprx_tanh": partial(F.gelu, approximate="tanh"),
    "gelu_apprx_sigmoid": lambda x: x * torch.sigmoid(1.702 * x),
    "silu": F.silu,
    "tanh": torch.tanh,
    "softplus": lambda x: torch.logaddexp(x, torch.zeros_like(x)),
    "mish": lambda x: x * torch.tanh(torch.logaddexp(x, torch.zeros_like(x))),
    "erf": torch.erf,
    "exp": torch.exp,
    "log": torch.log,
    "arctan": torch.arctan,
    "sqrt": torch.sqrt,
    "rsqrt": torch.rsqrt,
    "reciprocal": torch.reciprocal,
    "sign": lambda x: torch.where(x.isnan(), x, torch.sign(x)),
    "abs": torch.abs,
    "negative": torch.neg,
    "ceil": torch.ceil,
    "floor": torch.floor,
    "trunc": torch.trunc,
    "logical_not": lambda x: (x == 0).double(),
}
DERIVATIVES = {
    "gelu_dx": UNARY["gelu"],
    "gelu_apprx_sigmoid_dx": UNARY["gelu_apprx_sigmoid"],
    "silu_dx": UNARY["silu"],
    "erf_dx": UNARY["erf"],
}


@pytest.fixture(params=["NumPy", "torch"])
def without_or_with_torch(request, monkeypatch):
    if request.param == "NumPy":
        monkeypatch.setitem(sys.modules, "torch", None)


@pytest.fixture(autouse=True)
def quiet():
    with np.errstate(all="ignore"):
        yield


def evaluate(name: str, *operands: np.ndarray) -> np.ndarray:
    value = OPERATORS[name].function(*operands)
    assert value.dtype == np.float32, name
    return value


@pytest.mark.parametrize("name", UNARY)
def test_functions_of_one_operand(name, without_or_with_torch):
    expected = UNARY[name](torch.from_numpy(INPUTS).double()).float().numpy()
    # 1 + erf and the like lose digits where they cancel, in torch's float32 too: there the bound is absolute.
    np.testing.assert_allclose(evaluate(name, INPUTS), expected, rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("name", DERIVATIVES)
def test_derivatives(name, without_or_with_torch):
    inputs = torch.linspace(-8, 8, 2001, dtype=torch.float64, requires_grad=True)
    DERIVATIVES[name](inputs).sum().backward()
    actual = evaluate(name, inputs.detach().float().numpy())
    np.testing.assert_allclose(actual, inputs.grad.float().numpy(), rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["sin", "cos", "tan"])
def test_trigonometry(name):
    inputs = np.linspace(-20, 20, 3001, dtype=np.float32)
    expected = [getattr(math, name)(float(x)) for x in inputs]
    np.testing.assert_allclose(evaluate(name, inputs), expected, rtol=2e-6, atol=3e-7)


def test_erf_is_accurate_to_float32(without_or_with_torch):
    inputs = np.concatenate([np.linspace(-6, 6, 5001), np.geomspace(1e-30, 1, 500)]).astype(np.float32)
    expected = np.float32([math.erf(float(x)) for x in inputs])
    np.testing.assert_array_max_ulp(evaluate("erf", inputs), expected, maxulp=2)
    np.testing.assert_array_equal(evaluate("erf", np.float32([np.inf, -np.inf, np.nan])), np.float32([1, -1, np.nan]))


@pytest.mark.parametrize("name", BINARY)
def test_functions_of_two_operands(name):
    some = np.concatenate([SPECIAL, np.float32([1, -1, 2, -2.5, 3, 0.5, 7, -7])])
    x, y = (part.reshape(-1) for part in np.meshgrid(some, some))
    expected = BINARY[name](x, y).astype(np.float32)
    actual = evaluate(name, x, y)
    np.testing.assert_array_equal(actual, expected)
    finite = np.isfinite(expected) & np.isfinite(x) & np.isfinite(y) & (np.abs(expected) > 1e-37)
    in_float64 = BINARY[name](x.astype(np.float64), y.astype(np.float64))
    np.testing.assert_allclose(actual[finite], in_float64[finite], rtol=2e-6)


@pytest.mark.parametrize(("name", "expected"), [("maximum", np.fmax), ("minimum", np.fmin)])
def test_nan_wins_in_maximum_and_minimum(name, expected):
    x, y = np.float32([1, np.nan, 2, np.nan]), np.float32([3, 1, np.nan, np.nan])
    assert np.isnan(evaluate(name, x, y)).tolist() == [False, True, True, True]
    assert evaluate(name, x, y)[0] == expected(1, 3)
    assert np.isnan(OPERATORS[name].reduce(x[None]))
    many = np.ones((128, 64), np.float32)
    many[::2, 5] = np.nan
    np.testing.assert_array_equal(np.isnan(OPERATORS[name].reduce(many)), np.arange(128) % 2 == 0)


def test_a_tie_of_magnitudes_gives_the_second_operand():
    for name in ("abs_max", "abs_min"):
        assert evaluate(name, np.float32([1]), np.float32([-1])) == -1


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32])
def test_bits(dtype):
    info = np.iinfo(dtype)
    x = np.array([info.min, info.max, 0, 1, 5, info.max // 3], dtype)
    bits, mask = 8 * x.itemsize, 2 ** (8 * x.itemsize) - 1
    as_unsigned = [int(value) & mask for value in x]

    def same_bits(actual, expected):
        assert actual.dtype == dtype
        assert [int(value) & mask for value in actual] == [value & mask for value in expected]

    for amount in (0, 1, 3, bits - 1):
        for given in (amount, np.full_like(x, amount)):
            # Left as right, zeros come in: there is no arithmetic shift.
            same_bits(OPERATORS["left_shift"].function(x, given), [value << amount for value in as_unsigned])
            same_bits(OPERATORS["right_shift"].function(x, given), [value >> amount for value in as_unsigned])
    same_bits(OPERATORS["invert"].function(x), [~value for value in as_unsigned])
    pairs = list(zip(as_unsigned, as_unsigned[::-1], strict=True))
    same_bits(OPERATORS["bitwise_and"].function(x, x[::-1]), [a & b for a, b in pairs])
    same_bits(OPERATORS["bitwise_or"].function(x, x[::-1]), [a | b for a, b in pairs])
    same_bits(OPERATORS["bitwise_xor"].function(x, x[::-1]), [a ^ b for a, b in pairs])


@pytest.mark.parametrize("dtype", [np.int32, np.uint32])
def test_arithmetic_on_integers_is_exact(dtype):
    x, y = np.array([2**24 + 1, 46341, 7], dtype), np.array([2, 46337, 7], dtype)
    for name, expected in [("add", [2**24 + 3, 92678, 14]), ("multiply", [2**25 + 2, 46341 * 46337, 49])]:
        actual = OPERATORS[name].function(x, y)
        assert actual.dtype == dtype and actual.tolist() == [value % 2**32 for value in expected]
    assert OPERATORS["subtract"].function(x, y).tolist() == [2**24 - 1, 4, 0]
    assert OPERATORS["maximum"].function(x, y).tolist() == x.tolist()
    assert OPERATORS["power"].function(np.array([3], dtype), np.array([4], dtype)).tolist() == [81]


REDUCTIONS = {
    "add": np.sum,
    "multiply": np.prod,
    "maximum": np.max,
    "minimum": np.min,
    "subtract": lambda x, axis: 2 * np.take(x, 0, axis) - np.sum(x, axis=axis),
    "average": np.mean,
    "logical_and": lambda x, axis: np.all(x != 0, axis=axis),
    "logical_or": lambda x, axis: np.any(x != 0, axis=axis),
    "logical_xor": lambda x, axis: (x != 0).sum(axis=axis) % 2,
    "abs_max": lambda x, axis: np.where(-x.min(axis) > x.max(axis), x.min(axis), x.max(axis)),
    "abs_min": lambda x, axis: np.take_along_axis(x, np.abs(x).argmin(axis, keepdims=True), axis).squeeze(axis),
}


@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("shape", [(6, 9), (128, 70)])
def test_reductions(name, axis, shape, without_or_with_torch):
    if name == "multiply" and shape[0] > 6:
        shape = (6, 1400)
    values = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    values = np.where(np.abs(values) < 0.5, np.float32(1), values) if name == "multiply" else values
    values[1, 2] = 0
    actual = OPERATORS[name].reduce(values, axis=axis)
    assert actual.dtype == np.float32
    np.testing.assert_allclose(actual, REDUCTIONS[name](values.astype(np.float64), axis=axis), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["bitwise_and", "bitwise_or", "bitwise_xor"])
def test_reductions_of_bits(name):
    values = np.random.default_rng(0).integers(-(2**31), 2**31, (4, 5)).astype(np.int32)
    expected = [int(row[0]) for row in values]
    for column in range(1, 5):
        step = {"bitwise_and": int.__and__, "bitwise_or": int.__or__, "bitwise_xor": int.__xor__}[name]
        expected = [step(total, int(value)) for total, value in zip(expected, values[:, column], strict=True)]
    assert OPERATORS[name].reduce(values).tolist() == expected


# The column "Legal Reduction op" of the documented table of operators, with what single instructions add to it:
# `average` (tensor_partition_reduce), and the largest and smallest magnitude (activate2).
DOCUMENTED_REDUCTIONS = """bitwise_and bitwise_or bitwise_xor add subtract multiply maximum minimum logical_and
    logical_or logical_xor average abs_max abs_min""".split()


def test_which_operators_reduce_and_from_what():
    assert {name for name, op in OPERATORS.items() if op.reduce} == set(DOCUMENTED_REDUCTIONS)
    values = np.float32([[3, -2, 5]])
    for name in DOCUMENTED_REDUCTIONS:
        op = OPERATORS[name]
        if not op.is_bitwise and name not in ("average", "subtract"):
            # An accumulator that starts from the identity ends as the reduction does.
            total = np.float32([op.identity])
            for value in values[0]:
                total = op.function(total, np.float32([value]))
            np.testing.assert_array_equal(total, op.reduce(values))


def test_the_documented_activation_functions():
    documented = """copy square sigmoid relu prelu gelu gelu_dx gelu_apprx_tanh gelu_apprx_sigmoid
        gelu_apprx_sigmoid_dx silu silu_dx tanh softplus mish erf erf_dx exp log sin arctan sqrt rsqrt reciprocal sign
        abs""".split()
    assert {name for name, op in OPERATORS.items() if op.is_activation} == set(documented)


def test_where_the_scalar_engines_functions_are_defined():
    for name, (low, high) in {
        "log": (2.0**-64, 2.0**64),
        "sin": (-math.pi, math.pi),
        "arctan": (-math.pi / 2, math.pi / 2),
        "sqrt": (2.0**-116, 2.0**118),
        "rsqrt": (2.0**-87, 2.0**97),
    }.items():
        inside = np.nextafter(np.float32([low, high]), np.float32([high, low]))
        assert OPERATORS[name].outside_valid_range(inside) is None
        outside = np.concatenate(
            [inside, np.nextafter(np.float32([low, high]), np.float32([-np.inf, np.inf])), [np.nan]]
        )
        outside = np.append(outside, np.float32(2 * high))
        assert OPERATORS[name].outside_valid_range(outside.astype(np.float32))[[0, 1, 4, 5]].tolist() == [0, 0, 1, 1]
    reciprocal = OPERATORS["reciprocal"].outside_valid_range(np.float32([1, -1, 2.0**43, -(2.0**43), 2.0**-43, 0]))
    assert reciprocal.tolist() == [False, False, True, True, True, True]
    assert OPERATORS["exp"].outside_valid_range(SPECIAL) is None


def test_sine_on_the_scalar_engine_is_not_reduced():
    sin = OPERATORS["sin"]
    inside = np.linspace(-3.14, 3.14, 101, dtype=np.float32)
    np.testing.assert_array_equal(sin.activate(inside), sin.function(inside))
    # The documentation quotes about 27.65 for 9.0, where sine is 0.41.
    np.testing.assert_allclose(sin.activate(np.float32([9, -9])), [27.65, -27.65], atol=0.01)
    np.testing.assert_allclose(sin.function(np.float32([9.0])), [0.4121185], rtol=1e-6)
    assert OPERATORS["exp"].activate is OPERATORS["exp"].function


def test_an_operator_is_one_object_and_prints_as_it_is_written():
    add = OPERATORS["add"]
    assert repr(add) == "nl.add"
    for same in (copy.copy(add), copy.deepcopy(add), pickle.loads(pickle.dumps(add)), as_operator(add)):
        assert same is add
    assert len({*OPERATORS.values()}) == len(OPERATORS)


@pytest.mark.parametrize(
    ("given", "hint"),
    [
        (np.add, "pass nl.add"),
        (np.max, "pass nl.maximum"),
        (max, "pass nl.maximum"),
        (None, "there are nl."),
        (3, "nl."),
    ],
)
def test_what_is_no_operator_is_refused_with_the_way_out(given, hint):
    with pytest.raises(ValueError, match=hint):
        as_operator(given)


def test_average_has_no_value_for_single_elements():
    with pytest.raises(ValueError, match="only reduces"):
        OPERATORS["average"].function(np.float32([1]), np.float32([2]))
    assert isinstance(OPERATORS["average"], Operator)
