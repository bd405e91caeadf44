"""`op_db`: each operator's samples on the device and on the CPU, in all its variants; its gradients and its errors."""

import functools
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import OpInfo, SampleInput
from torch.utils import _pytree as pytree

from tests.conformance.comparison import Answer, check_answers
from tests.conformance.outcome import Outcome, Status, found
from tests.conformance.placement import place
from tests.conformance.rules import LEFT_OUT, REFUSED, rule_of


DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64)
}
GRADIENT, ERRORS = "gradient", "errors"

# Some entries have more than a thousand samples.
SAMPLES_IN_ALL_VARIANTS = 32

# They make a tensor on the device that they are told, whatever their arguments are on.
FACTORIES = {
    "arange",
    "eye",
    "full",
    "linspace",
    "linspace_tensor_overload",
    "logspace",
    "logspace_tensor_overload",
    "ones",
    "zeros",
    "randint",
    "randn",
    "empty",
    "empty_strided",
    "empty_permuted",
    "scalar_tensor",
}

# Their integer arguments stay on the CPU, as with every accelerator: shapes of the results depend on them.
WITH_HOST_ARGUMENTS = {"tensor_split"}

Call = tuple[Callable, Any, tuple, dict]


@functools.cache
def entries() -> dict[str, OpInfo]:
    return {op.formatted_name: op for op in op_db}


def check(name: str, column: str) -> Outcome:
    """The outcome of one entry of the table at one dtype, or of its gradients or errors."""
    op = entries()[name]
    device = torch.device("neuron", torch.neuron.current_device())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            if column == GRADIENT:
                return _check_gradient(op, device)
            if column == ERRORS:
                return _check_errors(op, device)
            return _check_dtype(op, column, device)
        except Exception as error:
            return found(error, REFUSED["operators"].get(name))


def _samples(op: OpInfo, dtype: torch.dtype, *, requires_grad: bool = False) -> list[SampleInput]:
    torch.manual_seed(0)
    return list(op.sample_inputs("cpu", dtype, requires_grad=requires_grad))


def _check_dtype(op: OpInfo, column: str, device: torch.device) -> Outcome:
    dtype = DTYPES[column]
    if dtype not in op.supported_dtypes("cpu"):
        return Outcome(Status.NOT_ON_CPU)
    rule = rule_of("operators", op.formatted_name, column)
    has_reference = False
    for index, sample in enumerate(_samples(op, dtype)):
        variants = _variants(op, sample) if index < SAMPLES_IN_ALL_VARIANTS else [_function(op, sample)]
        for variant, call in variants:
            if (op.formatted_name, variant) in LEFT_OUT:
                continue
            expected = _run(op, call, torch.device("cpu"))
            has_reference |= expected.error is None
            try:
                check_answers(_run(op, call, device), expected, device, rule)
            except Exception as error:
                error.add_note(variant)
                raise
    return Outcome(Status.PASSED if has_reference else Status.NOT_ON_CPU)


def _run(op: OpInfo, call: Call, device: torch.device) -> Answer:
    """What the call answers on `device`, and its input afterwards."""

    def function() -> Any:
        operator, value, args, kwargs = call[0], *_placed(op, call[1:], device)
        return operator(value, *args, **kwargs), value

    return Answer.of(function)


def _placed(op: OpInfo, arguments: tuple[Any, tuple, dict], device: torch.device) -> tuple[Any, tuple, dict]:
    if op.formatted_name in WITH_HOST_ARGUMENTS:
        return place(arguments[0], device), *arguments[1:]
    value, args, kwargs = place(arguments, device)
    if op.formatted_name in FACTORIES:
        kwargs = {"device": device, **kwargs}
    return value, args, kwargs


def _function(op: OpInfo, sample: SampleInput) -> tuple[str, Call]:
    return "function", (op.op, sample.input, sample.args, sample.kwargs)


