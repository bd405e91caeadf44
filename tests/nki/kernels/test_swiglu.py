"""The kernels of gated linear units against the definition, in float64, and its gradients."""

import pytest
import torch
import torch.nn.functional as F

from optimum_neuron_torch.emulator.nki import trace
from optimum_neuron_torch.emulator.nki.chips import chip_of

from .reference import relative_error
from .running import MACHINES, TOLERANCES, made, run


ACTIVATIONS = {"silu": F.silu, "gelu": F.gelu, "gelu_tanh": lambda x: F.gelu(x, approximate="tanh")}
# One element, fewer and more than there are partitions, and several tiles with ends of their own.
SHAPES = ((1, 1), (3, 40), (7, 331), (300, 4097))


def kernels(name="swiglu"):
    from optimum_neuron_torch.nki.kernels import swiglu

    return getattr(swiglu, f"{name}_kernel"), getattr(swiglu, f"{name}_backward_kernel")


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_values_and_gradients(activation, dtype):
    for shape, machine in zip(SHAPES, MACHINES, strict=True):
        gate, up, grad = made(shape, dtype, 3)
        inputs = [gate.double().requires_grad_(), up.double().requires_grad_()]
        expected = ACTIVATIONS[activation](inputs[0]) * inputs[1]
        expected.backward(grad.double())
        (output,) = run(kernels()[0], gate, up, activation, machine=machine)
        gradients = run(kernels()[1], grad, gate, up, activation, machine=machine)
        for result, each in zip((output, *gradients), (expected, *(one.grad for one in inputs)), strict=True):
            assert result.dtype == dtype and relative_error(result, each.detach()) <= TOLERANCES[dtype]


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("up_is_first", [False, True])
def test_halves_of_one_matrix(up_is_first, dtype):
    for activation, shape, machine in zip([*ACTIVATIONS, "silu"], SHAPES, MACHINES, strict=True):
        (grad,), (both,) = made(shape, dtype), made((shape[0], 2 * shape[1]), dtype)
        inputs = both.double().requires_grad_()
        gate, up = inputs.chunk(2, -1)[:: -1 if up_is_first else 1]
        expected = ACTIVATIONS[activation](gate) * up
        expected.backward(grad.double())
        forward, backward = kernels("swiglu_halves")
        (output,) = run(forward, both, up_is_first, activation, machine=machine)
        (gradient,) = run(backward, grad, both, up_is_first, activation, machine=machine)
        for result, each in ((output, expected), (gradient, inputs.grad)):
            assert result.dtype == dtype and result.shape == each.shape
            assert relative_error(result, each.detach()) <= TOLERANCES[dtype]


@pytest.mark.parametrize("is_backward", [False, True])
def test_halves_take_as_long_as_two_matrices(is_backward):
    """By the estimate, in which transfers count most: nothing is copied first."""
    half, both = (torch.empty(512, width, dtype=torch.bfloat16, device="meta") for width in (8192, 16384))
    grad = [half] * is_backward
    us = [
        trace(kernels(name)[is_backward], *grad, *operands, lnc=1, chip=chip_of("trn2")).report.estimated_us
        for name, operands in (("swiglu", (half, half)), ("swiglu_halves", (both,)))
    ]
    assert us[1] == pytest.approx(us[0], rel=0.05)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("size", [1e6, 1e13, 1e18, 1e38])
def test_slopes_far_from_0(activation, size):
    """1 or 0, whatever a power of the gate would be."""
    gate = torch.tensor([[size, -size]])
    one = torch.ones_like(gate)
    grad_gate, _ = run(kernels()[1], one, gate, one, activation, machine=MACHINES[0])
    assert grad_gate.tolist() == [[1.0, 0.0]]
