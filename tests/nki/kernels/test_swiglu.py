"""The kernels of gated linear units against the definition, in float64, and its gradients."""

import pytest
import torch.nn.functional as F

from .reference import relative_error
from .running import MACHINES, TOLERANCES, made, run


ACTIVATIONS = {"silu": F.silu, "gelu": F.gelu, "gelu_tanh": lambda x: F.gelu(x, approximate="tanh")}
# One element, fewer and more than there are partitions, and several tiles with ends of their own.
SHAPES = ((1, 1), (3, 40), (7, 331), (300, 4097))


def kernels():
    from optimum_neuron_torch.nki.kernels import swiglu

    return swiglu.swiglu_kernel, swiglu.swiglu_backward_kernel


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
