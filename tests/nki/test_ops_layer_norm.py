"""The LayerNorm op against PyTorch's, by torch and by kernels, with gradients, eagerly and compiled."""

import pytest
import torch
import torch.nn.functional as F

import optimum_neuron_torch as ont
from optimum_neuron_torch.nki import layer_norm
from optimum_neuron_torch.nki.ops import layer_norm as ops

from .comparing import compare, compare_compiled, random


KERNELS = ["layer_norm_kernel", "layer_norm_backward_kernel"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("vectors", [2, 1, 0])
def test_values_and_gradients(vectors, dtype):
    compare(
        layer_norm,
        lambda x, *vectors: F.layer_norm(x, (24,), *vectors),
        random((2, 5, 24), *[(24,)] * vectors, dtype=dtype),
        KERNELS,
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bits_are_those_of_torch(dtype):
    module = torch.nn.LayerNorm(64, dtype=dtype)
    x, module.weight.data, module.bias.data = random((2, 7, 64), (64,), (64,), dtype=dtype)
    for device in ("cpu", "neuron"):
        module.to(device)
        found = layer_norm(x.to(device), module.weight, module.bias, module.eps)
        assert torch.equal(found, module(x.to(device)))


def test_one_row_alone():
    """Whose sum over rows is the row."""
    compare(layer_norm, lambda x, *vectors: F.layer_norm(x, (24,), *vectors), random((24,), (24,), (24,)), KERNELS)


def test_only_the_bias_has_a_gradient():
    x, weight, bias = (tensor.to("neuron") for tensor in random((3, 24), (24,), (24,)))
    bias.requires_grad_()
    with ont.nki.simulation() as runs:
        layer_norm(x, weight, bias).sum().backward()
    assert [run.kernel for run in runs] == KERNELS and torch.equal(bias.grad.cpu(), torch.full((24,), 3.0))


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_what_is_not_finite_stays_in_its_column(value):
    """Of gradients of weight and bias."""
    x, weight, bias, grad = (tensor.to("neuron") for tensor in random((5, 1100), (1100,), (1100,), (5, 1100)))
    grad[1, 3] = value
    vectors = weight.requires_grad_(), bias.requires_grad_()
    with ont.nki.simulation() as runs:
        gradients = torch.autograd.grad(layer_norm(x, *vectors), vectors, grad)
    assert [run.kernel for run in runs] == KERNELS
    for gradient in gradients:
        assert (~gradient.cpu().isfinite()).nonzero().tolist() == [[3]]


def test_gradients_of_float64_are_exact():
    tensors = [tensor.requires_grad_() for tensor in random((3, 24), (24,), (24,), dtype=torch.float64)]
    results = [
        torch.autograd.grad(function(*tensors).square().sum(), tensors)
        for function in (layer_norm, lambda x, *vectors: F.layer_norm(x, (24,), *vectors))
    ]
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_compiled_calls_are_one_node():
    tensors = random((2, 5, 24), (24,), (24,))
    compare_compiled(lambda *tensors: layer_norm(*tensors), tensors, "layer_norm", KERNELS)


@pytest.mark.parametrize(
    "x, options",
    [
        (torch.zeros(0, 8), {}),
        (torch.arange(16.0, dtype=torch.float64).reshape(2, 8), {}),
        (torch.arange(8193.0).reshape(1, -1), {}),
        (torch.arange(16.0).reshape(2, 8), {"eps": 0.0}),
    ],
    ids=["no rows", "float64", "too wide", "no eps"],
)
def test_what_no_kernel_takes_is_computed_with_torch(x, options):
    with ont.nki.simulation() as runs:
        found = layer_norm(x.to("neuron"), **options).cpu()
    assert runs == [] and torch.equal(found, layer_norm(x, **options))


def test_shapes_that_do_not_fit_are_named():
    with pytest.raises(ValueError, match=r"bias has the shape \(7,\), expected \(8,\)"):
        layer_norm(torch.zeros(2, 8), torch.ones(8), torch.ones(7))


def test_the_ops_keep_torchs_rules_for_custom_ops():
    x, weight, bias = (tensor.requires_grad_() for tensor in random((2, 3, 8), (8,), (8,)))
    torch.library.opcheck(ops.layer_norm_torch, (x, weight, bias, 1e-5))
    with ont.nki.simulation():
        torch.library.opcheck(ops.layer_norm_kernel, (x, weight, None, 1e-5))
