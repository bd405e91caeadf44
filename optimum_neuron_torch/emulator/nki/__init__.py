"""A simulator of NKI kernels: runs them as plain Python over NumPy, within the limits of the chip.

`import nki` finds it after `import torch` on a machine without the Neuron SDK; without torch, after `install()`. It
differs from the simulator in AWS's `nki` package in what it watches: SBUF and PSUM are bytes with a capacity, tensors
with explicit addresses overlay each other, memory that nothing has written is known, and each run leaves a performance
report.
"""

from .finder import install, uninstall


_LAZY = {
    "PerformanceReport": ".measuring.report",
    "TensorSpec": ".hosts",
    "simulation": ".kernel",
    "targeting": ".chips",
    "trace": ".tracing",
}


def __getattr__(name: str):
    """NumPy and the simulator itself are loaded when they are asked for: `import torch` imports this package."""
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_LAZY[name], __name__), name)
