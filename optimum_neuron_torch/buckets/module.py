"""The bucketed forward of any module: pad on the host, run one compiled function per bucket, cut the outputs to the
true sizes.

Shape legend: B batch, S sequence.
"""

import inspect
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch._subclasses.fake_tensor import FakeTensorMode

from .. import runtime
from ..config import NeuronConfig
from ..report import Ledger
from .axes import PROBES, DimRule, OutputRules, UnknownAxesError, find_rules
from .graphs import Graphs
from .modes import outside_inference_mode
from .pad import dense, pad_axis, pad_rows, repeat_last
from .shell import borrowed, shell_of
from .sizes import axis_sizes
from .twin import LARGEST_COPY_BYTES, host_copy, parameter_bytes


# Inputs with one entry per token, and what a pad is there. None: the model's pad token; "repeat": the last real entry.
PER_TOKEN_PADS: dict[str, int | str | None] = {
    "input_ids": None,
    "attention_mask": 0,
    "token_type_ids": 0,
    "position_ids": "repeat",
    "inputs_embeds": 0,
}
TOLERANCE = 1e-5


class ExactShapesError(NotImplementedError):
    """A call that cannot be padded without changing its result; the message says why."""


@dataclass(frozen=True)
class ForwardSpec:
    """What is static about a call: the names of the tensor arguments in order, and all other arguments."""

    names: tuple[str, ...]
    constants: tuple[tuple[str, Any], ...]


def run_forward(model: torch.nn.Module, spec: ForwardSpec, *tensors: torch.Tensor) -> list[torch.Tensor]:
    """The compiled function: `tensors` are the arguments `spec.names`; returns the tensors among the outputs, in
    order.
    """
    output = type(model).forward(model, **dict(zip(spec.names, tensors, strict=True)), **dict(spec.constants))
    return [leaf for leaf in pytree.tree_leaves(output) if isinstance(leaf, torch.Tensor)]


@dataclass(frozen=True)
class Layout:
    """What is known of calls of one form: rules for the output tensors, and the structure they are put back into."""

    rules: OutputRules
    structure: pytree.TreeSpec
    leaves: tuple[Any, ...]  # None where a tensor goes

    def rebuild(self, tensors: list[torch.Tensor]) -> Any:
        tensors = iter(tensors)
        return pytree.tree_unflatten(
            [next(tensors) if leaf is _TENSOR else leaf for leaf in self.leaves], self.structure
        )


class _Tensor:
    def __repr__(self) -> str:
        return "<tensor>"


_TENSOR = _Tensor()


@dataclass
class Call:
    """One call taken apart: host tensors by argument name, the axes of their dimensions, true sizes and the other
    arguments.
    """

    tensors: dict[str, torch.Tensor]
    dims: dict[str, tuple[str | None, ...]]
    sizes: dict[str, int]
    constants: tuple[tuple[str, Any], ...]

    @property
    def spec(self) -> ForwardSpec:
        return ForwardSpec(tuple(self.tensors), self.constants)

    @property
    def form(self) -> tuple:
        """What the layout of the outputs depends on, beside the sizes of the axes."""
        shapes = tuple(
            (name, tensor.dtype, tuple(axis or size for axis, size in zip(self.dims[name], tensor.shape, strict=True)))
            for name, tensor in self.tensors.items()
        )
        return shapes, self.constants


