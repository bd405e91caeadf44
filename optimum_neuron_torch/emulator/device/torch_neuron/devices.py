"""Devices of `torch.neuron`: initialisation, the current core, properties."""

import threading
from dataclasses import dataclass
from typing import Any

import torch

from .. import extension, hardware


Device = torch.device | str | int | None

_initialized = False
_initializing = threading.Lock()  # Transformers' first use of the device is from several loading threads


@dataclass(frozen=True)
class NeuronDeviceProperties:
    """One logical core: `total_memory` in bytes is its HBM, `platform` the chip generation."""

    name: str
    total_memory: int
    platform: str
    logical_core_size: int


def is_available() -> bool:
    """Whether the emulated device can be used: False where its extension is missing or does not fit this torch."""
    return device_count() > 0


def is_initialized() -> bool:
    return _initialized and not _is_in_bad_fork()


def init() -> None:
    """Initialises the device now rather than at its first use."""
    _lazy_init()


def device_count() -> int:
    """How many logical cores this process sees; 0 where the device cannot be used."""
    return extension.load().core_count() if extension.is_loaded() else 0


def current_device() -> int:
    return extension.load().current_core()


def set_device(device: Device) -> None:
    """Makes `device` the current core of this thread. A negative index changes nothing, as on other devices.

    Raises:
        RuntimeError: there is no such core.
    """
    if not _changes_nothing(device):
        extension.load().exchange_core(index_of(device))


def synchronize(device: Device = None) -> None:
    """Returns at once: everything on the emulated device is done when the call that started it returns."""
    index_of(device)


class device:  # the name that every device module gives this context manager
    """Makes a core the current one in a scope. None and negative indices change nothing, as on other devices."""

    def __init__(self, device: Device) -> None:
        self.index = None if device is None or _changes_nothing(device) else index_of(device)
        self._previous: list[int] = []  # a stack: the same object may be entered again inside its scope

    def __enter__(self) -> "device":
        module = extension.load()
        self._previous.append(module.current_core() if self.index is None else module.exchange_core(self.index))
        return self

    def __exit__(self, *exception: Any) -> None:
        extension.load().exchange_core(self._previous.pop())


class device_of(device):
    """Makes the core of a tensor the current one in a scope; does nothing for tensors of other devices."""

    def __init__(self, tensor: torch.Tensor) -> None:
        super().__init__(tensor.device if tensor.device.type == "neuron" else None)


def get_device_properties(device: Device = None) -> NeuronDeviceProperties:
    index_of(device)
    machine = hardware.Machine.from_environment()
    return NeuronDeviceProperties(machine.name, machine.hbm_per_core, machine.platform, machine.logical_core_size)


def get_device_name(device: Device = None) -> str:
    return get_device_properties(device).name


def get_device_capability(device: Device = None) -> dict[str, Any]:
    """The dtypes that tensors of the device may have, as `torch.accelerator.get_device_capability` gives them."""
    return torch.accelerator.get_device_capability(index_of(device))


def is_bf16_supported(including_emulation: bool = True) -> bool:
    return True


def get_amp_supported_dtype() -> list[torch.dtype]:
    """The dtypes that `torch.autocast("neuron")` takes."""
    return [torch.bfloat16, torch.float16]


def index_of(device: Device) -> int:
    """The index of a core given as an index, a string, a torch.device, or None for the current core.

    Raises:
        ValueError: it names a device of another type.
        RuntimeError: there is no such core.
    """
    if device is None:
        return current_device()
    if isinstance(device, int):
        return extension.load().checked_core(device)
    given = torch.device(device)
    if given.type != "neuron":
        raise ValueError(f"Expected a neuron device, but got {device!r}.")
    return current_device() if given.index is None else extension.load().checked_core(given.index)


def _changes_nothing(device: Device) -> bool:
    """`Tensor.get_device()` gives -1 for a CPU tensor."""
    return isinstance(device, int) and device < 0


def _lazy_init() -> None:
    """PyTorch calls this before it first makes something on the device.

    Raises:
        ExtensionError: the device cannot be used, with the command that repairs it.
        RuntimeError: in a process forked from one that had used the device.
    """
    global _initialized
    module = extension.load()
    module.check_not_in_bad_fork()
    with _initializing:
        if not _initialized:
            module.initialize()
            _initialized = True


def _is_in_bad_fork() -> bool:
    return extension.is_loaded() and extension.load().is_in_bad_fork()
