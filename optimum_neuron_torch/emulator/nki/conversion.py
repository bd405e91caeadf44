"""Arguments into tensors, and tensors back into what the caller uses: NumPy or PyTorch.

Contiguous host data is used where it lies. Anything else is copied, and copied back if the kernel wrote to it.
"""

import sys
from typing import Any

import numpy as np

from .core import Core
from .dtypes import as_dtype
from .errors import NkiError
from .memory import Bytes, MemoryRegion, Storage
from .tensor import NkiTensor


class Arguments:
    """The tensors that a call brings in, one `NkiTensor` per array, and the way back."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self.uses_torch = False
        self._by_identity: dict[int, NkiTensor] = {}
        self._sources: list[tuple[NkiTensor, Any, np.ndarray]] = []

    def wrap(self, value: Any) -> Any:
        """`value` with every array or torch tensor in it (lists, tuples and dicts included) as a tensor in HBM."""
        if isinstance(value, np.ndarray) or is_torch_tensor(value):
            known = self._by_identity.get(id(value))
            return known if known is not None else self._tensor(value)
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return type(value)(*map(self.wrap, value))
        if isinstance(value, (list, tuple)):
            return type(value)(map(self.wrap, value))
        if isinstance(value, dict):
            return {key: self.wrap(item) for key, item in value.items()}
        return value

    def _tensor(self, source: Any) -> NkiTensor:
        if is_torch_tensor(source):
            self.uses_torch = True
            dtype, array = as_dtype(source.dtype), array_of(source)
        else:
            dtype, array = as_dtype(source.dtype), source
        data = np.ascontiguousarray(array)
        shape = array.shape or (1,)
        root = data.reshape(-1).view(np.uint8)
        if self.core.is_tracing:
            root = None
        space = MemoryRegion.shared_hbm if self.core.run.lnc > 1 else MemoryRegion.private_hbm
        storage = Storage(Bytes(root), space, nbytes=data.nbytes, is_complete=True, host=source)
        storage.home = self.core.run
        tensor = NkiTensor(shape, dtype, storage, space)
        self._by_identity[id(source)] = tensor
        if data is not array and root is not None:
            self._sources.append((tensor, array, data.copy()))
        return tensor

    def write_back(self) -> None:
        """Puts into the caller's arrays what the kernel wrote into copies of them."""
        for tensor, array, before in self._sources:
            now = tensor.array.reshape(array.shape)
            if np.array_equal(_bits(now), _bits(before.reshape(array.shape))):
                continue
            if not array.flags.writeable:
                raise NkiError(f"the kernel writes to an argument that is read-only: {tensor.describe()}")
            array[...] = now

    def unwrap(self, value: Any) -> Any:
        """What a kernel returned as the caller's kind of array.

        Raises:
            NkiError: a tensor is not in shared HBM, where results have to be.
        """
        if isinstance(value, NkiTensor):
            return self._result(value)
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return type(value)(*map(self.unwrap, value))
        if isinstance(value, (list, tuple)):
            return type(value)(map(self.unwrap, value))
        if isinstance(value, dict):
            return {key: self.unwrap(item) for key, item in value.items()}
        return value

    def _result(self, tensor: NkiTensor) -> Any:
        host = tensor.storage.host
        if host is None and tensor.buffer is not MemoryRegion.shared_hbm:
            raise NkiError(
                f"a kernel returns tensors in shared HBM, not {tensor.describe()}: allocate it with "
                "buffer=nl.shared_hbm"
            )
        if host is not None and tuple(tensor.shape) == tuple(host.shape):
            return host
        values = tensor.read().copy()
        return tensor_of(values, tensor.dtype) if self.uses_torch else values


def is_torch_tensor(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def array_of(tensor: Any) -> np.ndarray:
    """A torch tensor on the host as an array that shares its memory.

    Raises:
        NkiError: it lies on another device.
    """
    import torch

    if tensor.device.type != "cpu":
        raise NkiError(f"the simulator takes tensors on the host, but got one on {tensor.device}: use .cpu()")
    tensor = tensor.detach()
    dtype = as_dtype(tensor.dtype)
    if dtype in _CARRIERS:
        return tensor.view(getattr(torch, _CARRIERS[dtype])).numpy().view(dtype.storage)
    return tensor.resolve_conj().resolve_neg().numpy()


def tensor_of(values: np.ndarray, dtype: str) -> Any:
    """An array as a torch tensor that shares its memory."""
    import torch

    if dtype in _CARRIERS:
        carrier = np.dtype(_CARRIERS[dtype])
        return torch.from_numpy(values.view(carrier)).view(getattr(torch, dtype))
    return torch.from_numpy(values)


# What carries the bits of dtypes that NumPy and PyTorch do not both know.
_CARRIERS = {
    "bfloat16": "int16",
    "float8_e4m3fn": "uint8",
    "float8_e5m2": "uint8",
    "float8_e8m0fnu": "uint8",
}


def _bits(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
