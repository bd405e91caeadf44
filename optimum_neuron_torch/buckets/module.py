"""The bucketed forward of any module: pad on the host, run one compiled function per bucket, cut the outputs to the
true sizes.

Shape legend: B batch, S sequence.
"""

import inspect
import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

import torch

from ..config import NeuronConfig
from ..report import Ledger
from .axes import DimRule
from .finder import Finder
from .flat import Form, NotFlatError, flatten, rebuild, tensors_of
from .graphs import UNTRACEABLE, Graphs
from .holes import takes_ranges, whole_places, with_marks
from .inputs import TOKENS, InputAxes, Leaf, Pads, Placed
from .layouts import Layout, LayoutStore
from .modes import outside_inference_mode
from .pad import dense, on_host
from .probing import (
    MASK,
    Call,
    FakeModule,
    as_float32,
    call_forward,
    first_line,
    small_host_module,
    text_config,
)
from .selfcheck import narrow
from .shell import borrowed, shell_of
from .sizes import AxisSizes, axis_sizes


MOST_PLANS = 4096
# Where a configuration says how long an input may be, by axis.
_LIMITS = {
    "sequence": ("max_target_positions", "max_position_embeddings"),
    "encoder_sequence": ("max_source_positions", "max_position_embeddings"),
}


# Where outputs go in calls from this context; None: where the module is, or its owner wants them.
_home: ContextVar[str | None] = ContextVar("home of outputs", default=None)


@contextmanager
def answering_on(device: str) -> Iterator[None]:
    """Within the block, bucketed calls return tensors on `device`: for code behind them that has no bucket shapes."""
    token = _home.set(device)
    try:
        yield
    finally:
        _home.reset(token)


class ExactShapesError(NotImplementedError):
    """A call that cannot be padded without changing its result; the message says why."""


class NoGraphError(NotImplementedError):
    """A call that does not compile as one graph; the message says why."""


@dataclass(frozen=True)
class ForwardSpec:
    """What is static about a call: how the arguments are made from the tensors, constants included, and which of these
    are padding masks without holes.
    """

    form: Form
    whole: tuple[int, ...] = ()


def run_forward(model: torch.nn.Module, spec: ForwardSpec, *tensors: torch.Tensor) -> list[torch.Tensor]:
    """The compiled function: returns the tensors among the outputs, in order."""
    return tensors_of(call_forward(model, spec.form, with_marks(tensors, spec.whole)))


@dataclass(frozen=True)
class Plan:
    """How calls of one form and these sizes run: `state` is that of the module it holds for."""

    layout: Layout
    sizes: dict[str, int]
    bucket: dict[str, int]
    state: str


