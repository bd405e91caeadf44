"""Kernels, and what they stand for, as operators of PyTorch; and their launch on torch tensors."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch

from .. import runtime


NAMESPACE = "optimum_neuron_torch"
# What the operators that launch a kernel do, by name.
KERNEL_OPS: dict[str, str] = {}


def torch_op(name: str) -> Callable[[Callable[..., Any]], Any]:
    """Decorator: a typed function that computes with torch becomes the operator `optimum_neuron_torch::name`.

    Its dtypes are those of its arguments, as a kernel's are: autocast, which would change them within, ends at it.
    """

    def register(function: Callable[..., Any]) -> Any:
        @functools.wraps(function)
        def computed(*args: Any) -> Any:
            device = next(arg.device.type for arg in args if isinstance(arg, torch.Tensor))
            if not torch.is_autocast_enabled(device):
                return function(*args)
            with torch.autocast(device, enabled=False):
                return function(*args)

        return torch.library.custom_op(f"{NAMESPACE}::{name}", computed, mutates_args=())

    return register


def kernel_op(name: str, fake: Callable[..., Any]) -> Callable[[Callable[..., Any]], Any]:
    """Decorator: a typed function that launches a kernel becomes the operator `optimum_neuron_torch::name`.

    Its body is torch code around `launch()`, so that compilers may trace it. `fake` gives empty results of the right
    shapes: tracing a kernel for them would take longer.
    """

    def register(function: Callable[..., Any]) -> Any:
        operator = runtime.nki_op(f"{NAMESPACE}::{name}", function)
        operator.register_fake(fake)
        KERNEL_OPS[f"{NAMESPACE}::{name}"] = (inspect.getdoc(function) or "").partition("\n\n")[0].replace("\n", " ")
        return operator

    return register


def launch(kernel: Any, *args: Any) -> Any:
    """Run `kernel` on tensors, which must be contiguous, with as many cores as a logical core has.

    A kernel is launched on all of them or not at all: its grid must be the compiler's (NKI 0.7).
    """
    cores = runtime.logical_core_size()
    if runtime.simulated_elsewhere():
        return _launch_on_arrays(kernel, cores, args)
    return kernel[cores](*args)


def _launch_on_arrays(kernel: Any, cores: int, args: tuple[Any, ...]) -> Any:
    """Through `nki.simulate`, whose arguments and results are NumPy arrays."""
    import nki

    device = next(arg.device for arg in args if isinstance(arg, torch.Tensor))
    arrays = [_array(arg) if isinstance(arg, torch.Tensor) else arg for arg in args]
    results = nki.simulate(kernel)[cores](*arrays)
    if isinstance(results, tuple | list):
        return tuple(_tensor(result, device) for result in results)
    return _tensor(results, device)


def _array(tensor: torch.Tensor) -> Any:
    import ml_dtypes

    tensor = tensor.detach().cpu()
    if tensor.dtype is torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return tensor.numpy()


def _tensor(array: Any, device: torch.device) -> torch.Tensor:
    import ml_dtypes

    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view("int16").copy()).view(torch.bfloat16).to(device)
    return torch.from_numpy(array.copy()).to(device)