def _variants(op: OpInfo, sample: SampleInput) -> Iterator[tuple[str, Call]]:
    """The calls that the table promises for this sample, with a name each."""
    arguments = (sample.input, sample.args, sample.kwargs)
    yield _function(op, sample)
    if op.method_variant is not None:
        yield "method", (op.method_variant, *arguments)
    if op.inplace_variant is not None:
        yield "in-place", (op.inplace_variant, *arguments)
    strided = all(leaf.layout == torch.strided for leaf in pytree.tree_leaves(arguments) if _is_tensor(leaf))
    if strided:
        scattered = sample.noncontiguous()
        yield "non-contiguous", (op.op, scattered.input, scattered.args, scattered.kwargs)
    if op.supports_out and strided:
        yield from _out_variants(op, sample)


def _out_variants(op: OpInfo, sample: SampleInput) -> Iterator[tuple[str, Call]]:
    """The result into tensors of its size, into empty ones, and into transposed ones."""
    answer = _run(op, (op.op, sample.input, sample.args, sample.kwargs), torch.device("cpu"))
    result = answer.value[0] if answer.error is None else None
    if not pytree.tree_leaves(result) or not all(map(_is_tensor, pytree.tree_leaves(result))):
        return
    makers = {
        "out=": lambda t: torch.zeros_like(t),
        "out= resized": lambda t: t.new_empty(0),
        "out= transposed": lambda t: t.new_zeros(t.shape[::-1]).permute(tuple(reversed(range(t.dim())))),
    }
    for variant, make in makers.items():
        out = pytree.tree_map(make, tuple(result) if isinstance(result, (tuple, list)) else result)
        yield variant, (op.op, sample.input, sample.args, {**sample.kwargs, "out": out})


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


# -- gradients --------------------------------------------------------------------------------------------------------


def _check_gradient(op: OpInfo, device: torch.device) -> Outcome:
    """First-order gradients at float32."""
    if not op.supports_autograd or torch.float32 not in op.supported_backward_dtypes("cpu"):
        return Outcome(Status.NONE)
    has_reference = False
    for sample in _samples(op, torch.float32, requires_grad=True):
        expected = Answer.of(functools.partial(_gradients, op, sample, torch.device("cpu")))
        has_reference |= expected.error is None
        check_answers(Answer.of(functools.partial(_gradients, op, sample, device)), expected, device)
    return Outcome(Status.PASSED if has_reference else Status.NOT_ON_CPU)


def _gradients(op: OpInfo, sample: SampleInput, device: torch.device) -> list[torch.Tensor | None]:
    value, args, kwargs = _placed(op, (sample.input, sample.args, sample.kwargs), device)
    inputs = [leaf for leaf in pytree.tree_leaves((value, args, kwargs)) if _is_tensor(leaf) and leaf.requires_grad]
    result = sample.output_process_fn_grad(op.op(value, *args, **kwargs))
    outputs = [leaf for leaf in pytree.tree_leaves(result) if _is_tensor(leaf) and leaf.requires_grad]
    if not inputs or not outputs:
        return []
    generator = torch.Generator().manual_seed(1)
    seeds = [torch.randn(out.shape, dtype=out.dtype, generator=generator).to(device) for out in outputs]
    return list(torch.autograd.grad(outputs, inputs, seeds, allow_unused=True))


# -- errors -----------------------------------------------------------------------------------------------------------


def _check_errors(op: OpInfo, device: torch.device) -> Outcome:
    """Calls that the table says are wrong raise the same type of error as on the CPU."""
    if op.error_inputs_func is None:
        return Outcome(Status.NONE)
    torch.manual_seed(0)
    for wrong in op.error_inputs("cpu"):
        sample = wrong.sample_input
        call = (op.op, sample.input, sample.args, sample.kwargs)
        expected, actual = _run(op, call, torch.device("cpu")), _run(op, call, device)
        check_answers(actual, expected, device)
    return Outcome(Status.PASSED)
