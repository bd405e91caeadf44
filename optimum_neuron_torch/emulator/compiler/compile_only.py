"""Compile-only mode: graphs are compiled and kept in the cache, and return zeros instead of running.

For a machine that fills the cache others use. What runs eagerly runs as always, on those zeros.
"""

from __future__ import annotations

import atexit
import functools
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from optimum_neuron_torch.emulator import device, logs


VARIABLE = "TORCH_NEURONX_COMPILE_ONLY"


@dataclass(frozen=True)
class Blank:
    """A result of a graph, without its data."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def of(cls, value: torch.Tensor) -> Blank:
        return cls(tuple(map(int, value.size())), tuple(map(int, value.stride())), value.dtype)

    def on_host(self) -> torch.Tensor:
        """Zeros of these strides; an expanded axis stays expanded."""
        reach = sum((size - 1) * stride for size, stride in zip(self.sizes, self.strides, strict=True)) + 1
        empty = 0 in self.sizes
        return torch.zeros(0 if empty else reach, dtype=self.dtype).as_strided(self.sizes, self.strides)


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


def blank_results(blanks: Sequence[Any], on_host: Sequence[int], core: int | None) -> list[Any]:
    """What a graph returns in this mode: zeros where the results would be; what is no tensor is itself."""
    if core is None:
        return [blank.on_host() if isinstance(blank, Blank) else blank for blank in blanks]
    with device.allocating_on(core):
        results = [blank.on_host() if isinstance(blank, Blank) else blank for blank in blanks]
    wrapped = device.device_aliases(list(results), core)
    for position in on_host:
        wrapped[position] = results[position]
    return wrapped
