"""Transformers records intermediate outputs by forward hooks that stay on a model: are they idle?

A hook inside a compiled block would record nothing when the block is replayed, so a call that records there has to run
the block eagerly. Hooks of other kinds may do anything.
"""

import inspect
import sys
from collections.abc import Iterable

import torch


_MODULE = "transformers.utils.output_capturing"


def captured_keys(modules: Iterable[torch.nn.Module]) -> tuple[frozenset[str], str | None]:
    """What Transformers' hooks on `modules` record (`attentions`), and why other hooks keep them out of a graph."""
    keys: set[str] = set()
    for module in modules:
        for hook in (*module._forward_hooks.values(), *module._forward_pre_hooks.values()):
            key = captured_key(hook)
            if key is None:
                return frozenset(), f"a hook on its {type(module).__name__} would not see compiled calls"
            keys.add(key)
    return frozenset(keys), None


def is_recording(keys: frozenset[str]) -> bool:
    """Whether any of `keys` is recorded in this context."""
    if not keys:
        return False
    recorded = sys.modules[_MODULE]._active_collector.get()
    return recorded is not None and not keys.isdisjoint(recorded)


def captured_key(hook: object) -> str | None:
    """What a hook of Transformers' records; None for any other hook."""
    if getattr(hook, "__module__", None) != _MODULE or not hasattr(sys.modules[_MODULE], "_active_collector"):
        return None
    key = inspect.getclosurevars(hook).nonlocals.get("key")
    return key if isinstance(key, str) else None
