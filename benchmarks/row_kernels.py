"""How near the norms and gated units come to memory's bound, by the NKI simulator's estimate.

    python benchmarks/row_kernels.py [--rows 8192] [--width 4096] [--dtype bfloat16] [--only layer_norm] [--json]

For Trn2 and Trn3, one core and two: the estimated time, how many times that is of what the DMA engines need to read
and write every tensor once, and how much of it each engine works. Kernels are traced, without data. Estimates come
from documented clocks, no hardware is asked, and they do not depend on the machine that this runs on.
"""

import argparse
import json
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from nki_simulator import show

from optimum_neuron_torch.emulator.nki import trace
from optimum_neuron_torch.emulator.nki.chips import chip_of
from optimum_neuron_torch.nki.kernels.layer_norm import layer_norm_backward_kernel, layer_norm_kernel
from optimum_neuron_torch.nki.kernels.rms_norm import (
    add_rms_norm_kernel,
    rms_norm_backward_kernel,
    rms_norm_kernel,
)
from optimum_neuron_torch.nki.kernels.swiglu import swiglu_backward_kernel, swiglu_kernel


TARGETS = ("trn2", "trn3")
CORES = (1, 2)
ENGINES = ("vector", "scalar", "gpsimd", "tensor", "dma")


class Case(NamedTuple):
    name: str
    kernel: Callable
    tensors: tuple[torch.Tensor | None, ...]
    options: dict


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=8192)
    parser.add_argument("--width", type=int, default=4096)
    parser.add_argument("--dtype", choices=("bfloat16", "float16", "float32"), default="bfloat16")
    parser.add_argument("--only", default="", help="kernels whose name contains this")
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    arguments = parser.parse_args()
    dtype = getattr(torch, arguments.dtype)
    cases = [case for case in kernels(arguments.rows, arguments.width, dtype) if arguments.only in case.name]
    rows = [row(case, target, cores) for case in cases for target in TARGETS for cores in CORES]
    if arguments.json:
        print(json.dumps(rows, indent=2))
    else:
        show(f"{arguments.rows} rows of {arguments.width} in {arguments.dtype}", rows)


def kernels(rows: int, width: int, dtype: torch.dtype) -> Iterator[Case]:
    x = torch.empty(rows, width, dtype=dtype, device="meta")
    vector = torch.empty(width, dtype=dtype, device="meta")
    yield Case("layer_norm", layer_norm_kernel, (x, vector, vector), {})
    yield Case("layer_norm, no bias", layer_norm_kernel, (x, vector), {})
    yield Case("layer_norm, no vectors", layer_norm_kernel, (x,), {})
    yield Case("layer_norm_backward", layer_norm_backward_kernel, (x, x, vector), {})
    alone = {"needs_vector_gradients": False}
    yield Case("layer_norm_backward, no vectors", layer_norm_backward_kernel, (x, x), alone)
    yield Case("rms_norm", rms_norm_kernel, (x, vector), {})
    yield Case("add_rms_norm", add_rms_norm_kernel, (x, x, vector), {})
    yield Case("rms_norm_backward", rms_norm_backward_kernel, (x, x, vector), {})
    for activation in ("silu", "gelu", "gelu_tanh"):
        yield Case(f"swiglu {activation}", swiglu_kernel, (x, x), {"activation": activation})
    for activation in ("silu", "gelu", "gelu_tanh"):
        yield Case(f"swiglu_backward {activation}", swiglu_backward_kernel, (x, x, x), {"activation": activation})


def row(case: Case, target: str, cores: int) -> dict:
    chip = chip_of(target)
    run = trace(case.kernel, *case.tensors, lnc=cores, chip=chip, **case.options)
    report = run.report
    results = run.empty_outputs()
    results = results if isinstance(results, tuple) else (results,)
    nbytes = sum(tensor.numel() * tensor.element_size() for tensor in (*case.tensors, *results))
    bound_us = nbytes / (cores * min(chip.dma_peak_bytes_per_ns, chip.hbm_bytes_per_ns)) / 1000
    busy = {engine: f"{report.busy_us.get(engine, 0.0) / report.estimated_us:.0%}" for engine in ENGINES}
    return {
        "kernel": case.name,
        "chip": target,
        "cores": str(cores),
        "us": report.estimated_us,
        "x bound": report.estimated_us / bound_us,
        **busy,
    }


if __name__ == "__main__":
    main()
