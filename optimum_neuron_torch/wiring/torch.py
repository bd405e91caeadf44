"""Entries for PyTorch: scaled_dot_product_attention on neuron by our kernels, while kernels run; the sources of
a stored function, read once each.

The integration of attention is imported when kernels first run, not with PyTorch.
"""

import contextlib
from collections.abc import Callable, Iterator
from functools import cache, wraps
from types import CodeType, ModuleType
from typing import Any
from weakref import ref

from .. import runtime
from .entries import Entry, Undo, all_of, replace


@cache
def _exchange() -> Any:
    import torch.nn.functional

    from ..integrations.sdpa import Exchange

    return Exchange(torch.nn.functional)


@contextlib.contextmanager
def _exchanged() -> Iterator[None]:
    with _exchange().around():
        yield


def _attend_by_simulated_kernels(module: ModuleType) -> Undo:
    is_kept = False

    def keep() -> None:
        nonlocal is_kept
        if not is_kept:
            is_kept = True
            _exchange().put()

    def undo() -> None:
        runtime.around_simulation.remove(_exchanged)
        runtime.before_tracing.remove(keep)
        if is_kept:
            _exchange().take_back()

    runtime.around_simulation.append(_exchanged)
    runtime.before_tracing.append(keep)
    return undo


def _attend_by_kernels(module: ModuleType) -> Undo:
    if getattr(module, "is_emulated", False):
        return lambda: None
    _exchange().put()
    return _exchange().take_back


def _attend_flexibly(module: ModuleType) -> Undo:
    from ..integrations.flex import FUNCTION, naming_the_order, on_neuron

    undos = [replace(module, FUNCTION, on_neuron)]
    if hasattr(module, "_validate_device"):
        undos.append(replace(module, "_validate_device", naming_the_order))
    return all_of(undos)


def _read_sources_once(module: ModuleType) -> Undo:
    """Dynamo adds the code of a layer's functions as often as the model has layers, and reads its source each time."""
    owner = getattr(module, "SourceInfo", None)
    return replace(owner, "add_code", _once_each) if hasattr(owner, "add_code") else lambda: None


def _once_each(original: Callable[[Any, CodeType], None]) -> Callable[[Any, CodeType], None]:
    # Those of the newest object: they are added to it one after the other. Keys are identities, as equal code of two
    # files is none of one; values keep them.
    newest: tuple[Callable[[], Any], dict[int, CodeType]] = (lambda: None, {})

    @wraps(original)
    def add_code(self: Any, code: CodeType) -> None:
        nonlocal newest
        if newest[0]() is not self:
            newest = (ref(self), {})
        added = newest[1]
        if id(code) not in added:
            original(self, code)
            added[id(code)] = code

    return add_code


_UPSTREAM = (
    "a registry of attention kernels by device below scaled_dot_product_attention, whose choice Dynamo sees (the "
    "operator of other devices, _scaled_dot_product_fused_attention_overrideable, is the device's own, and Dynamo's "
    "graphs hold the function above it whatever it does)"
)

ENTRIES: tuple[Entry, ...] = (
    Entry(
        "torch: scaled_dot_product_attention by kernels in the simulator",
        "torch.nn.functional",
        _attend_by_simulated_kernels,
        _UPSTREAM,
    ),
    Entry(
        "torch: scaled_dot_product_attention by kernels on the device",
        "torch_neuronx",  # loaded with the device, which is the last that PyTorch loads
        _attend_by_kernels,
        _UPSTREAM,
    ),
    Entry(
        "torch: flex_attention on neuron",
        "torch.nn.attention.flex_attention",
        _attend_flexibly,
        "FlexAttention for devices out of tree: a list of devices in _validate_device, and a lowering by device",
    ),
    Entry(
        "torch: the sources of a stored function",
        "torch._dynamo.package",
        _read_sources_once,
        "SourceInfo.add_code, or aot_compile around it, that reads the source of each code once",
    ),
)
