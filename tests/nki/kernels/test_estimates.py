"""Estimated times against those of reading and writing every tensor once: no engine holds the others up."""

import importlib

import pytest
import torch

from optimum_neuron_torch.emulator.nki import trace
from optimum_neuron_torch.emulator.nki.chips import chip_of


X, VECTOR = (torch.empty(shape, dtype=torch.bfloat16, device="meta") for shape in ((1536, 4096), (4096,)))


@pytest.mark.parametrize(
    "name, tensors, options, limit",
    [
        ("layer_norm.layer_norm_kernel", (X, VECTOR, VECTOR), {}, 1.6),
        ("layer_norm.layer_norm_backward_kernel", (X, X, VECTOR), {}, 2.2),
        ("swiglu.swiglu_backward_kernel", (X, X, X), {"activation": "silu"}, 1.15),
        ("swiglu.swiglu_backward_kernel", (X, X, X), {"activation": "gelu_tanh"}, 1.35),
    ],
)
def test_kernels_of_rows_are_near_the_bound_of_memory(name, tensors, options, limit):
    """Limits are some per cent above what is reached; twelve tiles, so filling the stages counts."""
    module, name = name.split(".")
    kernel = getattr(importlib.import_module(f"optimum_neuron_torch.nki.kernels.{module}"), name)
    chip = chip_of("trn2")
    run = trace(kernel, *tensors, lnc=1, chip=chip, **options)
    outputs = run.empty_outputs()
    moved = (*tensors, *(outputs if isinstance(outputs, tuple) else (outputs,)))
    bound_us = sum(tensor.nbytes for tensor in moved) / chip.dma_peak_bytes_per_ns / 1000
    assert run.report.estimated_us < limit * bound_us
