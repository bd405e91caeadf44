"""The emulated neuron device. What the emulator's other rooms may use of it:

* `host_alias(tensor)`, `host_aliases(list)`: CPU tensors over the memory of neuron tensors, kept with them;
* `device_alias(tensor, core)`, `device_aliases(list, core)`: neuron tensors over the memory of CPU tensors;
* `allocating_on(core)`: a scope in which the CPU's kernels of this thread allocate in the device's memory, so that
  `device_alias` of their results is counted once, limited and cached;
* `counters()`, `clear_counters()`, `executed_ops()`, `fallback_ops()`, `unknown_ops()`;
* `strict(*kinds)`, `strict_kinds()`, `mark_warm()`.

Importing this package loads neither torch nor the C++ extension; the first use of a name does.
"""

from importlib import import_module


_HOMES = {
    "allocating_on": ".aliasing",
    "clear_counters": ".counting",
    "counters": ".counting",
    "device_alias": ".aliasing",
    "device_aliases": ".aliasing",
    "executed_ops": ".counting",
    "fallback_ops": ".counting",
    "host_alias": ".aliasing",
    "host_aliases": ".aliasing",
    "mark_warm": ".strict_mode",
    "strict": ".strict_mode",
    "strict_kinds": ".strict_mode",
    "unknown_ops": ".counting",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str):
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name], __name__), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
