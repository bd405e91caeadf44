"""Entries for Accelerate: automatic placement that sees neuron, fp16 refused, graphs for every batch shape."""

from collections.abc import Callable, Iterator
from types import ModuleType

from .entries import Entry, Undo, replace


_GENERIC = "accelerate #4278 (devices that are found through torch.accelerator)"


def _integration() -> ModuleType:
    from ..integrations import accelerate

    return accelerate


def _wrap_function(name: str, wrap: str) -> Callable[[ModuleType], Undo]:
    """Wraps `module.name`; undo restores the stock function even where the module had imported a wrapped one."""

    def apply(module: ModuleType) -> Undo:
        found = getattr(module, name)
        stock = getattr(found, "_neuron_stock", found)
        wrapped = getattr(_integration(), wrap)(stock)
        wrapped._neuron_stock = stock
        setattr(module, name, wrapped)
        return lambda: setattr(module, name, stock)

    return apply


def _wrap_method(owner: str, name: str, wrap: str) -> Callable[[ModuleType], Undo]:
    def apply(module: ModuleType) -> Undo:
        return replace(getattr(module, owner), name, lambda stock: getattr(_integration(), wrap)(stock))

    return apply


def _function_entries(name: str, wrap: str, modules: tuple[str, ...], upstream: str = _GENERIC) -> Iterator[Entry]:
    """One entry for each module that holds the function: where it is defined, and where it was imported by name."""
    for module in modules:
        yield Entry(f"{module}.{name}", module, _wrap_function(name, wrap), upstream)


def _method_entry(module: str, owner: str, name: str, wrap: str, upstream: str) -> Entry:
    return Entry(f"{module}.{owner}.{name}", module, _wrap_method(owner, name, wrap), upstream)


ENTRIES: tuple[Entry, ...] = (
    *_function_entries("get_max_memory", "with_neuron_memory", ("accelerate.utils.modeling", "accelerate.utils")),
    *_function_entries(
        "infer_auto_device_map",
        "with_one_device",
        ("accelerate.utils.modeling", "accelerate.utils", "accelerate.big_modeling", "accelerate"),
    ),
    *_function_entries(
        "load_checkpoint_and_dispatch", "with_one_device_loading", ("accelerate.big_modeling", "accelerate")
    ),
    *_function_entries("dispatch_model", "with_named_devices", ("accelerate.big_modeling", "accelerate")),
    _method_entry(
        "accelerate.state",
        "AcceleratorState",
        "__init__",
        "refusing_float16",
        "an error in Accelerate that names bf16 as the way out, raised before the shared state is set",
    ),
    _method_entry(
        "accelerate.utils.dataclasses",
        "TorchDynamoPlugin",
        "to_kwargs",
        "with_recompile_limit",
        "fields recompile_limit and isolate_recompiles in TorchDynamoPlugin (torch.compile has them since 2.13)",
    ),
)