class BucketedModule:
    """Bucketed calls of one module's forward, in eval mode.

    `forward(arguments)` serves what has a bucket rule and raises ExactShapesError, with the reason, for what has none;
    `exact(arguments)` runs a call at its own shapes, compiled. Both raise NoGraphError for what does not compile.
    `sequence_axis` is the bucket axis of its tokens, `function` the name of its graphs, `home` the device its outputs
    go to (None: the module's own).
    """

    def __init__(
        self,
        module: torch.nn.Module,
        config: NeuronConfig,
        ledger: Ledger,
        graphs: Graphs | None = None,
        *,
        sequence_axis: str | None = None,
        function: str | None = None,
        home: str | None = None,
    ) -> None:
        self.module, self.config, self.ledger = module, config, ledger
        self.graphs = Graphs(ledger, config) if graphs is None else graphs  # an empty one is falsy
        self.shell = shell_of(module)
        self.parameters = inspect.signature(type(module).forward).parameters
        first_input = next(itertools.islice(self.parameters, 1, None), None)  # behind `self`, whatever its name
        self.main_input = getattr(module, "main_input_name", first_input)
        self.model_config = _config_of(module)
        has_decoder = "decoder_input_ids" in self.parameters
        self.sequence_axis = sequence_axis or ("encoder_sequence" if has_decoder else "sequence")
        self.home = home
        self.inputs = InputAxes(
            config.buckets, main_input=self.main_input, tokens_axis=self.sequence_axis, has_decoder=has_decoder
        )
        self.limits = {axis: _limit(self.model_config, axis) for axis in config.buckets.axes}
        named = ["batch", self.sequence_axis, *(["sequence"] if has_decoder else [])]
        self.axis_sizes = {axis: self._axis_sizes(axis) for axis in [*named, *config.buckets.other_axes]}
        self.takes_tokens = self.main_input in TOKENS
        self.takes_ranges = takes_ranges(module)
        self.function = function or ("encode" if MASK in self.parameters else "forward")
        self._layouts = LayoutStore()
        self._plans: dict[tuple, Plan] = {}
        self._changes_seen = self.graphs.changes
        self._uncompilable: dict[tuple, str] = {}
        self._lock = threading.RLock()

    @property
    def pad_token(self) -> int:
        """The model's pad token at present: users set it late."""
        return getattr(text_config(self.model_config), "pad_token_id", None) or 0

    @property
    def pads(self) -> Pads:
        return Pads(self.pad_token)

    def _axis_sizes(self, axis: str) -> AxisSizes:
        return axis_sizes(self.config.buckets, axis, self.limits.get(axis))

    # ---- calls ------------------------------------------------------------------------------------------------------

    def forward(self, arguments: dict[str, Any]) -> Any:
        """Run a call in buckets. Raises ExactShapesError for a call without a rule, BucketOverflowError above the
        largest bucket.
        """
        call = self._take_apart(arguments)
        plan = self._plan(call)
        if plan.sizes.get("batch", 0) > plan.bucket.get("batch", 0):
            return self._split(call, plan, plan.bucket["batch"])
        return self._run(call, plan)

    def check_ahead(self) -> None:
        """The self check on inputs that are made up, for a module whose tokens are all it needs.

        Raises ValueError for what it finds, under verify="raise".
        """
        arguments = {self.main_input: torch.zeros(2, 9, dtype=torch.long)}
        if self.main_input != "input_ids" or self.inputs.has_decoder:
            return
        try:
            FakeModule(self.module).run(Call.of(arguments).form, list(arguments.values()))
        except Exception:  # it needs more, which its first call has
            return
        with suppress(ExactShapesError):
            self._plan(self._take_apart(arguments))

    def _run(self, call: Call, plan: Plan) -> Any:
        for axis, reason in plan.layout.unpadded.items():
            self.ledger.depart("exact_shapes", "forward()", f"{axis} is not padded: {reason}")
        with outside_inference_mode():
            pads = self.pads
            padded = [pads.pad(leaf, plan.layout.dims[leaf.path], plan.bucket) for leaf in call.leaves]
            outputs = self._compiled_padded(call, plan, padded)
            if self._forget_plans() and self._state() != plan.state:  # what was known of the module may be wrong
                return self._run(call, self._plan(call))
            _check_shapes(outputs, plan)
            outputs = [
                self._cut(output, rules, plan) for output, rules in zip(outputs, plan.layout.rules, strict=True)
            ]
        self.ledger.used(self.function, plan.bucket, _positions(plan.sizes), _positions(plan.bucket))
        return rebuild(plan.layout.output, outputs)

    def _compiled_padded(self, call: Call, plan: Plan, padded: list[torch.Tensor]) -> list[torch.Tensor]:
        """Raises ExactShapesError where an automatic bucket goes beyond what the model can take, ValueError where a
        listed one does.
        """
        try:
            return self._compiled(self.function, plan.bucket, call.form, padded)
        except (IndexError, RuntimeError) as error:
            self._refuse_beyond_limit(plan.sizes, plan.bucket, error)
            open_axes = [
                axis
                for axis, size in plan.sizes.items()
                if size != plan.bucket[axis] and self._sizes_of(axis).is_automatic and self.limits.get(axis) is None
            ]
            if not open_axes or not _is_index_error(error):
                raise
            message = f"it does not run with {open_axes[0]} {plan.bucket[open_axes[0]]}: {first_line(error)}"
            raise ExactShapesError(message) from error

    def _refuse_beyond_limit(self, sizes: dict[str, int], bucket: dict[str, int], error: Exception | None) -> None:
        """Raises ValueError for a listed bucket, which failed, above a limit of the module that the call keeps."""
        for axis, size in bucket.items():
            limit = self.limits.get(axis)
            if limit is not None and sizes[axis] <= limit < size:
                raise ValueError(
                    f"the bucket {axis} {size} is above the limit of {type(self.module).__name__}, {limit}, which "
                    f"does not run at that size: use Buckets({axis}=[..., {limit}])"
                ) from error

    def _split(self, call: Call, plan: Plan, largest: int) -> Any:
        """Batches above the largest bucket run in parts; outputs whose first dimension is not the batch cannot be put
        together.
        """
        if any(rules[:1] != (DimRule(("batch",)),) for rules in plan.layout.rules):
            raise ExactShapesError("overflow='split' needs outputs whose first dimension is the batch")
        parts, dims, batch = [], plan.layout.dims, plan.sizes["batch"]
        for start in range(0, batch, largest):
            rows = min(largest, batch - start)
            tensors = [
                leaf.tensor.narrow(dims[leaf.path].index("batch"), start, rows)
                if "batch" in dims[leaf.path]
                else leaf.tensor
                for leaf in call.leaves
            ]
            part = call.with_tensors(tensors)
            parts.append(tensors_of(self._run(part, self._placed(part, plan, {**plan.sizes, "batch": rows}))))
        joined = [
            torch.cat([part.to("cpu") for part in column]).to(self._home.device) for column in zip(*parts, strict=True)
        ]
        return rebuild(plan.layout.output, joined)

    def exact(self, arguments: dict[str, Any]) -> Any:
        """Run a call at its own shapes, one graph per shape."""
        try:
            call = Call.of({name: value for name, value in arguments.items() if value is not None})
        except NotFlatError as error:
            raise ExactShapesError(str(error)) from error
        shapes = {leaf.path: "x".join(map(str, leaf.shape)) or "scalar" for leaf in call.leaves}
        with outside_inference_mode():
            tensors = [on_host(leaf.tensor) for leaf in call.leaves]
            output = self._output_form(call.form, tensors)
            outputs = self._compiled("exact", shapes, call.form, tensors)
            if self._forget_plans():
                output = self._output_form(call.form, tensors)
        self.ledger.used("exact", shapes, 1, 1)
        return rebuild(output, outputs)

    def _output_form(self, form: Form, tensors: list[torch.Tensor]) -> Form:
        """How the outputs of a call at exact shapes are nested. Raises ExactShapesError where that is not known."""
        key = ("exact", self._state(), form, tuple((tuple(tensor.shape), tensor.dtype) for tensor in tensors))
        with self._lock:
            found = self._layouts.get(key, self.module)
            if found is None:
                try:
                    found = Layout({}, (), flatten(self._run_anywhere(form, tensors), []))
                except NotFlatError as error:
                    found = f"its output has no rule: {error}"
                except Exception as error:  # the stock path says what is wrong with the call
                    raise ExactShapesError(f"it does not run at these shapes: {first_line(error)}") from error
                self._layouts.put(key, self.module, found)
        if isinstance(found, str):
            raise ExactShapesError(found)
        return found.output

    def _run_anywhere(self, form: Form, tensors: list[torch.Tensor]) -> Any:
        try:
            return FakeModule(self.module).run(form, tensors)
        except Exception:
            return small_host_module(self.module).run(form, [as_float32(tensor) for tensor in tensors])

    @property
    def _home(self) -> torch.Tensor:
        """A parameter or buffer, for the module's device and dtype."""
        return next(itertools.chain(self.module.parameters(), self.module.buffers()))

    def _state(self) -> str:
        with borrowed(self.shell, self.module) as shell:
            return self.graphs.state_of(shell)

    def _compiled(
        self, function: str, bucket: dict[str, Any], form: Form, tensors: list[torch.Tensor]
    ) -> list[torch.Tensor]:
        """Raises NoGraphError for a call that does not compile."""
        if self._uncompilable and (known := (self._state(), form)) in self._uncompilable:
            raise NoGraphError(self._uncompilable[known])
        whole = whole_places(form, tensors, self.ledger.attention) if self.takes_ranges else ()
        device = self._home.device
        arguments = [dense(tensor).to(device) for tensor in tensors]
        try:
            with borrowed(self.shell, self.module) as shell:
                spec = ForwardSpec(form, whole)
                return self.graphs.call(function, tuple(bucket.items()), run_forward, shell, spec, *arguments)
        except UNTRACEABLE as error:
            known = (self._state(), form)
            self._uncompilable[known] = f"it does not compile as one graph ({str(error).splitlines()[0]})"
            raise NoGraphError(self._uncompilable[known]) from error

    # ---- inputs -----------------------------------------------------------------------------------------------------

    def _take_apart(self, arguments: dict[str, Any]) -> Call:
        arguments = {name: value for name, value in arguments.items() if value is not None}
        if "use_cache" in self.parameters:
            if arguments.get("use_cache") is True:
                raise ExactShapesError("a cache was asked for, which only models with generate() keep in buckets")
            arguments["use_cache"] = False
        kept = arguments.get("logits_to_keep")
        if isinstance(kept, int) and kept:
            raise ExactShapesError("an integer logits_to_keep counts from the end, where the pads are")
        try:
            call = Call.of(arguments)
        except NotFlatError as error:
            raise ExactShapesError(f"an argument has no bucket rule: {error}") from error
        if any(0 in leaf.shape for leaf in call.leaves):
            raise ExactShapesError("an input without entries cannot be padded with copies of them")
        call = call.with_tensors([on_host(leaf.tensor) for leaf in call.leaves])
        tokens = self.inputs.tokens(call.leaves)
        takes_mask = tokens is not None and tokens.path == tokens.name and MASK in self.parameters
        if MASK not in call.form.keys and any(map(_is_packed, call.leaves)):
            raise ExactShapesError("positions that start anew mean packed sequences, which a mask would hide")
        return call.with_mask(tokens) if takes_mask and MASK not in call.form.keys else call

    # ---- outputs ----------------------------------------------------------------------------------------------------

    def _cut(self, output: torch.Tensor, rules: tuple[DimRule, ...], plan: Plan) -> torch.Tensor:
        """`output` at its true size. Cuts behind the first dimension go by way of the host: on the device they would
        be a new shape.
        """
        wanted = [rule.size(plan.sizes) for rule in rules]
        if (home := _home.get() or self.home) is not None:
            return narrow(output.to(home), rules, plan.bucket, plan.sizes).contiguous()
        if list(output.shape) == wanted:
            return output
        behind_first = wanted[1:] != list(output.shape[1:]) or len(rules[0].axes) > 1
        if not behind_first or self.config.outputs == "view" or output.requires_grad:
            output = narrow(output, rules, plan.bucket, plan.sizes)
            return output.contiguous() if output.requires_grad and self.config.outputs == "exact" else output
        return narrow(output.to("cpu"), rules, plan.bucket, plan.sizes).contiguous().to(output.device)

    # ---- plans ------------------------------------------------------------------------------------------------------

    def _forget_plans(self) -> bool:
        """Drop the plans where a module's state has changed since; whether it has."""
        if self.graphs.changes == self._changes_seen:
            return False
        self._changes_seen = self.graphs.changes
        self._plans.clear()
        return True

    def _sizes_of(self, axis: str) -> AxisSizes:
        sizes = self.axis_sizes.get(axis)
        return self._axis_sizes(axis) if sizes is None else sizes

    def _plan(self, call: Call) -> Plan:
        key = call.form, call.shapes
        plan = self._plans.get(key)
        if plan is None:
            with self._lock:
                plan = self._make_plan(call)
                if len(self._plans) >= MOST_PLANS:
                    self._plans.clear()
                self._plans[key] = plan
        return plan

    def _make_plan(self, call: Call) -> Plan:
        state = self._state()
        layout, sizes = self._layout(call, state)
        bucket = self._bucket(layout, sizes)
        if self.config.verify is not False and self.home is None:  # generation checks its encoder itself
            self._check_bucket(call, layout, sizes, bucket, state)
        return Plan(layout, sizes, bucket, state)

    def _check_bucket(
        self, call: Call, layout: Layout, sizes: dict[str, int], bucket: dict[str, int], state: str
    ) -> None:
        """Raises ExactShapesError (under verify="raise" ValueError) for a bucket whose padding changes results."""
        placed = Placed(layout.dims, sizes)
        lengths = tuple((axis, size) for axis, size in bucket.items() if axis != "batch")
        key = ("bucket", state, call.form, _open_shapes(call, placed), lengths)
        found = self._layouts.get(key, self.module)
        if found is None:
            finder = Finder(self, call, [placed])
            found = finder.bucket_mismatch(layout, placed, bucket, lambda axis, size: self._sizes_of(axis).fit(size))
            self._layouts.put(key, self.module, found or Layout({}, (), None))
        if isinstance(found, str):
            self._refuse_beyond_limit(sizes, bucket, None)
            self._refuse(f"in bucket {dict(lengths)} {found}")

    def _refuse(self, reason: str) -> None:
        if self.config.verify == "raise":
            name = type(self.module).__name__
            raise ValueError(f"{name}: {reason}; verify='warn' runs it at exact shapes instead")
        raise ExactShapesError(reason)

    def _placed(self, call: Call, plan: Plan, sizes: dict[str, int]) -> Plan:
        return replace(plan, sizes=sizes, bucket=self._bucket(plan.layout, sizes))

    def _bucket(self, layout: Layout, sizes: dict[str, int]) -> dict[str, int]:
        """The bucket of each axis; of a batch that will be split, the largest."""
        bucket = {}
        for axis, size in sizes.items():
            rule = self._sizes_of(axis)
            is_split = rule.overflow == "split" and rule.largest is not None and size > rule.largest
            fitting = rule.largest if is_split else rule.fit(size)
            bucket[axis] = size if axis in layout.unpadded else fitting
        return bucket

    def _layout(self, call: Call, state: str) -> tuple[Layout, dict[str, int]]:
        """The layout for calls of this form and the sizes of the axes in this one; found and checked once. Raises
        ExactShapesError where there is none.
        """
        leaves = list(call.leaves)
        # Which axis a dimension is may be open in one call (batch and length are equal) and clear in an earlier one.
        dims_key = ("dims", state, call.form, tuple(len(leaf.shape) for leaf in leaves))
        known = self._layouts.get(dims_key, self.module)
        read = Placed.of(known.dims, leaves) if isinstance(known, Layout) else None
        candidates = [read] if read is not None else []
        candidates += self.inputs.candidates(leaves, any(leaf.name == MASK for leaf in leaves))
        if not candidates:
            raise ExactShapesError("no input has a batch")
        key = (state, call.form, _open_shapes(call, candidates[0]), self.config.verify is not False)
        verdict = self._layouts.get(key, self.module)
        if verdict is None:
            verdict = Finder(self, call, candidates).find()
            if isinstance(verdict, Layout):
                self._layouts.put(dims_key, self.module, Layout(verdict.dims, (), None))
                key = (*key[:2], _open_shapes(call, Placed.of(verdict.dims, leaves)), key[3])
            self._layouts.put(key, self.module, verdict)
        reasons = [verdict] if isinstance(verdict, str) else list(verdict.unpadded.values())
        if isinstance(verdict, str) or (reasons and self.config.verify == "raise"):
            self._refuse(reasons[0])
        return verdict, Placed.of(verdict.dims, leaves).sizes


