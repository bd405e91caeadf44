"""Whether NKI ops launch their kernels, and the simulator around a block."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from .. import runtime


def kernels_run(tensor: torch.Tensor | None = None) -> bool:
    """Whether NKI ops launch their kernels in this thread, for `tensor` where one is given: on a real device for what
    is on it, and within `simulation()`.
    """
    return runtime.kernels_run(tensor)


@contextmanager
def simulation() -> Iterator[list[Any]]:
    """Within the block, and in this thread, NKI ops run their kernels in the NKI simulator.

    The block's value is a list that gets the performance report of each run, in the order in which runs end, of all
    threads, as PyTorch computes gradients in one of its own (with AWS's own simulator it stays empty: that makes no
    such reports). Graphs compiled inside hold kernels, and run them
    outside the block too.

    Raises RuntimeError where kernels run on a real device, or where there is no simulator.
    """
    check_simulator()
    with runtime.simulating(), runtime.collecting_kernel_runs() as runs:
        yield runs


def check_simulator() -> None:
    """Raises RuntimeError, with the reason and the way out, where no kernel can be simulated."""
    if runtime.is_available() and not runtime.is_emulated():
        raise RuntimeError(
            "NKI kernels run on the neuron device itself here: simulate them where the device is emulated, or call "
            "nki.simulate(kernel) with NumPy arrays"
        )
    reason = runtime.why_no_kernels()
    if reason is not None:
        raise RuntimeError(f"NKI kernels cannot be simulated: {reason}")
