"""Give a lowered module the types that Trainium computes in: no float64 or int64 but what the user's values need.

torch-mlir makes float64 of every Python number, computes the length of an `arange` in it, and counts in int64, as
PyTorch does. Here numbers become constants of the type they are used in, lengths are known, and arithmetic of indices
whose values provably fit 32 bits is done in int32: Trainium has no float64, and keeps only 32 bits of an int64. What
comes from the user, and what returns to them, keeps its type.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np


if TYPE_CHECKING:
    from torch_mlir import ir


Range = tuple[int, int]

_INT32: Range = (-(2**31), 2**31 - 1)
_INT64: Range = (-(2**63), 2**63 - 1)


def legalise_types(module: ir.Module) -> None:
    """Rewrite a module of StableHLO in place."""
    from torch_mlir import ir

    with module.context, ir.Location.unknown():
        for function in module.body.operations:
            if function.operation.name != "func.func":
                continue
            block = function.regions[0].blocks[0]
            for operation in list(block.operations):
                _make_static(operation)
            _erase_unused(block)
            for operation in list(block.operations):
                _fold_constant(operation)
            _erase_unused(block)
            _Narrowing(block).run()
            _erase_unused(block)
    module.operation.verify()


# ---- numbers and lengths --------------------------------------------------------------------------------------------


def _make_static(operation: ir.Operation) -> None:
    """A range of known length does not compute its length."""
    if operation.name != "stablehlo.dynamic_iota" or not operation.results[0].type.has_static_shape:
        return
    _replace(operation, "stablehlo.iota", {"iota_dimension": operation.attributes["iota_dimension"]})


def _fold_constant(operation: ir.Operation) -> None:
    """One number in every place stays a constant through conversions and reshapes."""
    from torch_mlir import ir

    if operation.name == "arith.constant":
        value = operation.attributes["value"]
        if isinstance(value, ir.DenseElementsAttr):
            _replace(operation, "stablehlo.constant", {"value": value})
    elif operation.name in ("stablehlo.convert", "stablehlo.reshape", "stablehlo.broadcast_in_dim"):
        number = _number_of(operation.operands[0])
        source, target = (_numpy_type(value) for value in (operation.operands[0], operation.results[0]))
        if number is not None and source is not None and target is not None:
            value = _splat(operation.results[0].type, number, target)
            _replace(operation, "stablehlo.constant", {"value": value})


def _number_of(value: ir.Value) -> Any:
    """The number that fills a constant, of the constant's type; None for any other value."""
    owner = owner_of(value)
    if owner is None or owner.name != "stablehlo.constant":
        return None
    attribute = owner.attributes["value"]
    if not getattr(attribute, "is_splat", False) or (kind := _numpy_type(value)) is None:
        return None
    return kind(attribute.get_splat_value().value)


def _splat(tensor_type: ir.Type, number: Any, kind: type) -> ir.Attribute:
    from torch_mlir import ir

    element = tensor_type.element_type
    with np.errstate(over="ignore"):
        number = kind(number)
    if np.issubdtype(kind, np.floating):
        return ir.DenseElementsAttr.get_splat(tensor_type, ir.FloatAttr.get(element, float(number)))
    return ir.DenseElementsAttr.get_splat(tensor_type, ir.IntegerAttr.get(element, int(number)))


def _replace(operation: ir.Operation, name: str, attributes: dict[str, ir.Attribute]) -> None:
    """Put an operation without operands in the place of one with a single result."""
    from torch_mlir import ir

    new = ir.Operation.create(
        name, results=[operation.results[0].type], attributes=attributes, ip=ir.InsertionPoint(operation)
    )
    operation.results[0].replace_all_uses_with(new.results[0])
    operation.operation.erase()


def _erase_unused(block: ir.Block) -> None:
    for operation in reversed(list(block.operations)):
        is_terminator = operation.operation.name == "func.return"
        if not is_terminator and not any(True for result in operation.results for _ in result.uses):
            operation.operation.erase()


# ---- int64 ----------------------------------------------------------------------------------------------------------

