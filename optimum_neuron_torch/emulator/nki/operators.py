"""What instructions take as `op=`: `nl.add`, `nl.exp` and the like, each with the function that it computes.

Which engines run an operator, which may reduce, and the input ranges of the Scalar Engine's functions are the tables
of "NKI ISA API Common Fields" in the Neuron documentation. Functions take and give float32, or int32 and uint32 where
an instruction computes in integers; what they do with NaN is what NumPy's function of that name does, so maximum and
minimum give NaN where either input is NaN. They leave NumPy's floating-point warnings to the caller.
"""

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np


VECTOR = "vector"
SCALAR = "scalar"
GPSIMD = "gpsimd"

Function = Callable[..., np.ndarray]

_OMITTED = object()


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Operator:
    """One operator: a name of `nki.language` that instructions take as `op=`, and that a kernel may call on tiles.

    Attributes:
        name: as in `nl.<name>`.
        arity: how many operands `function` takes.
        function: the values, of NumPy arrays that broadcast.
        engines: the engines that run it as an arithmetic or bitwise operator; empty for what is only an activation
            function, and for what only exists as a call on tiles.
        is_activation: whether the Scalar Engine has it as an activation function.
        is_bitwise: whether it takes integers' bits as they are, where all others compute in float32.
        is_comparison, is_logical: whether it gives 1.0 or 0.0; logical ones take what is not zero for true.
        reduce: reduces one axis, given as `axis=`, the last by default; None where the operator may not reduce.
        identity: what an accumulator starts from, where `reduce` is given.
        valid_range: where the Scalar Engine's function is defined, of the input, or of its magnitude for `reciprocal`;
            None for everywhere.
        scalar_engine_function: what the Scalar Engine computes where that differs from `function`.
        first_generation: the NeuronCore generation (2, 3 or 4) from which instructions other than activations have it.
    """

    name: str
    arity: int
    function: Function
    engines: frozenset[str] = frozenset()
    is_activation: bool = False
    is_bitwise: bool = False
    is_comparison: bool = False
    is_logical: bool = False
    reduce: Function | None = None
    identity: float | int | None = None
    valid_range: tuple[float, float] | None = None
    scalar_engine_function: Function | None = None
    first_generation: int = 2

    @property
    def activate(self) -> Function:
        """The function that the Scalar Engine computes for `nisa.activation`."""
        return self.scalar_engine_function or self.function

    def outside_valid_range(self, values: np.ndarray) -> np.ndarray | None:
        """Where inputs are outside the range in which the Scalar Engine's result means anything; None for nowhere."""
        if self.valid_range is None or not values.size:
            return None
        low, high = self.valid_range
        inputs = np.abs(values) if self.name == "reciprocal" else values
        if low <= inputs.min() and inputs.max() <= high:
            return None
        # NaN compares false both times: it is inside nothing.
        return ~((inputs >= low) & (inputs <= high))

    def __repr__(self) -> str:
        return f"nl.{self.name}"

    def __reduce__(self):
        return _named, (self.name,)

    def __copy__(self) -> "Operator":
        return self

    def __deepcopy__(self, memo) -> "Operator":
        return self

    def __call__(self, x, y=_OMITTED, dtype=None):
        """Applies the operator to tiles in a kernel: `nl.add(x, y, dtype=None)`, `nl.exp(x, dtype=None)`."""
        from .language.math import apply

        if self.arity == 1:
            # A unary function's second parameter is the dtype.
            if y is not _OMITTED and dtype is not None:
                raise TypeError(f"nl.{self.name} takes one operand and a dtype")
            return apply(self, (x,), dtype if y is _OMITTED else y)
        if y is _OMITTED:
            raise TypeError(f"nl.{self.name} takes two operands, x and y")
        return apply(self, (x, y), dtype)


def _named(name: str) -> Operator:
    return OPERATORS[name]


