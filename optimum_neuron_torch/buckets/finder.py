"""Finding the layout of a module's calls: the axes of the inputs, the rules of the outputs, what may be padded.

Candidates are tried one after the other, on fake tensors and where these fail small on the host; what runs is checked
by a padded call against a plain one. No model is known by name.
"""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from .axes import OutputRules, UnknownAxesError, find_rules, small_sizes
from .flat import Form, NotFlatError, flatten
from .inputs import Placed
from .layouts import Layout, Verdict
from .probing import Call, FakeModule, HostModule, Samples, as_float32, first_line, small_host_module
from .selfcheck import SelfCheck
from .twin import LARGEST_COPY_BYTES, parameter_bytes


if TYPE_CHECKING:
    from .module import BucketedModule

# Sizes near a call's own, for models that do not run at small ones.
_NEAR = ((0, 8, 17), (0, 10, 21), (0, 12, 25))


class Finder:
    """Finds the layout of calls of one form, and checks it."""

    def __init__(self, owner: "BucketedModule", call: Call, candidates: list[Placed]) -> None:
        self.owner, self.call, self.candidates = owner, call, candidates
        self.samples = Samples.of(call, owner.model_config)

    def find(self) -> Verdict:
        """The layout, or why there is none. Raises ValueError for an axis of the user's that cannot be placed."""
        failures: list[str] = []
        for module, is_float32 in self._modules(failures):
            for placed, probes in self._attempts():
                try:
                    output, rules = self._rules(module, is_float32, placed, probes)
                except NotFlatError as error:
                    return f"its output has no bucket rule: {error}"
                except UnknownAxesError as error:
                    failures.append(str(error))
                except Exception as error:
                    failures.append(f"it does not run at probing sizes: {first_line(error)}")
                else:
                    placed, probes, rules = self._with_other_axis(module, is_float32, placed, probes, rules)
                    return self._checked(Layout(placed.dims, rules, output, self._hidden(placed)), placed, probes)
        return failures[0] if failures else "no input has a batch"

    def _hidden(self, placed: Placed) -> dict[str, str]:
        """Lengths of texts that are no axes, with the reason."""
        tokens = self.owner.inputs.tokens(list(self.call.leaves))
        if tokens is None or any(axis not in (None, "batch") for axis in placed.dims[tokens.path]):
            return {}
        name = type(self.owner.module).__name__
        return {"sequence": f"{name} takes no attention_mask that could hide pads"}

    def _with_other_axis(
        self, module: Any, is_float32: bool, placed: Placed, probes: dict, rules: OutputRules
    ) -> tuple[Placed, dict, OutputRules]:
        """The same with the user's own axis, where its dimension has to be found."""
        missing = self.owner.inputs.to_find(placed)
        if not missing:
            return placed, probes, rules
        found = []
        places = self.owner.inputs.open_dimensions(placed, list(self.call.leaves), missing[0])
        for further in places if len(missing) == 1 else ():
            for wider in (small_sizes(tuple(further.sizes), self.owner.limits), self._near(further)):
                try:
                    found.append((further, wider, self._rules(module, is_float32, further, wider)[1]))
                    break
                except Exception:  # the model needs this size
                    continue
        if len(found) == 1:
            return found[0]
        example = self.call.leaves[0].path
        raise ValueError(
            f"the bucket axes {missing}: which dimensions of the inputs of {type(self.owner.module).__name__} they "
            f"are cannot be found ({len(found)} are open). Name them: Buckets(..., dims={{{example!r}: "
            f"{{1: {missing[0]!r}}}}})"
        )

    def _modules(self, failures: list[str]) -> Iterator[tuple[Any, bool]]:
        try:
            yield FakeModule(self.owner.module), False
        except Exception as error:
            failures.append(f"fake tensors fail: {first_line(error)}")
        try:  # models that read values while they run cannot be traced on fake tensors
            yield small_host_module(self.owner.module), True
        except Exception as error:
            failures.append(first_line(error))

    def _attempts(self) -> Iterator[tuple[Placed, dict[str, tuple[int, int, int]]]]:
        for placed in self.candidates:
            yield placed, small_sizes(tuple(placed.sizes), self.owner.limits)
        for placed in self.candidates:
            yield placed, self._near(placed)

    def _near(self, placed: Placed) -> dict[str, tuple[int, int, int]]:
        probes, steps = small_sizes(tuple(placed.sizes), self.owner.limits), itertools.cycle(_NEAR)
        for axis, size in placed.sizes.items():
            if axis != "batch":
                low, middle, high = next(steps)
                limit = self.owner.limits.get(axis)
                start = size if limit is None or size + high <= limit else max(limit - high, 1)
                probes[axis] = (start + low, start + middle, start + high)
        return probes

    def _rules(
        self, module: Any, is_float32: bool, placed: Placed, probes: dict[str, tuple[int, int, int]]
    ) -> tuple[Form, OutputRules]:
        """How the output is nested, and its rules. Raises what the module raises, NotFlatError, UnknownAxesError."""
        forms: list[Form] = []

        def shapes(sizes: dict[str, int]) -> list[tuple[int, ...]]:
            inputs = self.samples.zeros(placed.dims, sizes)
            inputs = [as_float32(tensor) for tensor in inputs] if is_float32 else inputs
            tensors: list[torch.Tensor] = []
            forms.append(flatten(module.run(self.call.form, inputs), tensors))
            if forms[-1] != forms[0]:
                raise UnknownAxesError("a number among its outputs depends on the input's size")
            return [tuple(tensor.shape) for tensor in tensors]

        rules = find_rules(shapes, tuple(placed.sizes), probes)
        return forms[0], rules

    def bucket_mismatch(self, layout: Layout, placed: Placed, bucket: dict[str, int], fit: Callable) -> str | None:
        """What padding up to a real bucket changes: some models compute otherwise above some length.

        The shortest inputs of the bucket are furthest from it. A large model is not asked: it would take long.
        """
        lengths = [axis for axis in placed.sizes if axis != "batch" and axis not in layout.unpadded]
        if not lengths or parameter_bytes(self.owner.module) > LARGEST_COPY_BYTES:
            return None
        sizes = {
            axis: _shortest(bucket[axis], partial(fit, axis)) if axis in lengths else bucket[axis] for axis in bucket
        }
        sizes["batch"] = 2
        twin = small_host_module(self.owner.module)
        check = SelfCheck(twin, self.call, self.samples, self.owner.pads, placed.dims)
        try:
            return check.mismatch(layout.rules, sizes, lengths, {**bucket, "batch": 2})
        except Exception:  # the plain call does not run at the shortest length: such a call will not come
            return None

    # ---- the self check ---------------------------------------------------------------------------------------------

    def _checked(self, layout: Layout, placed: Placed, probes: dict[str, tuple[int, int, int]]) -> Verdict:
        if self.owner.config.verify is False:
            return layout
        try:
            twin, samples, rules = self._twin(layout, placed, probes)
        except Exception as error:
            return f"the self check could not run ({first_line(error)})"
        check = SelfCheck(twin, self.call, samples, self.owner.pads, placed.dims)
        sizes = {axis: probes[axis][1] for axis in placed.sizes}
        try:
            reason = check.mismatch(rules, sizes, sizes)
            if reason is None:
                return layout
            if any(len(rule.axes) > 1 for output in rules for rule in output):
                if check.mismatch(_reversed(rules), sizes, sizes) is None:
                    return replace(layout, rules=_reversed(layout.rules))
            bad = {axis: text for axis in sizes if (text := check.mismatch(rules, sizes, [axis])) is not None}
            kept = [axis for axis in sizes if axis not in bad]
            if bad and kept and check.mismatch(rules, sizes, kept) is None:
                return replace(layout, unpadded={**layout.unpadded, **bad})
            return reason
        except Exception as error:
            return f"the self check could not run ({first_line(error)})"

    def _twin(
        self, layout: Layout, placed: Placed, probes: dict[str, tuple[int, int, int]]
    ) -> tuple[HostModule, Samples, OutputRules]:
        """What the check runs on: a copy, or of a large model a shallow twin with outputs and a vocabulary of its own.

        Raises TooLargeError for a large module that is no Transformers model, and what the twin raises.
        """
        module = self.owner.module
        if parameter_bytes(module) <= LARGEST_COPY_BYTES or not hasattr(module, "_from_config"):
            return small_host_module(module), self.samples, layout.rules
        from .shallow import shallow_twin

        model = shallow_twin(module)
        twin = HostModule(model)
        return twin, Samples.of(self.call, model.config), self._rules(twin, True, placed, probes)[1]


def _reversed(rules: OutputRules) -> OutputRules:
    return tuple(tuple(replace(rule, axes=rule.axes[::-1]) for rule in output) for output in rules)


def _shortest(bucket: int, fit: Callable[[int], int]) -> int:
    """The smallest size that `bucket` serves."""
    low, high = 0, bucket
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fit(middle) >= bucket else (middle, high)
    return high
