"""Finding out how the sizes of a module's outputs follow from the sizes of its inputs' axes, without knowing the
model.

The module is run (on fake tensors, or small on the host) at two sizes per axis, one axis at a time; a further run with
all sizes changed verifies what was found. An output dimension is fixed, an affine or floor function of one input axis
(strides), or the product of two.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from math import prod


Sizes = dict[str, int]
Shapes = list[tuple[int, ...]]
# Small, and different from each other and from usual model sizes, so that a coincidence is unlikely; sizes of the
# verifying run come last.
PROBES: dict[str, tuple[int, int, int]] = {
    "batch": (2, 3, 5),
    "sequence": (14, 22, 29),
    "encoder_sequence": (17, 25, 33),
}
_FURTHER = ((11, 19, 27), (13, 21, 31), (15, 23, 37), (18, 26, 35))


class UnknownAxesError(ValueError):
    """The outputs' sizes follow the inputs' in a way that has no rule; such a module runs at exact shapes."""


@dataclass(frozen=True)
class DimRule:
    """One dimension of an output: `offset` + `scale` * floor((P + `shift`) / `divisor`) with the product P of the
    sizes of `axes`, in that order (outermost first); no axes: fixed at `offset`.
    """

    axes: tuple[str, ...] = ()
    scale: int = 1
    offset: int = 0
    divisor: int = 1
    shift: int = 0

    def size(self, sizes: Sizes) -> int:
        if not self.axes:
            return self.offset
        return self.offset + self.scale * ((prod(sizes[axis] for axis in self.axes) + self.shift) // self.divisor)


OutputRules = tuple[tuple[DimRule, ...], ...]


def small_sizes(axes: tuple[str, ...], limits: Mapping[str, int | None]) -> dict[str, tuple[int, int, int]]:
    """Probing sizes for each axis, below the model's limits, no two alike among axes."""
    further = iter(_FURTHER)
    probes = {axis: PROBES.get(axis) or next(further, (41, 47, 53)) for axis in axes}
    for axis, sizes in probes.items():
        limit = limits.get(axis)
        if limit is not None and limit <= sizes[2]:
            probes[axis] = (max(limit - 4, 1), max(limit - 2, 1), limit)
    return probes


def find_rules(
    run: Callable[[Sizes], Shapes],
    axes: tuple[str, ...],
    probes: Mapping[str, tuple[int, int, int]] = PROBES,
) -> OutputRules:
    """Rules for every dimension of every output of `run`, which maps axis sizes to the outputs' shapes.

    `probes` holds three sizes per axis, the last for verification. Raises UnknownAxesError where a rule cannot be
    found or fails the verifying run.
    """
    first = {axis: probes[axis][0] for axis in axes}
    base = run(first)
    moved = {axis: run({**first, axis: probes[axis][1]}) for axis in axes}
    if any([len(shape) for shape in shapes] != [len(shape) for shape in base] for shapes in moved.values()):
        raise UnknownAxesError("the number of outputs or of their dimensions changes with the input's size")
    rules = tuple(
        tuple(
            _rule(
                size,
                {axis: shapes[i][d] for axis, shapes in moved.items()},
                first,
                probes,
                partial(_dimension, run, first, i, d),
            )
            for d, size in enumerate(shape)
        )
        for i, shape in enumerate(base)
    )
    last = {axis: probes[axis][2] for axis in axes}
    for expected, found in zip(rules, run(last), strict=True):
        if tuple(rule.size(last) for rule in expected) != tuple(found):
            raise UnknownAxesError(
                f"an output of shape {found} at {last} does not follow the rule seen at smaller sizes"
            )
    return rules


def _dimension(run: Callable, first: Sizes, output: int, dim: int, axis: str, size: int) -> int:
    return run({**first, axis: size})[output][dim]


def _rule(size: int, moved: Sizes, first: Sizes, probes: Mapping, dimension: Callable[[str, int], int]) -> DimRule:
    """The rule of a dimension that had `size` at the `first` sizes and `moved[axis]` when that axis alone had its
    second size.
    """
    depends = [axis for axis, other in moved.items() if other != size]
    if not depends:
        return DimRule(offset=size)
    if len(depends) == 1:
        (axis,) = depends
        low, high, _ = probes[axis]
        scale, rest = divmod(moved[axis] - size, high - low)
        # A stride can look like an affine function at two sizes: a third tells.
        if rest == 0 and dimension(axis, high - 1) == size + scale * (high - 1 - low):
            return DimRule((axis,), scale, size - scale * low)
        return _floor_rule(axis, size, moved[axis], (low, high), partial(dimension, axis))
    if len(depends) == 2:
        scale, rest = divmod(size, first[depends[0]] * first[depends[1]])
        if rest == 0:
            return DimRule(tuple(depends), scale)
    raise UnknownAxesError(f"an output dimension of {size} follows the axes {depends} in a way that has no rule")


def _floor_rule(axis: str, size: int, other: int, between: tuple[int, int], dimension: Callable) -> DimRule:
    """The rule of a dimension that grows in steps: the first two sizes at which it does give their width and place.

    Strides of several layers make one: nested floors are a floor.
    """
    low, high = between
    if other <= size:
        raise UnknownAxesError(f"an output dimension shrinks from {size} to {other} as {axis} grows")
    first = _step_after(low, high, size, dimension)
    height = dimension(first) - size
    width_seen = max(high - low, 2)
    second = _step_after(first, first + 2 * width_seen * height, size + height, dimension)
    divisor = second - first
    return DimRule((axis,), height, size, divisor, divisor - first)


def _step_after(low: int, high: int, size: int, dimension: Callable) -> int:
    """The smallest input size above `low`, up to `high`, whose output is larger than `size` (bisection)."""
    if dimension(high) <= size:
        raise UnknownAxesError(f"an output dimension of {size} follows its axis in a way that has no rule")
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if dimension(middle) > size else (middle, high)
    return high