class BucketedModule:
    """Bucketed calls of one module's forward, in eval mode.

    `forward(arguments)` serves what has a bucket rule and raises ExactShapesError, with the reason, for what has none;
    `exact(arguments)` runs a call at its own shapes, compiled. `sequence_axis` is the bucket axis of its tokens;
    `home` the device its outputs go to, the module's own by default.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        config: NeuronConfig,
        ledger: Ledger,
        graphs: Graphs | None = None,
        *,
        sequence_axis: str = "sequence",
        function: str | None = None,
        home: str | None = None,
    ) -> None:
        self.module, self.config, self.ledger = module, config, ledger
        self.graphs = Graphs(ledger, config) if graphs is None else graphs  # an empty one is falsy
        self.shell = shell_of(module)
        self.parameters = inspect.signature(type(module).forward).parameters
        first_input = next(itertools.islice(self.parameters, 1, None), None)  # behind `self`, whatever its name
        self.main_input = getattr(module, "main_input_name", first_input)
        model_config = getattr(module, "config", None)
        limit = getattr(model_config, "max_position_embeddings", None)
        self.axis_sizes = {
            "batch": axis_sizes(config.buckets, "batch"),
            sequence_axis: axis_sizes(config.buckets, sequence_axis, limit),
        }
        self.sequence_axis, self.home = sequence_axis, home
        self.takes_tokens = self.main_input in PER_TOKEN_PADS
        self.function = function or ("encode" if "attention_mask" in self.parameters else "forward")
        self._layouts: dict[tuple, Layout | str] = {}
        self._changes_seen = self.graphs.changes

    # ---- calls ------------------------------------------------------------------------------------------------------

    def forward(self, arguments: dict[str, Any]) -> Any:
        """Run a call in buckets. Raises ExactShapesError for a call without a rule, BucketOverflowError above the
        largest bucket.
        """
        call = self._take_apart(arguments)
        largest = self.axis_sizes["batch"].largest
        if self.axis_sizes["batch"].overflow == "split" and largest is not None and call.sizes["batch"] > largest:
            return self._split(call, largest)
        return self._run(call)

    def _run(self, call: Call) -> Any:
        layout = self._layout(call)
        bucket = {axis: self.axis_sizes[axis].fit(size) for axis, size in call.sizes.items()}
        with outside_inference_mode():
            padded = {name: self._pad(name, tensor, call.dims[name], bucket) for name, tensor in call.tensors.items()}
            outputs = self._compiled(self.function, bucket, call, padded)
            if self._forget_layouts():
                layout = self._layout(call)
            outputs = [
                self._cut(output, rules, bucket, call.sizes)
                for output, rules in zip(outputs, layout.rules, strict=True)
            ]
        self.ledger.used(self.function, bucket, _positions(call.sizes), _positions(bucket))
        return layout.rebuild(outputs)

    def _split(self, call: Call, largest: int) -> Any:
        """Batches above the largest bucket run in parts; outputs whose first dimension is not the batch cannot be put
        together.
        """
        layout = self._layout(call)
        if any(rules[:1] != (DimRule(("batch",)),) for rules in layout.rules):
            raise ExactShapesError("overflow='split' needs outputs whose first dimension is the batch")
        parts = []
        for start in range(0, call.sizes["batch"], largest):
            rows = min(largest, call.sizes["batch"] - start)
            tensors = {
                n: t.narrow(0, start, rows) if call.dims[n][0] == "batch" else t for n, t in call.tensors.items()
            }
            parts.append(self._run(Call(tensors, call.dims, {**call.sizes, "batch": rows}, call.constants)))
        leaves = [[leaf for leaf in pytree.tree_leaves(part) if isinstance(leaf, torch.Tensor)] for part in parts]
        joined = [
            torch.cat([part.to("cpu") for part in column]).to(self._home.device)
            for column in zip(*leaves, strict=True)
        ]
        return self._layout(call).rebuild(joined)  # as the parts found it

    def exact(self, arguments: dict[str, Any]) -> Any:
        """Run a call at its own shapes, one graph per shape."""
        tensors, constants = _split_arguments(arguments)
        shapes = {name: "x".join(map(str, tensor.shape)) or "scalar" for name, tensor in tensors.items()}
        with outside_inference_mode():
            call = Call({name: _on_host(tensor) for name, tensor in tensors.items()}, {}, {}, constants)
            layout = self._layouts.get(key := ("exact", tuple(shapes.items()), constants))
            if layout is None:
                try:
                    layout = self._layouts[key] = self._learn_structure(call)
                except Exception as error:  # the stock path says what is wrong with the call
                    raise ExactShapesError(f"it does not run at these shapes: {_first_line(error)}") from error
            outputs = self._compiled("exact", shapes, call, call.tensors)
            if self._forget_layouts():
                layout = self._layouts[key] = self._learn_structure(call)
        self.ledger.used("exact", shapes, 1, 1)
        return layout.rebuild(outputs)

    @property
    def pad_token(self) -> int:
        """The model's pad token at present: users set it late."""
        return getattr(getattr(self.module, "config", None), "pad_token_id", None) or 0

    @property
    def _home(self) -> torch.nn.Parameter:
        """A parameter, for the module's device and dtype."""
        return next(self.module.parameters())

    def _compiled(
        self, function: str, bucket: dict[str, Any], call: Call, tensors: dict[str, torch.Tensor]
    ) -> list[torch.Tensor]:
        device = self._home.device
        arguments = [dense(tensor).to(device) for tensor in tensors.values()]
        with borrowed(self.shell, self.module) as shell:
            return self.graphs.call(function, tuple(bucket.items()), run_forward, shell, call.spec, *arguments)

    # ---- inputs -----------------------------------------------------------------------------------------------------

    def _take_apart(self, arguments: dict[str, Any]) -> Call:
        tensors, constants = _split_arguments(arguments)
        constants = dict(constants)
        if "use_cache" in self.parameters:
            if constants.get("use_cache") is True:
                raise ExactShapesError("a cache was asked for, which only models with generate() keep in buckets")
            constants["use_cache"] = False
        if "labels" in tensors:
            raise ExactShapesError("a loss is computed at exact shapes: padding rows would change its mean")
        if constants.get("logits_to_keep"):
            raise ExactShapesError("an integer logits_to_keep counts from the end, where the pads are")
        if self.main_input not in tensors and "inputs_embeds" not in tensors:
            raise ExactShapesError(f"a call without {self.main_input} (it has {sorted(tensors)}) has no bucket rule")
        main = tensors.get(self.main_input, tensors.get("inputs_embeds"))
        tensors = {name: _on_host(tensor) for name, tensor in tensors.items()}
        if not self.takes_tokens:
            dims = {
                name: ("batch" if t.dim() and t.shape[0] == main.shape[0] else None,) + (None,) * (t.dim() - 1)
                for name, t in tensors.items()
            }
            return Call(tensors, dims, {"batch": main.shape[0]}, tuple(sorted(constants.items())))
        if main.dim() != (2 if self.main_input in tensors else 3):
            raise ExactShapesError(f"{self.main_input} of shape {tuple(main.shape)} is not (batch, sequence)")
        batch, length = main.shape[:2]
        if "attention_mask" not in self.parameters:
            raise ExactShapesError(f"{type(self.module).__name__} takes no attention_mask that could hide pads")
        if tensors.get("attention_mask") is None:
            tensors["attention_mask"] = torch.ones(batch, length, dtype=torch.long)
        return Call(
            tensors,
            {name: _token_dims(name, tensor, batch, length, self.sequence_axis) for name, tensor in tensors.items()},
            {"batch": batch, self.sequence_axis: length},
            tuple(sorted(constants.items())),
        )

    def _pad(
        self, name: str, tensor: torch.Tensor, dims: tuple[str | None, ...], bucket: dict[str, int]
    ) -> torch.Tensor:
        for position, axis in enumerate(dims):
            if axis == "batch":
                tensor = pad_rows(tensor, bucket["batch"])
            elif axis is not None:
                value = PER_TOKEN_PADS.get(name, 0)
                value = self.pad_token if value is None else value
                padding = repeat_last if value == "repeat" else partial(pad_axis, value=value)
                tensor = padding(tensor, position, bucket[axis])
        return tensor

    # ---- outputs ----------------------------------------------------------------------------------------------------

    def _cut(
        self, output: torch.Tensor, rules: tuple[DimRule, ...], bucket: dict[str, int], sizes: dict[str, int]
    ) -> torch.Tensor:
        """`output` at its true size. Cuts behind the first dimension go by way of the host: on the device they would
        be a new shape.
        """
        wanted = [rule.size(sizes) for rule in rules]
        if self.home is not None:
            return _narrow(output.to(self.home), rules, bucket, sizes).contiguous()
        if list(output.shape) == wanted:
            return output
        behind_first = wanted[1:] != list(output.shape[1:]) or len(rules[0].axes) > 1
        if not behind_first or self.config.outputs == "view" or output.requires_grad:
            output = _narrow(output, rules, bucket, sizes)
            return output.contiguous() if output.requires_grad and self.config.outputs == "exact" else output
        return _narrow(output.to("cpu"), rules, bucket, sizes).contiguous().to(output.device)

    def _layout(self, call: Call) -> Layout:
        """The output rules for calls of this form; found and checked once. Raises ExactShapesError where there are
        none.
        """
        layout = self._layouts.get(call.form)
        if layout is None:
            layout = self._layouts[call.form] = self._find_layout(call)
        if isinstance(layout, str):
            raise ExactShapesError(layout)
        return layout

    def _forget_layouts(self) -> bool:
        """Drop what was learned of the outputs where the module's state has changed since; whether it has."""
        if self.graphs.changes == self._changes_seen:
            return False
        self._changes_seen = self.graphs.changes
        self._layouts.clear()
        return True

    def _find_layout(self, call: Call) -> Layout | str:
        try:
            layout = self._learn_structure(call)
        except Exception as error:
            return f"it does not run at probing sizes: {_first_line(error)}"
        axes = tuple(call.sizes)
        try:
            with borrowed(self.shell, self.module) as shell:
                rules = find_rules(lambda sizes: _fake_shapes(shell, call.spec, _probe(call, sizes)), axes)
        except UnknownAxesError as error:
            return str(error)
        except Exception as fake_error:  # models that read values while they run cannot be traced on fake tensors
            if parameter_bytes(self.module) > LARGEST_COPY_BYTES:
                return f"it is too large to probe on the host, and fake tensors fail: {_first_line(fake_error)}"
            try:
                twin = host_copy(self.module)
                rules = find_rules(lambda sizes: _real_shapes(twin, call.spec, _probe(call, sizes)), axes)
            except Exception as error:
                return f"its output sizes could not be found: {_first_line(error)}"
        if len(rules) != sum(leaf is _TENSOR for leaf in layout.leaves):
            return "the number of outputs depends on the input's size"
        layout = Layout(rules, layout.structure, layout.leaves)
        return self._mismatch(call, layout) or layout

    def _learn_structure(self, call: Call) -> Layout:
        """Run once at small size on the host, or on fake tensors, to see how the outputs are nested."""
        small = _probe(call, {axis: PROBES[axis][0] for axis in call.sizes})
        try:
            with borrowed(self.shell, self.module) as shell:
                output = _fake_run(shell, call.spec, small)
        except Exception:
            output = _run_on(host_copy(self.module), call.spec, small)
        leaves, structure = pytree.tree_flatten(output)
        return Layout((), structure, tuple(_TENSOR if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves))

    def _mismatch(self, call: Call, layout: Layout) -> str | None:
        """The self check: a padded run against a plain one on the host. Returns what differs, or None."""
        if self.config.verify is False or parameter_bytes(self.module) > LARGEST_COPY_BYTES:
            return None
        twin = host_copy(self.module)
        sizes = {axis: PROBES[axis][1] for axis in call.sizes}
        bucket = {axis: size + 7 for axis, size in sizes.items()}
        config = getattr(self.module, "config", None)
        end_token = getattr(config, "eos_token_id", None)
        vocabulary = getattr(config, "vocab_size", None)
        if not isinstance(end_token, int) or not 0 <= end_token < (vocabulary or 0):
            end_token = None
        inputs = _probe(call, sizes, vocabulary, end_token)
        padded = {name: self._pad(name, tensor, call.dims[name], bucket) for name, tensor in inputs.items()}
        plain, run = (
            [leaf for leaf in pytree.tree_leaves(_run_on(twin, call.spec, x)) if isinstance(leaf, torch.Tensor)]
            for x in (inputs, padded)
        )
        for index, (expected, found, rules) in enumerate(zip(plain, run, layout.rules, strict=True)):
            found = _narrow(found, rules, bucket, sizes)
            scale = max(1.0, expected.abs().max().item()) if expected.numel() else 1.0
            difference = (expected.double() - found.double()).abs().max().item() if expected.numel() else 0.0
            if not difference <= TOLERANCE * scale:
                message = f"padding changes output {index} by {difference:.1e} (tolerance {TOLERANCE * scale:.0e})"
                if self.config.verify == "raise":
                    raise ValueError(
                        f"{type(self.module).__name__}: {message}; verify='warn' runs it at exact shapes instead"
                    )
                return message
        return None


