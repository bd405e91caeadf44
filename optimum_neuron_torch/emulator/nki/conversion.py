"""A caller's arguments as tensors of the kernel, and what the kernel returns as the caller's kind of array.

Contiguous data is used where it lies. Anything else is copied, and copied back if the kernel wrote to it.
"""

import copy
import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from .core import Run
from .errors import NkiError
from .hosts import (
    TensorSpec,
    empty_torch_tensor,
    host_array,
    is_array,
    is_jax_array,
    is_torch_tensor,
    jax_array,
    torch_tensor,
)
from .instruction import NkiInstruction
from .memory import Bytes, MemoryRegion, Storage
from .tensor import NkiTensor


class _Copy(NamedTuple):
    """An argument that was copied: the caller's array, the kernel's tensor, and what was in it before."""

    where: str
    array: np.ndarray
    tensor: NkiTensor
    before: np.ndarray


class Arguments:
    """The tensors that a call brings in, one `NkiTensor` per array, and the way back."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self._wrapped: dict[int, tuple[Any, NkiTensor]] = {}
        self._copies: list[_Copy] = []
        self._devices: dict[Any, str] = {}
        self._uses_jax = False

    def written(self) -> list[Any]:
        """The caller's arrays that an instruction of the run writes to."""
        owners = {
            footprint.owner for core in self.run.cores for record in core.records for footprint in record.written
        }
        return [source for source, tensor in self._wrapped.values() if tensor.storage.owner in owners]

    # In

    def wrap(self, value: Any, where: str) -> Any:
        """`value` with every array in it as a tensor in HBM; lists, tuples, dicts and dataclasses are looked into.

        Raises:
            NkiError: an array is none that a kernel can take; `where` in the call it was.
        """
        if is_array(value):
            try:
                return self._tensor(value, where)
            except NkiError as error:
                error.message = f"{where} {error.message}" if _continues(error) else f"{where}: {error.message}"
                raise
        return rebuilt(value, where, self.wrap)

    def _tensor(self, source: Any, where: str) -> NkiTensor:
        if id(source) in self._wrapped:
            return self._wrapped[id(source)][1]
        self._note_framework(source, where)
        needs_values = not self.run.is_tracing
        shape, dtype, array = host_array(source, needs_values=needs_values)
        root = data = None
        if array is not None:
            data = np.ascontiguousarray(array, dtype=dtype.storage)
            root = data.reshape(-1).view(np.uint8)
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        space = MemoryRegion.shared_hbm if self.run.lnc > 1 else MemoryRegion.private_hbm
        storage = Storage(Bytes(root), space, nbytes=size, is_complete=True, host=source)
        storage.home = self.run
        tensor = NkiTensor(shape or (1,), dtype, storage, space)
        self._wrapped[id(source)] = source, tensor
        if array is not None and not np.may_share_memory(data, array):
            root.flags.writeable = array.flags.writeable and not _repeats(array)
            self._copies.append(_Copy(where, array, tensor, data.copy()))
        return tensor

    def _note_framework(self, source: Any, where: str) -> None:
        self._uses_jax |= is_jax_array(source)
        if not is_torch_tensor(source):
            return
        self._devices.setdefault(source.device, where)
        if len(self._devices) > 1:
            places = ", ".join(f"{place} on {device}" for device, place in self._devices.items())
            raise NkiError(f"the tensors of a call lie on one device, but got {places}")
        if source.requires_grad and not self.run.is_tracing:
            import torch

            if torch.is_grad_enabled():
                self.run.warn(
                    "a kernel has no gradient: its results do not lead back to an argument that requires one; give it "
                    "one with torch.autograd.Function, or call it under torch.no_grad()"
                )

    def write_back(self) -> None:
        """Puts into the caller's arrays what the kernel wrote into copies of them.

        Raises:
            NkiError: the kernel wrote to one of two arguments that share memory, and one of them was copied.
        """
        for where, array, tensor, before in self._copies:
            now = tensor.array.reshape(array.shape)
            was_written = not _same_bits(now, before)
            if was_written or not _same_bits(np.asarray(array, before.dtype), before):
                self._check_unshared(where, array)
            if was_written:
                array[...] = now

    def _check_unshared(self, where: str, array: np.ndarray) -> None:
        others = [copied.array for copied in self._copies if copied.array is not array]
        copied = {id(entry.tensor) for entry in self._copies}
        others += [tensor.array for _, tensor in self._wrapped.values() if id(tensor) not in copied]
        if any(np.may_share_memory(array, other) and _overlap(array, other) for other in others):
            raise NkiError(
                f"{where} is not contiguous and shares memory with another argument, and the kernel writes to one of "
                "them, which the other cannot see: pass contiguous tensors, or copies"
            )

    # Out

    def unwrap(self, value: Any, where: str = "the result") -> Any:
        """What a kernel returned as the caller's kind of array.

        Raises:
            NkiError: a tensor is not in shared HBM, where results have to be, or in an object that is no container.
        """
        if isinstance(value, NkiTensor):
            return self._result(value, where)
        if isinstance(value, NkiInstruction):
            raise NkiError(
                f"{where} is the handle of an instruction, not a tensor: return the tensor that it writes to (its dst)"
            )
        if is_container(value):
            return rebuilt(value, where, self.unwrap)
        if _holds_tensor(value):
            raise NkiError(
                f"a kernel returns tensors, or tuples, lists, dicts and dataclasses of tensors; {where} is a "
                f"{type(value).__name__} that holds one"
            )
        return value

    def emptied(self, value: Any, where: str = "the result") -> Any:
        """Results of a traced kernel as arrays of the caller's kind that hold nothing."""
        if not isinstance(value, TensorSpec):
            return rebuilt(value, where, self.emptied)
        if value.argument is not None:
            return value.argument
        if self._devices:
            return empty_torch_tensor(value, next(iter(self._devices)))
        values = np.empty(value.shape, value.dtype.storage)
        return jax_array(values) if self._uses_jax else values

    def _result(self, tensor: NkiTensor, where: str) -> Any:
        source = tensor.storage.host
        if source is None and tensor.buffer is not MemoryRegion.shared_hbm:
            raise NkiError(
                f"a kernel returns tensors in shared HBM, not {tensor.describe()} ({where}): allocate it with "
                "buffer=nl.shared_hbm"
            )
        if tensor.storage.home is not self.run:
            raise NkiError(f"{where}, {tensor.describe()}, was made in another call of a kernel")
        is_argument = source is not None and tensor.shape == (tuple(source.shape) or (1,))
        is_argument = is_argument and tensor.byte_offset == 0 and tensor.is_contiguous()
        if self.run.is_tracing:
            return TensorSpec(tensor.shape, tensor.dtype, source if is_argument else None)
        if is_argument:
            return source
        values = np.array(tensor.read())
        if self._devices:
            return torch_tensor(values, tensor.dtype, next(iter(self._devices)))
        return jax_array(values) if self._uses_jax else values


