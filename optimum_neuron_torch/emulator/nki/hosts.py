"""Arrays of the host: NumPy's, PyTorch's and JAX's, as NumPy arrays over the same memory, and results as theirs.

Tensors on the emulated `neuron` device lie in host memory too, and are used where they lie.
"""

import sys
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from .dtypes import DType, NkiDtypeError, as_dtype
from .errors import NkiError


@dataclass(frozen=True, repr=False)
class TensorSpec:
    """A tensor without data: a shape and an element type. What `trace` takes, and what it says of results.

    `argument` is the caller's own tensor, of a result that is one of the arguments.
    """

    shape: tuple[int, ...]
    dtype: DType
    argument: Any = field(default=None, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(map(int, self.shape)))
        object.__setattr__(self, "dtype", as_dtype(self.dtype))

    def __repr__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"


class NoDataError(NkiError):
    """A tensor of PyTorch that has a shape and no data: such arguments can be traced, not run."""


class HostArray(NamedTuple):
    """What the simulator needs of a caller's array. `values` is None where only the shape is asked for."""

    shape: tuple[int, ...]
    dtype: DType
    values: np.ndarray | None


def is_array(value: Any) -> bool:
    return isinstance(value, (np.ndarray, TensorSpec)) or is_torch_tensor(value) or is_jax_array(value)


def is_torch_tensor(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def is_jax_array(value: Any) -> bool:
    jax = sys.modules.get("jax")
    return jax is not None and isinstance(value, (jax.Array, jax.ShapeDtypeStruct))


def host_array(value: Any, *, needs_values: bool) -> HostArray:
    """A caller's array for the simulator; without `needs_values` its data is not looked at.

    Raises:
        NkiError: its elements are no NKI dtype, or it has no data that the host can read.
    """
    if is_torch_tensor(value):
        _check_layout(value)
        shape = _static_shape(value.shape)
        return HostArray(shape, as_dtype(value.dtype), _torch_values(value) if needs_values else None)
    if isinstance(value, np.ma.MaskedArray):
        raise NkiError("is a masked array, and kernels know no masks: fill it first")
    shape, dtype = _static_shape(value.shape), as_dtype(value.dtype)
    if not needs_values:
        return HostArray(shape, dtype, None)
    if isinstance(value, TensorSpec):
        raise NkiError("has a shape and no data: it can be traced (optimum_neuron_torch.emulator.nki.trace), not run")
    if isinstance(value, np.ndarray):
        return HostArray(shape, dtype, value)
    return HostArray(shape, dtype, _jax_values(value))


def _static_shape(shape: Any) -> tuple[int, ...]:
    try:
        sizes = tuple(int(size) for size in shape)
    except Exception as error:  # a symbolic size of torch.export or jax.jit has no number
        raise NkiError(f"has a shape that is not known: {list(shape)}; kernels are traced for one shape") from error
    if 0 in sizes:
        raise NkiError(f"has the shape {list(sizes)}: every dimension of a kernel's tensors has one element at least")
    return sizes


# PyTorch

# What carries the bits of dtypes that NumPy and PyTorch do not both know.
_CARRIERS = {
    "bfloat16": "int16",
    "float8_e4m3fn": "uint8",
    "float8_e5m2": "uint8",
    "float8_e8m0fnu": "uint8",
}


def _check_layout(tensor: Any) -> None:
    import torch

    if tensor.layout is not torch.strided or tensor.is_quantized:
        kind = "quantized" if tensor.is_quantized else str(tensor.layout).removeprefix("torch.")
        raise NkiError(
            f"is a {kind} tensor ({tensor.dtype}), and kernels take dense ones: use .to_dense() or .dequantize()"
        )


def _torch_values(tensor: Any) -> np.ndarray:
    import torch
    from torch._subclasses.fake_tensor import FakeTensor

    if isinstance(tensor, FakeTensor) or tensor.is_meta:
        raise NoDataError("has a shape and no data: it can be traced, not run")
    tensor = tensor.detach()
    if tensor.device.type == "neuron":
        tensor = _neuron_alias(tensor)
    if tensor.device.type != "cpu":
        raise NkiError(f"is on {tensor.device}; the simulator takes tensors on the host or on neuron: use .cpu()")
    if tensor.is_neg():
        values = tensor.resolve_neg().numpy()
        values.flags.writeable = False  # a copy that does not lead back
        return values
    dtype = as_dtype(tensor.dtype)
    if dtype in _CARRIERS:
        return tensor.view(getattr(torch, _CARRIERS[dtype])).numpy().view(dtype.storage)
    return tensor.numpy()


def _neuron_alias(tensor: Any) -> Any:
    """A neuron tensor of the emulated device as a host tensor over the same memory; of a real device as it is."""
    from ..device import extension

    if not extension.is_loaded():
        return tensor
    from ..device.aliasing import host_alias

    return host_alias(tensor)


def torch_tensor(values: np.ndarray, dtype: DType, device: Any = None) -> Any:
    """An array as a torch tensor, over the same memory on the host, and as a copy on the emulated device.

    Raises:
        NkiDtypeError: PyTorch has no such type.
    """
    import torch

    wanted = torch_dtype(dtype)
    if dtype in _CARRIERS:
        tensor = torch.from_numpy(values.view(np.dtype(_CARRIERS[dtype]))).view(wanted)
    else:
        tensor = torch.from_numpy(values)
    return tensor if device is None or device.type == "cpu" else _on_neuron(tensor, device)


def empty_torch_tensor(spec: TensorSpec, device: Any) -> Any:
    import torch

    return torch.empty(spec.shape, dtype=torch_dtype(spec.dtype), device=device)


def torch_dtype(dtype: DType) -> Any:
    """What PyTorch calls a dtype; packed ones are the integers that they are stored as.

    Raises:
        NkiDtypeError: it has none.
    """
    import torch

    if dtype == "float8_e4m3":
        raise NkiDtypeError(
            "PyTorch has no float8_e4m3 (its float8_e4m3fn has other values): return result.view(nl.uint8), or call "
            "the kernel with NumPy arrays"
        )
    return getattr(torch, dtype if dtype in _CARRIERS else dtype.storage.name)


def _on_neuron(tensor: Any, device: Any) -> Any:
    """In the device's memory, without the copy between host and device that a user would be told of."""
    from ..device.aliasing import allocating_on, device_alias

    core = device.index or 0
    with allocating_on(core):
        return device_alias(tensor.clone(), core)


# JAX


def _jax_values(value: Any) -> np.ndarray:
    import jax

    if isinstance(value, jax.core.Tracer) or not isinstance(value, jax.Array):
        raise NkiError("has a shape and no data (a tracer of JAX): the simulator runs outside jax.jit")
    return np.asarray(value)  # read-only, as JAX arrays are


def jax_array(values: np.ndarray) -> Any:
    import jax.numpy as jnp

    return jnp.asarray(values)
