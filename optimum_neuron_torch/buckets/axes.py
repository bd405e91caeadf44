"""Finding out how the sizes of a module's outputs follow from the sizes of its inputs' axes, without knowing the
model.

The module is run (on fake tensors, or small on the host) at two sizes per axis, one axis at a time; a further run with
all sizes changed verifies what was found. An output axis is fixed, an affine function of one input axis, or the
product of two.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import prod


Shapes = list[tuple[int, ...]]
# Small, and different from each other and from usual model sizes, so that a coincidence is unlikely; sizes of the
# verifying run come last.
PROBES = {"batch": (2, 3, 5), "sequence": (14, 22, 29), "encoder_sequence": (15, 24, 31)}


class UnknownAxesError(ValueError):
    """The outputs' sizes follow the inputs' in a way that has no rule; such a module runs at exact shapes."""


@dataclass(frozen=True)
class DimRule:
    """One dimension of an output: `offset` + `scale` * (product of the sizes of `axes`, in that order); no axes: fixed
    at `offset`.
    """

    axes: tuple[str, ...] = ()
    scale: int = 1
    offset: int = 0

    def size(self, sizes: dict[str, int]) -> int:
        return self.offset + (self.scale * prod(sizes[axis] for axis in self.axes) if self.axes else 0)


OutputRules = tuple[tuple[DimRule, ...], ...]


def find_rules(run: Callable[[dict[str, int]], Shapes], axes: tuple[str, ...]) -> OutputRules:
    """Rules for every dimension of every output of `run`, which maps axis sizes to the outputs' shapes.

    Raises UnknownAxesError where a rule cannot be found or fails the verifying run.
    """
    first = {axis: PROBES[axis][0] for axis in axes}
    base = run(first)
    moved = {axis: run({**first, axis: PROBES[axis][1]}) for axis in axes}
    if any([len(shape) for shape in shapes] != [len(shape) for shape in base] for shapes in moved.values()):
        raise UnknownAxesError("the number of outputs or of their dimensions changes with the input's size")
    rules = tuple(
        tuple(
            _rule(size, {axis: shapes[i][d] for axis, shapes in moved.items()}, first) for d, size in enumerate(shape)
        )
        for i, shape in enumerate(base)
    )
    last = {axis: PROBES[axis][2] for axis in axes}
    for expected, found in zip(rules, run(last), strict=True):
        if tuple(rule.size(last) for rule in expected) != tuple(found):
            raise UnknownAxesError(
                f"an output of shape {found} at {last} does not follow the rule seen at smaller sizes"
            )
    return rules


def _rule(size: int, moved: dict[str, int], first: dict[str, int]) -> DimRule:
    """The rule of a dimension that had `size` at the `first` sizes and `moved[axis]` when that axis alone had its
    second size.
    """
    depends = [axis for axis, other in moved.items() if other != size]
    if not depends:
        return DimRule(offset=size)
    if len(depends) == 1:
        (axis,) = depends
        low, high, _ = PROBES[axis]
        scale, rest = divmod(moved[axis] - size, high - low)
        if rest == 0:
            return DimRule((axis,), scale, size - scale * low)
    if len(depends) == 2 and size == first[depends[0]] * first[depends[1]]:
        return DimRule(tuple(depends))
    raise UnknownAxesError(f"an output dimension of {size} follows the axes {depends} in a way that has no rule")