def as_operator(given) -> Operator:
    """`given`, which must be an operator.

    Raises:
        ValueError: it is something else: a name, or one of NumPy's functions, which kernels of NKI before 0.1 passed.
    """
    if isinstance(given, Operator):
        return given
    name = given if isinstance(given, str) else getattr(given, "__name__", None)
    of_reduction = {"max": "maximum", "min": "minimum", "sum": "add", "prod": "multiply", "amax": "maximum"}
    name = of_reduction.get(name, name)
    hint = f": pass nl.{name}" if name in OPERATORS else f"; there are {', '.join(map(repr, OPERATORS.values()))}"
    raise ValueError(f"{given!r} is no operator of nki.language{hint}")


# Where torch is loaded, its loops for these are two to four times as fast as NumPy's, from this many elements on.
_WORTH_TORCH = 4096


def _in_torch(x):
    """The array as a torch tensor over the same memory; None where that is not to be had, or not worth it."""
    if x.size < _WORTH_TORCH or x.dtype != np.float32 or not x.flags.writeable:
        return None
    torch = sys.modules.get("torch")
    if not hasattr(torch, "from_numpy") or min(x.strides) < 0:
        return None
    return torch.from_numpy(x)


# Functions that NumPy does not have, or has another way.


def _truth(function: Function) -> Function:
    """Comparisons, with 1.0 and 0.0 for what NumPy gives as true and false."""
    return lambda x, y: function(x, y).astype(np.float32)


def _truth_of_both(function: Function) -> Function:
    """Logical functions; NumPy's own take several times as long on floats."""
    return lambda x, y: function(np.not_equal(x, 0), np.not_equal(y, 0)).astype(np.float32)


def _logical_not(x):
    return (x == 0).astype(np.float32)


def _identity(x, _ignored=None):
    return x


def _abs_max(x, y):
    # The signed values; y where the magnitudes are equal, as documented.
    return np.where(np.abs(x) > np.abs(y), x, y)


def _abs_min(x, y):
    return np.where(np.abs(x) < np.abs(y), x, y)


def _reciprocal(x):
    return np.float32(1) / x


def _rsqrt(x):
    return np.float32(1) / np.sqrt(x)


def _power(x, y):
    if np.result_type(x, y).kind == "f":
        return np.power(x, y)
    # NumPy refuses negative powers of integers.
    return np.power(np.asarray(x, np.float64), y)


def _unsigned(bits):
    return bits.view(f"u{bits.dtype.itemsize}") if bits.dtype.kind == "i" else bits


def _right_shift(x, y):
    # The only right shift is the logical one, which brings in zeros.
    common = np.result_type(x, y)
    x, y = (_unsigned(np.asarray(operand, common)) for operand in (x, y))
    return np.right_shift(x, y).view(common)


def _relu(x):
    return np.maximum(x, np.float32(0))


def _prelu(x, slope):
    return np.where(x > 0, x, slope * x)


def _exp(x):
    tensor = _in_torch(x)
    return np.exp(x) if tensor is None else tensor.exp().numpy()


def _sigmoid(x):
    tensor = _in_torch(x)
    if tensor is not None:
        return tensor.sigmoid().numpy()
    return _reciprocal(np.exp(-x) + np.float32(1))


def _silu(x):
    return x * _sigmoid(x)


def _silu_dx(x):
    gate = _sigmoid(x)
    return gate * (1 + x * (1 - gate))


def _softplus(x):
    return np.maximum(x, np.float32(0)) + np.log1p(np.exp(-np.abs(x)))


def _mish(x):
    return x * np.tanh(_softplus(x))


@cache
def _erf_series() -> np.ndarray:
    """Chebyshev coefficients of erf(x)/x as a function of x**2 where |x| <= 4, beyond which erf is 1 in float32."""

    def quotient(unit):
        square = (unit + 1) * 8
        return np.array(
            [math.erf(math.sqrt(s)) / math.sqrt(s) if s > 1e-12 else 2 / math.sqrt(math.pi) for s in square]
        )

    return np.polynomial.chebyshev.chebinterpolate(quotient, 30)


def _erf(x):
    torch = sys.modules.get("torch")
    if hasattr(torch, "from_numpy"):
        return torch.erf(torch.from_numpy(np.array(x, np.float32, order="C"))).numpy()
    within = np.clip(x, -4, 4).astype(np.float64)
    value = within * np.polynomial.chebyshev.chebval(within * within / 8 - 1, _erf_series())
    return value.astype(np.float32)


