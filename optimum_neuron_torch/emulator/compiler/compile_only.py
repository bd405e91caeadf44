"""Compile-only mode: graphs are compiled and kept in the cache, and return zeros instead of running.

For a machine that fills the cache others use. What runs eagerly runs as always, on those zeros.
"""

from __future__ import annotations

import atexit
import functools
import os

from optimum_neuron_torch.emulator import logs


VARIABLE = "TORCH_NEURONX_COMPILE_ONLY"


@functools.cache
def is_on() -> bool:
    """Whether this process only compiles; said in the log when first asked."""
    chosen = os.environ.get(VARIABLE, "").strip().lower() in ("1", "true")
    if chosen:
        logs.logger().info("%s: graphs are compiled and kept, not run; their results are zeros.", VARIABLE)
        _finish_at_exit()
    return chosen


def _finish_at_exit() -> None:
    """Fast programs of tiered graphs are compiled before the process ends, unless `warmup()` had them compiled."""
    from optimum_neuron_torch.emulator.compiler import background  # whose own work at exit must come after

    def finish() -> None:
        if left := background.pending_compilations():
            logs.logger().info("Compiling %d programs before the process ends.", left)
            background.finish_compilations()

    atexit.register(finish)
