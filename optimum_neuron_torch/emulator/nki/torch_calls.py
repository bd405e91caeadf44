"""Kernels called on PyTorch's tensors: at once, or as one operation of the graph that is being traced."""

import re
import threading
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import torch
from torch._subclasses.fake_tensor import FakeTensor

from .calls import CallError, KernelCall, PreparedCall, prepare, tensors_of, with_tensors
from .calls import decode as decoded
from .chips import CHIPS, targeting
from .conversion import rebuilt
from .errors import NkiError
from .hosts import TensorSpec, host_array, torch_dtype
from .kernel import run_kernel
from .operation import OPERATOR, library


def call(function: Callable[..., Any], lnc: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What a kernel returns for arguments of which some may be tensors."""
    tensors = tensors_of((args, kwargs), _is_tensor)
    if any(map(_is_traced, tensors)) or (tensors and _is_tracing()):
        try:
            return record(prepare_call(function, lnc, args, kwargs))
        except CallError:
            if not all(isinstance(tensor, FakeTensor) for tensor in tensors) or _is_tracing():
                raise
    if tensors and tensors[0].device.type == "neuron" and not _has_no_data(tensors):
        _count(function, lnc, args, kwargs, tensors)
    return run_kernel(function, lnc, args, kwargs)


def prepare_call(
    function: Callable[..., Any], lnc: int, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> PreparedCall:
    """A call whose tensors have shapes, as part of a graph.

    Raises:
        NkiError: the kernel breaks a rule, or the call cannot be part of a graph.
    """
    prepared = prepare(function, lnc, args, kwargs, _spec_of)
    if not prepared.tensors:
        raise CallError(f"the kernel {prepared.call.name} takes no tensor, so it is no operation of PyTorch's")
    devices = {tensor.device for tensor in prepared.tensors}
    if len(devices) > 1:
        raise NkiError(f"the tensors of a call lie on one device, but got {', '.join(sorted(map(str, devices)))}")
    for position in prepared.call.written:
        _check_unshared(prepared, position)
    return prepared


def _check_unshared(prepared: PreparedCall, position: int) -> None:
    written = prepared.tensors[position]
    for other in prepared.tensors:
        if other is not written and torch._C._is_alias_of(other, written):
            raise CallError(
                f"the kernel {prepared.call.name} writes to one of two arguments that share memory, which the other "
                "would not see in a compiled graph: pass copies, or the same tensor twice"
            )


def record(prepared: PreparedCall) -> Any:
    """Calls the operation, which whoever traces takes down, and gives what the kernel returns.

    What the kernel writes to its arguments is copied into them.
    """
    results = OPERATOR(list(prepared.tensors), prepared.call.text())
    first = len(results) - len(prepared.call.written)
    for position, value in zip(prepared.call.written, results[first:], strict=True):
        prepared.tensors[position].copy_(value)
    return with_tensors(prepared.returned, results, prepared.tensors)


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _spec_of(value: Any) -> TensorSpec | None:
    if not isinstance(value, torch.Tensor):
        return None
    shape, dtype, _ = host_array(value, needs_values=False)
    return TensorSpec(shape, dtype)


def _is_traced(tensor: torch.Tensor) -> bool:
    return isinstance(tensor, FakeTensor) or torch._is_functional_tensor(tensor) or _is_functional_subclass(tensor)


def _is_functional_subclass(tensor: torch.Tensor) -> bool:
    return type(tensor).__name__ == "FunctionalTensor"


def _is_tracing() -> bool:
    """Whether a graph is being made of what runs."""
    return torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.PROXY) is not None


def _has_no_data(tensors: Sequence[torch.Tensor]) -> bool:
    return any(tensor.is_meta or isinstance(tensor, FakeTensor) for tensor in tensors)


# The operation


def run(tensors: Sequence[torch.Tensor], text: str) -> list[torch.Tensor]:
    """Runs a recorded call in the simulator, on the host."""
    recorded = KernelCall.parse(text)
    given = [
        tensor.clone(memory_format=torch.contiguous_format) if position in recorded.written else tensor
        for position, tensor in enumerate(tensors)
    ]
    args, kwargs = decoded(recorded.arguments, given)
    with targeting(CHIPS[recorded.chip]), torch.no_grad():
        returned = run_kernel(recorded.function(), recorded.lnc, args, kwargs)
    ours = {id(tensor) for tensor in given}
    results = [tensor for tensor in tensors_of(returned, _is_tensor) if id(tensor) not in ours]
    results += [given[position] for position in recorded.written]
    found = [_spec_of(result) for result in results]
    if found != list(recorded.results):
        raise NkiError(
            f"the kernel {recorded.kernel} makes {found}, and the graph that calls it was compiled for "
            f"{list(recorded.results)}: it depends on more than its arguments; compile the graph again"
        )
    return results


def empty_results(tensors: Sequence[torch.Tensor], text: str) -> list[torch.Tensor]:
    """Results of a recorded call whose elements mean nothing."""
    device = tensors[0].device
    specs = KernelCall.parse(text).results
    return [torch.empty(spec.shape, dtype=torch_dtype(spec.dtype), device=device) for spec in specs]


def refuse_gradient(text: str) -> NoReturn:
    """
    Raises:
        NkiError: always.
    """
    raise NkiError(
        f"the kernel {KernelCall.parse(text).name} has no gradient: make an operator of the function that calls it "
        "with torch_neuronx.nki_op() and give that one its gradient with .register_autograd(), or call it under "
        "torch.no_grad()"
    )


# Counting

_counted: set[str] = set()
_lock = threading.Lock()


def _count(
    function: Callable[..., Any], lnc: int, args: tuple[Any, ...], kwargs: dict[str, Any], tensors: list[torch.Tensor]
) -> None:
    """Lets the device count an eager call: an overload of the operation, named after the kernel, that does nothing.

    The device counts, and checks under strict mode, whatever the dispatcher brings to it.
    """
    name = re.sub(r"\W", "_", getattr(function, "__name__", "kernel"))
    name = f"{name}_" if name == "default" else name
    with _lock:
        if name not in _counted:
            library.define(f"nki_kernel.{name}(Tensor[] tensors, str call) -> ()")
            library.impl(f"nki_kernel.{name}", lambda tensors, call: None, "CPU")
            _counted.add(name)
    with torch._C._AutoDispatchBelowAutograd():
        getattr(torch.ops.neuron.nki_kernel, name)(tensors, _constants_of(function, lnc, args, kwargs))


def _constants_of(function: Callable[..., Any], lnc: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """What decides about a compilation beside the tensors."""

    def shortened(value: Any, where: str) -> Any:
        return "tensor" if isinstance(value, torch.Tensor) else rebuilt(value, where, shortened)

    constants = shortened((args, kwargs), "")
    return f"{function.__module__}:{function.__qualname__}[{lnc}]{constants!r}"
