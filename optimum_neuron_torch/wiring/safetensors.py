"""Entry for safetensors: files opened straight onto neuron."""

import sys
from types import ModuleType

from .entries import Entry, Undo


def _open_on_neuron(module: ModuleType) -> Undo:
    """
    Replaces `safe_open` wherever a module holds it by that name.

    It is a type that cannot be changed or derived from, and most of its users import it by name.
    """
    from ..integrations.safetensors import on_neuron

    stock = module.safe_open
    replacement = on_neuron(stock)
    _exchange(stock, replacement)
    return lambda: _exchange(replacement, stock)


def _exchange(old: type, new: type) -> None:
    for module in list(sys.modules.values()):
        names = getattr(module, "__dict__", {})
        if names.get("safe_open") is old:
            names["safe_open"] = new


ENTRIES: tuple[Entry, ...] = (
    Entry(
        "safetensors.safe_open",
        "safetensors",
        _open_on_neuron,
        "safetensors that opens files for any device of torch (it has a list of names, and takes any number)",
    ),
)