def _erf_dx(x):
    return np.float32(2 / math.sqrt(math.pi)) * np.exp(-x * x)


def _normal_cdf(x):
    return np.float32(0.5) * (1 + _erf(x * np.float32(math.sqrt(0.5))))


def _gelu(x):
    return x * _normal_cdf(x)


def _gelu_dx(x):
    return _normal_cdf(x) + x * (np.float32(1 / math.sqrt(2 * math.pi)) * np.exp(np.float32(-0.5) * x * x))


def _gelu_apprx_tanh(x):
    inner = np.float32(math.sqrt(2 / math.pi)) * (x + np.float32(0.044715) * x * x * x)
    return np.float32(0.5) * x * (1 + np.tanh(inner))


def _gelu_apprx_sigmoid(x):
    return x * _sigmoid(np.float32(1.702) * x)


def _gelu_apprx_sigmoid_dx(x):
    gate = _sigmoid(np.float32(1.702) * x)
    return gate * (1 + np.float32(1.702) * x * (1 - gate))


def _sin_of_scalar_engine(x):
    """The Scalar Engine reduces no argument: beyond pi it goes on along the cubic that it fits there.

    The cubic is sine's at pi: it gives the 27.65 for 9.0 that the documentation quotes.
    """
    inside = np.sin(x)
    beyond = np.abs(x) - np.float32(math.pi)
    if not beyond.size or not np.any(beyond > 0):
        return inside
    cubic = np.sign(x) * (beyond * beyond * beyond / np.float32(6) - beyond)
    return np.where(beyond > 0, cubic, inside)


# Reductions along an axis.


def _sum(values, axis=-1):
    tensor = _in_torch(values)
    return np.add.reduce(values, axis=axis) if tensor is None else tensor.sum(axis).numpy()


def _highest(values, axis=-1):
    tensor = _in_torch(values)
    return np.maximum.reduce(values, axis=axis) if tensor is None else tensor.amax(axis).numpy()


def _lowest(values, axis=-1):
    tensor = _in_torch(values)
    return np.minimum.reduce(values, axis=axis) if tensor is None else tensor.amin(axis).numpy()


def _reduce_by(ufunc: np.ufunc) -> Function:
    return lambda values, axis=-1: ufunc.reduce(values, axis=axis)


def _reduce_truth_by(ufunc: np.ufunc) -> Function:
    return lambda values, axis=-1: ufunc.reduce(values != 0, axis=axis).astype(np.float32)


def _reduce_by_magnitude(pick: Function) -> Function:
    def reduce(values, axis=-1):
        at = pick(np.abs(values), axis=axis)
        return np.take_along_axis(values, np.expand_dims(at, axis), axis=axis).squeeze(axis)

    return reduce


def _average(values, axis=-1):
    return values.mean(axis=axis, dtype=np.float32)


def _no_function(*_operands):
    raise ValueError("nl.average only reduces: it has no value for single elements")


# The table of operators.


def _arithmetic(name, function, *engines, **more) -> Operator:
    return Operator(name, more.pop("arity", 2), function, frozenset(engines or (VECTOR,)), **more)


def _bitwise(name, function, **more) -> Operator:
    return Operator(name, more.pop("arity", 2), function, frozenset((VECTOR,)), is_bitwise=True, **more)


def _comparison(name, ufunc) -> Operator:
    return Operator(name, 2, _truth(ufunc), frozenset((VECTOR,)), is_comparison=True)


def _logical(name, ufunc, identity) -> Operator:
    reduce = _reduce_truth_by(ufunc)
    engines = frozenset((VECTOR,))
    return Operator(name, 2, _truth_of_both(ufunc), engines, is_logical=True, reduce=reduce, identity=identity)


def _activation(name, function, valid_range=None, *, engines=(), **more) -> Operator:
    arity = more.pop("arity", 1)
    return Operator(name, arity, function, frozenset(engines), is_activation=True, valid_range=valid_range, **more)


def _call(name, function, arity=1) -> Operator:
    """What kernels may call on tiles, and no instruction takes."""
    return Operator(name, arity, function)