# Operations that compute the same in int32 where their operands and results fit, by the operands that count.
_SAME_IN_INT32 = {
    "stablehlo.constant": (),
    "stablehlo.iota": (),
    "stablehlo.convert": (),
    "stablehlo.gather": (0,),
    **{
        f"stablehlo.{name}": None
        for name in (
            "abs", "add", "broadcast_in_dim", "clamp", "concatenate", "divide", "maximum", "minimum", "multiply",
            "negate", "remainder", "reshape", "reverse", "select", "slice", "subtract", "transpose",
        )
    },
}  # fmt: skip
# Operands that are indices: one that does not fit 32 bits would be outside of any axis.
_INDICES: dict[str, Callable[[int], range]] = {
    "stablehlo.dynamic_slice": lambda count: range(1, count),
    "stablehlo.gather": lambda count: range(1, 2),
    "stablehlo.scatter": lambda count: range(count // 2, count // 2 + 1),  # between as many inputs and updates
}


class _Narrowing:
    """The int64 values of one block that become int32."""

    def __init__(self, block: ir.Block) -> None:
        self._block = block
        self._ranges: dict[ir.Value, Range] = {}
        self._narrow: set[ir.Value] = set()
        self._wide_again: dict[ir.Value, ir.Value] = {}
        self._narrowed: dict[ir.Value, ir.Value] = {}

    def run(self) -> None:
        operations = list(self._block.operations)
        for operation in operations:
            self._find_ranges(operation)
        captured = {value for operation in operations for value in captured_by(operation)}
        for operation in operations:
            if self._is_same_in_int32(operation) and operation.results[0] not in captured:
                self._narrow.add(operation.results[0])
        for operation in operations:
            self._rewrite(operation)

    def _find_ranges(self, operation: ir.Operation) -> None:
        rule = _RANGES.get(operation.name)
        for position, result in enumerate(operation.results):
            if _width(result) is None:
                continue
            found = rule(operation, self._range_of, position) if rule else None
            self._ranges[result] = _clipped(found, _bounds(result))

    def _range_of(self, value: ir.Value) -> Range:
        return self._ranges.get(value) or _bounds(value)

    def _fits(self, value: ir.Value) -> bool:
        low, high = self._range_of(value)
        return _INT32[0] <= low and high <= _INT32[1]

    def _is_same_in_int32(self, operation: ir.Operation) -> bool:
        if operation.name not in _SAME_IN_INT32 or _width(operation.results[0]) != 64:
            return False
        counted = _SAME_IN_INT32[operation.name]
        operands = [operation.operands[i] for i in (range(len(operation.operands)) if counted is None else counted)]
        return all(self._fits(value) for value in (operation.results[0], *operands) if _width(value) == 64)

    def _rewrite(self, operation: ir.Operation) -> None:
        if len(operation.results) == 1 and operation.results[0] in self._narrow:
            self._compute_in_int32(operation)
            return
        indices = _INDICES.get(operation.name, lambda count: range(0))(len(operation.operands))
        in_int32 = operation.name == "stablehlo.compare" and all(self._fits(value) for value in operation.operands)
        for position, value in enumerate(operation.operands):
            if _width_before(value, self._narrow) != 64 or operation.name == "stablehlo.convert":
                continue
            if in_int32 or position in indices:
                operation.operands[position] = self._as_int32(value, operation)
            elif value in self._narrow:
                operation.operands[position] = self._as_int64(value)

    def _compute_in_int32(self, operation: ir.Operation) -> None:
        result = operation.results[0]
        if operation.name == "stablehlo.constant":
            operation.attributes["value"] = _constant_in_int32(operation)
        elif operation.name != "stablehlo.convert":
            for position, value in enumerate(operation.operands):
                if _width_before(value, self._narrow) == 64:
                    operation.operands[position] = self._as_int32(value, operation)
        result.set_type(_with_width(result.type, 32))

    def _as_int32(self, value: ir.Value, user: ir.Operation) -> ir.Value:
        if value in self._narrow:
            return value
        if value not in self._narrowed:
            self._narrowed[value] = self._converted(value, 32)
        return self._narrowed[value]

    def _as_int64(self, value: ir.Value) -> ir.Value:
        if value not in self._wide_again:
            self._wide_again[value] = self._converted(value, 64)
        return self._wide_again[value]

    def _converted(self, value: ir.Value, width: int) -> ir.Value:
        """`value` in another width, right behind it: every user comes later."""
        from torch_mlir import ir

        owner = owner_of(value)
        convert = ir.Operation.create("stablehlo.convert", results=[_with_width(value.type, width)], operands=[value])
        if owner is None:
            ir.InsertionPoint.at_block_begin(self._block).insert(convert)
        else:
            ir.InsertionPoint.after(owner).insert(convert)
        return convert.results[0]


def _constant_in_int32(operation: ir.Operation) -> ir.Attribute:
    from torch_mlir import ir

    tensor_type = _with_width(operation.results[0].type, 32)
    attribute = operation.attributes["value"]
    if attribute.is_splat:
        return _splat(tensor_type, attribute.get_splat_value().value, np.int32)
    values = np.array(ir.DenseIntElementsAttr(attribute)).astype(np.int32)
    return ir.DenseElementsAttr.get(np.ascontiguousarray(values), type=tensor_type)


# ---- how large whole numbers can be ---------------------------------------------------------------------------------

Rule = Callable[[Any, Callable[[Any], Range], int], Range | None]


def _constant(operation: ir.Operation, range_of: Callable[[Any], Range], position: int) -> Range | None:
    from torch_mlir import ir

    attribute = operation.attributes["value"]
    if getattr(attribute, "is_splat", False):
        number = int(attribute.get_splat_value().value)
        return number, number
    if not isinstance(attribute, ir.DenseIntElementsAttr):
        return None
    values = np.array(attribute)
    return (int(values.min()), int(values.max())) if values.size else (0, 0)


def _iota(operation: ir.Operation, range_of: Callable[[Any], Range], position: int) -> Range:
    axis = operation.attributes["iota_dimension"].value
    return 0, max(operation.results[0].type.shape[axis] - 1, 0)


def _convert(operation: ir.Operation, range_of: Callable[[Any], Range], position: int) -> Range | None:
    source = operation.operands[0]
    return range_of(source) if _width(source) is not None else None


def _corners(function: Callable[[int, int], int]) -> Rule:
    """Of a function that is monotonous in both operands."""

    def rule(operation: ir.Operation, range_of: Callable[[Any], Range], position: int) -> Range:
        left, right = (range_of(value) for value in operation.operands)
        values = [function(a, b) for a in left for b in right]
        return min(values), max(values)

    return rule


def _divide(operation: ir.Operation, range_of: Callable[[Any], Range], position: int) -> Range | None:
    low, high = range_of(operation.operands[1])
    if low <= 0 <= high:
        return None
    return _corners(lambda a, b: (abs(a) // abs(b)) * (1 if (a < 0) == (b < 0) else -1))(operation, range_of, position)


def _remainder(operation: ir.Operation, range_of: Callable[[Any], Range], position: int) -> Range | None:
    """The sign is the dividend's."""
    dividend, divisor = (range_of(value) for value in operation.operands)
    largest = max(abs(divisor[0]), abs(divisor[1])) - 1
    return max(-largest, min(dividend[0], 0)), min(largest, max(dividend[1], 0))


def _same(*operands: int) -> Rule:
    """Values of these operands (none named: of all) in other places."""

    def rule(operation: ir.Operation, range_of: Callable[[Any], Range], position: int) -> Range:
        chosen = [operation.operands[i] for i in operands] if operands else list(operation.operands)
        return _hull(range_of(value) for value in chosen)

    return rule


def _clamp(operation: ir.Operation, range_of: Callable[[Any], Range], position: int) -> Range:
    low, value, high = (range_of(operand) for operand in operation.operands)
    return min(max(value[0], low[0]), high[0]), min(max(value[1], low[1]), high[1])


def _negate(operation: ir.Operation, range_of: Callable[[Any], Range], position: int) -> Range:
    low, high = range_of(operation.operands[0])
    return -high, -low


def _abs(operation: ir.Operation, range_of: Callable[[Any], Range], position: int) -> Range:
    low, high = range_of(operation.operands[0])
    return (0 if low <= 0 <= high else min(abs(low), abs(high))), max(abs(low), abs(high))


def _sort(operation: ir.Operation, range_of: Callable[[Any], Range], position: int) -> Range:
    return range_of(operation.operands[position])


def _reduce(operation: ir.Operation, range_of: Callable[[Any], Range], position: int) -> Range | None:
    """Sums, and what chooses among its operands."""
    body = [inner.operation.name for inner in operation.regions[0].blocks[0].operations]
    if len(operation.results) != 1:
        # Of an axis' values and places, as argmax makes them: one of the places, or where it begins.
        operands = [operation.operands[position], operation.operands[position + len(operation.results)]]
        return _hull(range_of(value) for value in operands) if set(body) <= _CHOOSING else None
    value, begin = range_of(operation.operands[0]), range_of(operation.operands[1])
    if body == ["stablehlo.add", "stablehlo.return"]:
        count = math.prod(operation.operands[0].type.shape) // max(math.prod(operation.results[0].type.shape), 1)
        return begin[0] + min(value[0] * count, 0), begin[1] + max(value[1] * count, 0)
    return _hull((value, begin)) if body[0] in ("stablehlo.maximum", "stablehlo.minimum") else None


def _reduce_window(operation: ir.Operation, range_of: Callable[[Any], Range], position: int) -> Range | None:
    """Running sums."""
    body = [inner.operation.name for inner in operation.regions[0].blocks[0].operations]
    if body != ["stablehlo.add", "stablehlo.return"] or len(operation.results) != 1:
        return None
    count = math.prod(operation.attributes["window_dimensions"])
    (low, high), begin = range_of(operation.operands[0]), range_of(operation.operands[1])
    return begin[0] + min(low * count, 0), begin[1] + max(high * count, 0)


def _scatter(operation: ir.Operation, range_of: Callable[[Any], Range], position: int) -> Range | None:
    """What overwrites."""
    body = [inner.operation.name for inner in operation.regions[0].blocks[0].operations]
    return _same(0, 2)(operation, range_of, position) if body == ["stablehlo.return"] else None


def _hull(ranges: Iterable[Range]) -> Range:
    lows, highs = zip(*ranges, strict=True)
    return min(lows), max(highs)


_CHOOSING = {f"stablehlo.{name}" for name in ("compare", "select", "and", "or", "maximum", "minimum", "return", "not")}
_RANGES: dict[str, Rule] = {
    "stablehlo.abs": _abs,
    "stablehlo.add": _corners(lambda a, b: a + b),
    "stablehlo.broadcast_in_dim": _same(0),
    "stablehlo.clamp": _clamp,
    "stablehlo.concatenate": _same(),
    "stablehlo.constant": _constant,
    "stablehlo.convert": _convert,
    "stablehlo.divide": _divide,
    "stablehlo.dynamic_slice": _same(0),
    "stablehlo.gather": _same(0),
    "stablehlo.iota": _iota,
    "stablehlo.maximum": _corners(max),
    "stablehlo.minimum": _corners(min),
    "stablehlo.multiply": _corners(lambda a, b: a * b),
    "stablehlo.negate": _negate,
    "stablehlo.pad": _same(0, 1),
    "stablehlo.reduce": _reduce,
    "stablehlo.reduce_window": _reduce_window,
    "stablehlo.remainder": _remainder,
    "stablehlo.reshape": _same(0),
    "stablehlo.reverse": _same(0),
    "stablehlo.scatter": _scatter,
    "stablehlo.select": _same(1, 2),
    "stablehlo.slice": _same(0),
    "stablehlo.sort": _sort,
    "stablehlo.subtract": _corners(lambda a, b: a - b),
    "stablehlo.transpose": _same(0),
}


def _clipped(found: Range | None, bounds: Range) -> Range:
    """What may leave its type wraps around: then it can be anything."""
    return found if found is not None and bounds[0] <= found[0] and found[1] <= bounds[1] else bounds


# ---- types ----------------------------------------------------------------------------------------------------------


def owner_of(value: ir.Value) -> Any:
    """The operation that makes `value`; None for a function's argument."""
    return getattr(value.owner, "operation", None)


def captured_by(operation: ir.Operation) -> Iterator[ir.Value]:
    """What operations inside of `operation` take."""
    for region in operation.regions:
        for block in region:
            for inner in block.operations:
                yield from inner.operands
                yield from captured_by(inner)


def _width(value: ir.Value) -> int | None:
    """The bits of a tensor of whole numbers or booleans; None for any other."""
    from torch_mlir import ir

    if not isinstance(value.type, ir.RankedTensorType) or not isinstance(value.type.element_type, ir.IntegerType):
        return None
    return value.type.element_type.width


def _width_before(value: ir.Value, narrow: set[ir.Value]) -> int | None:
    return 64 if value in narrow else _width(value)


def _bounds(value: ir.Value) -> Range:
    width = _width(value)
    if width is None or width >= 64:
        return _INT64
    if width == 1:
        return 0, 1
    if value.type.element_type.is_unsigned:
        return 0, 2**width - 1
    return -(2 ** (width - 1)), 2 ** (width - 1) - 1


def _with_width(tensor_type: ir.Type, width: int) -> ir.Type:
    from torch_mlir import ir

    return ir.RankedTensorType.get(tensor_type.shape, ir.IntegerType.get_signless(width))


def _numpy_type(value: ir.Value) -> type | None:
    """How a number of a tensor is computed with here; None for types that NumPy lacks."""
    from torch_mlir import ir

    element = value.type.element_type if isinstance(value.type, ir.RankedTensorType) else None
    if isinstance(element, ir.F64Type):
        return np.float64
    if isinstance(element, (ir.F32Type, ir.BF16Type)):
        return np.float32  # from which MLIR rounds to bfloat16
    if isinstance(element, ir.F16Type):
        return np.float16
    if isinstance(element, ir.IntegerType) and element.is_signless and element.width in (32, 64):
        return np.int64 if element.width == 64 else np.int32
    return None