def is_container(value: Any) -> bool:
    is_record = dataclasses.is_dataclass(value) and not isinstance(value, type)
    return isinstance(value, (list, tuple, dict)) or is_record


def rebuilt(value: Any, where: str, change: Callable[[Any, str], Any]) -> Any:
    """`value` with `change` applied to what it contains; the same object where nothing changes."""
    if isinstance(value, (list, tuple)):
        items = [change(item, f"{where}[{i}]") for i, item in enumerate(value)]
        if all(new is old for new, old in zip(items, value, strict=True)):
            return value
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if isinstance(value, dict):
        entries = {key: change(item, f"{where}[{key!r}]") for key, item in value.items()}
        if all(entries[key] is value[key] for key in value):
            return value
        return entries if type(value) is dict else _refilled(value, entries)
    if is_container(value):
        fields = [field.name for field in dataclasses.fields(value) if hasattr(value, field.name)]
        old = {name: getattr(value, name) for name in fields}
        new = {name: change(item, f"{where}.{name}") for name, item in old.items()}
        if all(new[name] is old[name] for name in fields):
            return value
        changed = copy.copy(value)
        for name, item in new.items():
            object.__setattr__(changed, name, item)
        return changed
    return value


def _refilled(like: dict[Any, Any], entries: dict[Any, Any]) -> dict[Any, Any]:
    """A dictionary of a class of its own, e.g. with a default factory, with other values."""
    result = copy.copy(like)
    result.update(entries)
    return result


def _holds_tensor(value: Any) -> bool:
    if isinstance(value, (set, frozenset)):
        return any(isinstance(item, NkiTensor) for item in value)
    if hasattr(value, "__next__"):
        return True  # a generator would run on after its kernel
    attributes = getattr(value, "__dict__", {}) if not isinstance(value, type) else {}
    return any(isinstance(item, NkiTensor) for item in attributes.values())


def _repeats(array: np.ndarray) -> bool:
    """Whether several elements are one, as in an expanded tensor: what a kernel writes to them has no place."""
    return any(stride == 0 and size > 1 for stride, size in zip(array.strides, array.shape, strict=True))


def _continues(error: NkiError) -> bool:
    """Whether the message reads on from the argument's name."""
    return error.message.startswith(("is ", "has "))


def _same_bits(one: np.ndarray, other: np.ndarray) -> bool:
    first, second = (np.ascontiguousarray(array).reshape(-1).view(np.uint8) for array in (one, other))
    return np.array_equal(first, second)


def _overlap(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether an element of one is in the memory of the other; yes where that takes too long to tell."""
    try:
        return np.shares_memory(one, other, max_work=10_000)
    except np.exceptions.TooHardError:
        return True
