"""Runs of kernels on rows: on which chip, with how many cores, and that they read nothing that was not written."""

import torch

from optimum_neuron_torch.emulator.nki.chips import targeting


# Of the largest magnitude: results of 16 bits are rounded, and so is what kernels round on the way.
TOLERANCES = {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3}
# Where a kernel runs: every test goes through all of them.
MACHINES = (("trn2", 1), ("trn3", 2), ("trn2", 2), ("trn3", 1))


def made(shape, dtype, count=1, scale=2.0):
    """Random tensors, the same for the same shape."""
    generator = torch.Generator().manual_seed(sum(shape))
    return [(torch.randn(shape, generator=generator) * scale).to(dtype) for _ in range(count)]


def run(kernel, *tensors, machine=("trn2", 1), **options):
    """The results, as a tuple."""
    import nki

    target, cores = machine
    with targeting(target), nki.simulation() as reports:
        results = kernel[cores](*tensors, **options)
    assert not reports[0].unwritten and not reports[0].overwritten
    return results if isinstance(results, tuple) else (results,)


def trace(kernel, *tensors, **options):
    """Only checks, capacity included: on Trn2, which has less SBUF than Trn3."""
    with targeting("trn2"):
        kernel(*(tensor.to("meta") if isinstance(tensor, torch.Tensor) else tensor for tensor in tensors), **options)
