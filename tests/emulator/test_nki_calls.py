"""Kernels called eagerly on neuron tensors: what the device counts, and what strict mode says of it."""

import pytest
import torch

import nki
import nki.isa as nisa
import nki.language as nl


pytestmark = pytest.mark.skipif(not hasattr(torch, "neuron"), reason="the emulated neuron device is not active")


@nki.jit
def shifted(x, by=1.0):
    tile, out = nl.ndarray(x.shape, x.dtype), nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=tile, src=x)
    nisa.tensor_scalar(dst=tile, data=tile, op0=nl.add, operand0=by)
    nisa.dma_copy(dst=out, src=tile)
    return out


NAME = "neuron::nki_kernel.shifted"


@pytest.fixture
def counted():
    """Calls and signatures of the kernel so far in the test."""
    import torch_neuronx

    torch_neuronx.clear_op_tracking()
    return lambda: tuple(torch_neuronx.metrics.get_counter_value(f"{what}.{NAME}") for what in ("calls", "signatures"))


def test_each_new_shape_dtype_and_constant_is_a_signature(counted):
    import torch_neuronx

    x = torch.ones(4, 8, device="neuron")
    for kernel, arguments in (
        (shifted, (x,)), (shifted, (x * 2,)), (shifted, (x, 1.0)), (shifted, (x, 2.0)), (shifted[2], (x,)),
        (shifted, (x[:2],)), (shifted, (x.bfloat16(),)),
    ):  # fmt: skip
        kernel(*arguments)
    assert counted() == (7, 6)
    assert NAME in torch_neuronx.get_executed_ops()
    assert NAME not in torch_neuronx.get_unknown_ops() + torch_neuronx.get_fallback_ops()


def test_kernels_on_the_host_and_in_graphs_are_no_signatures(counted):
    x = torch.ones(4, 8)
    shifted(x), shifted(x.numpy()), shifted(x.to("meta"))
    compiled = torch.compile(lambda x: shifted(x), backend="neuron", fullgraph=True, options={"executor": "aten"})
    with torch.no_grad():
        assert torch.equal(compiled(x.to("neuron")).cpu(), x + 1)
    assert counted() == (None, None)


def test_strict_mode_sees_kernels():
    import torch_neuronx

    from optimum_neuron_torch.emulator.device import mark_warm

    x = torch.ones(4, 8, device="neuron")
    with torch_neuronx.strict("unknown", "fallback", "recompile"):
        shifted(x)
        mark_warm()
        try:
            shifted(x)
            with pytest.raises(RuntimeError, match=rf"strict mode \(recompile\): {NAME} with .*test_nki_calls.py"):
                shifted(x, 3.5)
        finally:
            mark_warm(False)