def _positions(sizes: dict[str, int]) -> int:
    """Positions a call computes: batch x sequence."""
    return math.prod(sizes.values())


def _split_arguments(arguments: dict[str, Any]) -> tuple[dict[str, torch.Tensor], tuple[tuple[str, Any], ...]]:
    """Tensor arguments and the other ones; raises ExactShapesError for containers of tensors."""
    given = {name: value for name, value in arguments.items() if value is not None}
    tensors = {name: value for name, value in given.items() if isinstance(value, torch.Tensor)}
    rest = {name: value for name, value in given.items() if name not in tensors}
    nested = sorted(name for name, value in rest.items() if not isinstance(value, (bool, int, float, str)))
    if nested:
        raise ExactShapesError(f"arguments {nested} have no bucket rule yet")
    return tensors, tuple(sorted(rest.items()))


def _token_dims(name: str, tensor: torch.Tensor, batch: int, length: int, axis: str) -> tuple[str | None, ...]:
    """Axes of an input of a text model; raises ExactShapesError for a shape that is not (B, S, ...)."""
    if tensor.dim() >= 2 and tensor.shape[:2] == (batch, length) and name in PER_TOKEN_PADS:
        return ("batch", axis) + (None,) * (tensor.dim() - 2)
    if tensor.dim() == 2 and tensor.shape == (1, length) and name == "position_ids":
        return (None, axis)
    raise ExactShapesError(
        f"{name} of shape {tuple(tensor.shape)} beside {batch} rows of {length} tokens has no bucket rule"
    )


