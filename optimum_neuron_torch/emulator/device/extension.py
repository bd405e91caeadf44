"""Loads the C++ extension `_C`, or remembers why it cannot be loaded until somebody uses the device."""

import importlib
import json
from types import ModuleType

from .build import LIBRARY, SIDECAR


BUILD_COMMAND = "python -m optimum_neuron_torch.emulator.device.build"

_module: ModuleType | None = None
_failure: Exception | None = None


class ExtensionError(RuntimeError):
    """The emulated device's C++ extension is missing, or was built for another torch."""


def load() -> ModuleType:
    """Returns `_C`, loaded and configured for the emulated machine.

    Raises:
        ExtensionError: it is missing or does not fit the running torch; the message has the command that builds it.
        ValueError: an environment variable that describes the machine has an impossible value.
    """
    global _module
    if _failure is not None:
        raise _failure
    if _module is None:
        _check_fits()
        module = _import_library()
        _configure(module)
        _module = module
    return _module


def is_loaded() -> bool:
    """Whether `load()` returns at once: the extension is there, and nothing about it is known to be wrong."""
    return _module is not None and _failure is None


def remember_failure(error: Exception) -> None:
    """From now on `load()` raises `error`."""
    global _failure
    _failure = error


def _check_fits() -> None:
    import torch

    if not LIBRARY.exists():
        raise ExtensionError(
            "the emulated neuron device needs its C++ extension, which is not built "
            f"({LIBRARY.name} is missing). With a C++ compiler, Python's headers and ninja, run: {BUILD_COMMAND}"
        )
    try:
        built_for = json.loads(SIDECAR.read_text())["torch"]
    except (OSError, ValueError, KeyError):
        built_for = "an unknown version"
    if built_for != torch.__version__:
        raise ExtensionError(
            f"its C++ extension was built for torch {built_for}, and this is torch {torch.__version__}: loading it "
            f"would crash. Build it again: {BUILD_COMMAND}"
        )


def _import_library() -> ModuleType:
    try:
        return importlib.import_module("._C", __package__)
    except ImportError as error:
        raise ExtensionError(f"its C++ extension does not load ({error}). Build it again: {BUILD_COMMAND}") from error


def _configure(module: ModuleType) -> None:
    from . import hardware

    machine = hardware.Machine.from_environment()
    module.set_core_count(machine.core_count)
    limit = machine.memory_limit()
    module.set_memory_limit(limit.nbytes, limit.reason)
