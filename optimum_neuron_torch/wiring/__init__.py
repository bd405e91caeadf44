"""Every registration with, and every patch of, a foreign library: applied by `wire()`, taken back by `unwire()`.

One file per library holds a table of entries. An entry is applied at once where its module is loaded, else by a post-
import hook, so that the order of the user's imports does not matter.
"""

import sys

import wrapt

from . import accelerate, diffusers, safetensors, torch, trainer, transformers
from .entries import Entry


ENTRIES: tuple[Entry, ...] = (
    *torch.ENTRIES,
    *safetensors.ENTRIES,
    *transformers.ENTRIES,
    *trainer.ENTRIES,
    *diffusers.ENTRIES,
    *accelerate.ENTRIES,
)

_active = False
_hooked: set[str] = set()
_undo: dict[str, object] = {}


def wire() -> None:
    """Apply all entries, now or when their module is imported. Calling it twice changes nothing."""
    global _active
    _active = True
    for module in dict.fromkeys(entry.module for entry in ENTRIES):
        if module in _hooked:
            if module in sys.modules:
                _apply(sys.modules[module])
        else:
            _hooked.add(module)
            wrapt.register_post_import_hook(_apply, module)


def unwire() -> None:
    """Take back every applied entry, last first; models that are already prepared stay so (see `unprepare`)."""
    global _active
    _active = False
    while _undo:
        _, undo = _undo.popitem()
        undo()


def wired() -> list[str]:
    """Names of the entries in force."""
    return list(_undo)


def _apply(module) -> None:
    if not _active:
        return
    for entry in ENTRIES:
        if entry.module == module.__name__ and entry.name not in _undo:
            _undo[entry.name] = entry.apply(module)