def _on_host(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to("cpu", copy=True) if runtime.is_neuron(tensor) or tensor.is_inference() else tensor


def _narrow(
    x: torch.Tensor, rules: tuple[DimRule, ...], bucket: dict[str, int], sizes: dict[str, int]
) -> torch.Tensor:
    """A view of the true part of `x`; a product of axes is taken apart, cut and put together."""
    for dim, rule in enumerate(rules):
        if len(rule.axes) > 1:
            x = x.unflatten(dim, [bucket[axis] for axis in rule.axes])
            for offset, axis in enumerate(rule.axes):
                x = x.narrow(dim + offset, 0, sizes[axis])
            x = x.flatten(dim, dim + len(rule.axes) - 1)
        elif rule.size(sizes) != x.shape[dim]:
            x = x.narrow(dim, 0, rule.size(sizes))
    return x


def _probe(
    call: Call, sizes: dict[str, int], vocabulary: int | None = None, end_token: int | None = None
) -> dict[str, torch.Tensor]:
    """Inputs of the call's form at other sizes; with a vocabulary, random ids and a ragged mask."""
    generator = torch.Generator().manual_seed(0)
    inputs = {}
    for name, tensor in call.tensors.items():
        shape = [
            sizes.get(axis, size)
            for axis, size in zip(call.dims.get(name, (None,) * tensor.dim()), tensor.shape, strict=True)
        ]
        if name == "attention_mask":
            inputs[name] = torch.ones(shape, dtype=tensor.dtype)
            if vocabulary is not None and shape[0] > 1:
                inputs[name][1, shape[1] // 2 :] = 0
        elif name == "position_ids":
            inputs[name] = torch.arange(shape[1]).expand(shape).contiguous()
        elif tensor.is_floating_point():
            inputs[name] = torch.rand(shape, generator=generator)
        elif vocabulary is not None and name == "input_ids":
            inputs[name] = torch.randint(0, vocabulary, shape, generator=generator)
            if end_token is not None:  # models that read the position of the first one (CLIP) find it before the pads
                inputs[name][:, -1] = end_token
        else:
            inputs[name] = torch.zeros(shape, dtype=tensor.dtype)
    return inputs


@torch.no_grad()
def _run_on(module: torch.nn.Module, spec: ForwardSpec, inputs: dict[str, torch.Tensor]) -> Any:
    return type(module).forward(module, **inputs, **dict(spec.constants))


def _fake_run(shell: torch.nn.Module, spec: ForwardSpec, inputs: dict[str, torch.Tensor]) -> Any:
    """The module's output on fake host tensors: shapes without computing, and without touching the device."""
    with FakeTensorMode() as mode, torch.no_grad():

        def fake(tensor: torch.Tensor) -> torch.Tensor:
            return mode.from_tensor(
                torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu")
            )

        state = {name: fake(tensor) for name, tensor in (*shell.named_parameters(), *shell.named_buffers())}
        arguments = {name: mode.from_tensor(tensor) for name, tensor in inputs.items()} | dict(spec.constants)
        forward: Callable = _ClassForward(shell)
        return torch.func.functional_call(forward, {f"inner.{name}": t for name, t in state.items()}, (), arguments)


class _ClassForward(torch.nn.Module):
    """Calls the class's forward on an inner module, whatever hooks its instances carry."""

    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, **arguments: Any) -> Any:
        return type(self.inner).forward(self.inner, **arguments)


def _fake_shapes(shell: torch.nn.Module, spec: ForwardSpec, inputs: dict[str, torch.Tensor]) -> list[tuple[int, ...]]:
    output = _fake_run(shell, spec, inputs)
    return [tuple(leaf.shape) for leaf in pytree.tree_leaves(output) if isinstance(leaf, torch.Tensor)]


def _real_shapes(module: torch.nn.Module, spec: ForwardSpec, inputs: dict[str, torch.Tensor]) -> list[tuple[int, ...]]:
    output = _run_on(module, spec, inputs)
    return [tuple(leaf.shape) for leaf in pytree.tree_leaves(output) if isinstance(leaf, torch.Tensor)]


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:160]}"