_DEFINED = [
    _bitwise("invert", np.invert, arity=1),
    _bitwise("bitwise_and", np.bitwise_and, reduce=_reduce_by(np.bitwise_and), identity=-1),
    _bitwise("bitwise_or", np.bitwise_or, reduce=_reduce_by(np.bitwise_or), identity=0),
    _bitwise("bitwise_xor", np.bitwise_xor, reduce=_reduce_by(np.bitwise_xor), identity=0),
    _bitwise("left_shift", np.left_shift),
    _bitwise("right_shift", _right_shift),
    _arithmetic("add", np.add, VECTOR, GPSIMD, SCALAR, reduce=_sum, identity=0.0),
    _arithmetic("subtract", np.subtract, VECTOR, GPSIMD, reduce=_reduce_by(np.subtract), identity=0.0),
    _arithmetic("multiply", np.multiply, VECTOR, GPSIMD, SCALAR, reduce=_reduce_by(np.multiply), identity=1.0),
    _arithmetic("maximum", np.maximum, reduce=_highest, identity=-math.inf),
    _arithmetic("minimum", np.minimum, reduce=_lowest, identity=math.inf),
    _comparison("equal", np.equal),
    _comparison("not_equal", np.not_equal),
    _comparison("greater_equal", np.greater_equal),
    _comparison("greater", np.greater),
    _comparison("less_equal", np.less_equal),
    _comparison("less", np.less),
    _logical("logical_and", np.logical_and, 1.0),
    _logical("logical_or", np.logical_or, 0.0),
    _logical("logical_xor", np.logical_xor, 0.0),
    _arithmetic("power", _power, GPSIMD),
    _arithmetic("abs_max", _abs_max, reduce=_reduce_by_magnitude(np.argmax), identity=0.0, first_generation=4),
    _arithmetic("abs_min", _abs_min, reduce=_reduce_by_magnitude(np.argmin), identity=math.inf, first_generation=4),
    _arithmetic("average", _no_function, GPSIMD, reduce=_average, identity=0.0),
    Operator("bypass", 2, _identity, frozenset((VECTOR, SCALAR, GPSIMD))),
    _activation("copy", _identity),
    _activation("square", np.square, engines=(VECTOR,), first_generation=4),
    _activation("sigmoid", _sigmoid),
    _activation("relu", _relu, engines=(VECTOR,), first_generation=4),
    _activation("prelu", _prelu, arity=2),
    _activation("gelu", _gelu),
    _activation("gelu_dx", _gelu_dx),
    _activation("gelu_apprx_tanh", _gelu_apprx_tanh),
    _activation("gelu_apprx_sigmoid", _gelu_apprx_sigmoid),
    _activation("gelu_apprx_sigmoid_dx", _gelu_apprx_sigmoid_dx),
    _activation("silu", _silu),
    _activation("silu_dx", _silu_dx),
    _activation("tanh", np.tanh),
    _activation("softplus", _softplus),
    _activation("mish", _mish),
    _activation("erf", _erf),
    _activation("erf_dx", _erf_dx),
    _activation("exp", _exp),
    _activation("log", np.log, (2.0**-64, 2.0**64)),
    _activation("sin", np.sin, (-math.pi, math.pi), scalar_engine_function=_sin_of_scalar_engine),
    _activation("arctan", np.arctan, (-math.pi / 2, math.pi / 2)),
    _activation("sqrt", np.sqrt, (2.0**-116, 2.0**118)),
    _activation("rsqrt", _rsqrt, (2.0**-87, 2.0**97), engines=(GPSIMD,)),
    _activation("reciprocal", _reciprocal, (2.0**-42, 2.0**42), engines=(VECTOR,)),
    _activation("sign", np.sign),
    _activation("abs", np.abs, engines=(VECTOR,)),
    _call("divide", np.divide, 2),
    _call("fmod", np.fmod, 2),
    _call("mod", np.mod, 2),
    _call("logical_not", _logical_not),
    _call("negative", np.negative),
    _call("cos", np.cos),
    _call("tan", np.tan),
    _call("ceil", np.ceil),
    _call("floor", np.floor),
    _call("trunc", np.trunc),
]

OPERATORS: dict[str, Operator] = {operator.name: operator for operator in _DEFINED}
