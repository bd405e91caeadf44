"""The op of gated linear units against torch and Transformers' MLPs, by torch and by kernels, with gradients."""

import re

import pytest
import torch
import torch.nn.functional as F
from transformers.activations import ACT2FN

import optimum_neuron_torch as ont
from optimum_neuron_torch.nki import swiglu, swiglu_halves
from optimum_neuron_torch.nki.ops import swiglu as ops

from .comparing import compare, compare_compiled, random


KERNELS = ["swiglu_kernel", "swiglu_backward_kernel"]
ACTIVATIONS = {"silu": F.silu, "gelu": F.gelu, "gelu_tanh": lambda x: F.gelu(x, approximate="tanh")}
NAMES = {"silu": "silu", "gelu": "gelu", "gelu_tanh": "gelu_pytorch_tanh"}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_values_and_gradients(activation, dtype):
    compare(
        lambda gate, up: swiglu(gate, up, activation=activation),
        lambda gate, up: ACTIVATIONS[activation](gate) * up,
        random((2, 3, 10), (2, 3, 10), dtype=dtype),
        KERNELS,
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("activation", NAMES)
def test_bits_are_those_of_transformers_mlps(activation, dtype):
    gate, up = random((5, 100), (5, 100), dtype=dtype)
    expected = ACT2FN[NAMES[activation]](gate) * up
    for device in ("cpu", "neuron"):
        assert torch.equal(swiglu(gate.to(device), up.to(device), activation=activation).cpu(), expected)


HALVES = ["swiglu_halves_kernel", "swiglu_halves_backward_kernel"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("up_is_first", [False, True])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_halves_of_one_projection(activation, up_is_first, dtype):
    """Which are not contiguous: the kernel reads them where they are."""
    order = (1, 0) if up_is_first else (0, 1)

    def definition(both):
        gate, up = (both.chunk(2, -1)[i] for i in order)
        return ACTIVATIONS[activation](gate) * up

    both = random((2, 4, 12), dtype=dtype)
    compare(lambda both: swiglu_halves(both, up_is_first=up_is_first, activation=activation), definition, both, HALVES)
    assert torch.equal(swiglu_halves(*both, up_is_first=up_is_first, activation=activation), definition(*both))


def test_halves_as_two_tensors():
    """Which are not contiguous."""
    compare(
        lambda both: swiglu(*both.chunk(2, -1)),
        lambda both: F.silu(both[..., :6]) * both[..., 6:],
        random((4, 12)),
        KERNELS,
    )


def test_halves_are_one_node_of_a_graph():
    compare_compiled(lambda both: swiglu_halves(both), random((5, 24)), "swiglu_halves", HALVES)


@pytest.mark.parametrize("shape", [(), (3, 5)])
def test_what_has_no_halves_is_refused(shape):
    with pytest.raises(ValueError, match=rf"gate_up has the shape {re.escape(str(shape))}.*halves"):
        swiglu_halves(torch.ones(shape))
    with pytest.raises(ValueError, match="activation is 'tanh'"):
        swiglu_halves(torch.ones(2, 4), activation="tanh")


@pytest.mark.parametrize("tensor", [torch.ones(0, 4), torch.ones(2, 0), torch.ones(2, 4, dtype=torch.float64)])
def test_halves_that_no_kernel_takes_are_computed_with_torch(tensor):
    with ont.nki.simulation() as runs:
        found = swiglu_halves(tensor.to("neuron")).cpu()
    gate, up = tensor.chunk(2, -1)
    assert runs == [] and torch.equal(found, F.silu(gate) * up)


def test_compiled_calls_are_one_node():
    compare_compiled(lambda gate, up: swiglu(gate, up), random((5, 24), (5, 24)), "swiglu", KERNELS)


def test_shapes_that_broadcast_are_computed_with_torch():
    gate, up = random((4, 6), (1, 6))
    with ont.nki.simulation() as runs:
        found = swiglu(gate.to("neuron"), up.to("neuron")).cpu()
    assert runs == [] and torch.equal(found, F.silu(gate) * up)


def test_bad_input_is_named():
    x = torch.zeros(2, 8)
    with pytest.raises(ValueError, match="'relu', expected one of silu, gelu, gelu_tanh"):
        swiglu(x, x, activation="relu")
    with pytest.raises(ValueError, match=r"gate \(2, 8\) and up \(2, 7\)"):
        swiglu(x, x[:, :7])


def test_the_ops_keep_torchs_rules_for_custom_ops():
    gate, up = (tensor.requires_grad_() for tensor in random((2, 3, 8), (2, 3, 8)))
    torch.library.opcheck(ops.swiglu_torch, (gate, up, "gelu"))
    with ont.nki.simulation():
        torch.library.opcheck(ops.swiglu_kernel, (gate, up, "silu"))