def _check_shapes(outputs: list[torch.Tensor], plan: Plan) -> None:
    """Raises ExactShapesError where outputs are not sized as they were at probing sizes."""
    for output, rules in itertools.zip_longest(outputs, plan.layout.rules):
        if output is None or rules is None:
            raise ExactShapesError("the number of outputs depends on the input's size")
        if tuple(rule.size(plan.bucket) for rule in rules) != tuple(output.shape):
            raise ExactShapesError(f"an output of shape {tuple(output.shape)} does not follow the rule found")


def _open_shapes(call: Call, placed: Placed) -> tuple:
    """What the layout depends on, beside the sizes of the axes."""
    return tuple(
        (
            leaf.path,
            leaf.tensor.dtype,
            tuple(axis or size for axis, size in zip(placed.dims[leaf.path], leaf.shape, strict=True)),
        )
        for leaf in call.leaves
    )


def _is_packed(leaf: Leaf) -> bool:
    """Whether an input holds positions that do not count up by one: Transformers reads packed sequences from them."""
    positions = leaf.tensor
    return leaf.path == "position_ids" and positions.dim() > 1 and bool((positions.diff(dim=-1) != 1).any())


def _positions(sizes: dict[str, int]) -> int:
    """Positions a call computes: batch x the lengths of its other axes."""
    lengths = sum(size for axis, size in sizes.items() if axis != "batch")
    return sizes.get("batch", 1) * (lengths or 1)


def _config_of(module: torch.nn.Module) -> Any:
    """The configuration of a Transformers model, or of the first one inside a module."""
    for part in module.modules():
        config = getattr(part, "config", None)
        if config is not None and hasattr(config, "to_dict"):
            return config
    return None


def _limit(config: Any, axis: str) -> int | None:
    """The model's own maximum of an axis, None where it has none (XLNet writes -1)."""
    for name in _LIMITS.get(axis, ()):
        limit = getattr(text_config(config), name, None)
        if type(limit) is int and limit > 0:
            return limit
    return None


def _is_index_error(error: Exception) -> bool:
    return isinstance(error, IndexError) or "out of range" in str(error) or "out of bounds" in str(error)
