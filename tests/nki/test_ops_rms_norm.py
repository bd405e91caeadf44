"""The RMSNorm ops against Transformers' modules, with torch and by kernels, with gradients, eagerly and compiled."""

import pytest
import torch
from transformers.models.gemma3.modeling_gemma3 import Gemma3RMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.t5.modeling_t5 import T5LayerNorm

import optimum_neuron_torch as ont
from optimum_neuron_torch.nki import add_rms_norm, rms_norm
from optimum_neuron_torch.nki.ops import rms_norm as ops

from .comparing import compare, compare_compiled, random


EPS = 1e-5
VARIANTS = {
    "Llama": {},
    "Gemma": {"offset": 1.0},
    "in float32": {"scales_in_float32": True},
}


def definition(x, weight=None, offset=0.0, **_):
    normal = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS)
    return normal if weight is None else normal * (offset + weight)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("variant", VARIANTS)
def test_values_and_gradients(variant, dtype):
    options = VARIANTS[variant]
    compare(
        lambda x, weight: rms_norm(x, weight, EPS, **options),
        lambda x, weight: definition(x, weight, **options),
        random((2, 5, 24), (24,), dtype=dtype),
        ["rms_norm_kernel", "rms_norm_backward_kernel"],
    )


def test_without_a_weight():
    kernels = ["rms_norm_kernel", "rms_norm_backward_kernel"]
    compare(lambda x: rms_norm(x, eps=EPS), definition, random((3, 24)), kernels)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sum_with_a_residual(dtype):
    compare(
        lambda x, residual, weight: add_rms_norm(x, residual, weight, EPS),
        lambda x, residual, weight: (definition(x + residual, weight), x + residual),
        random((2, 5, 24), (2, 5, 24), (24,), dtype=dtype),
        ["add_rms_norm_kernel", "rms_norm_backward_kernel"],
    )


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_what_is_not_finite_stays_in_its_column(value):
    """Of the gradient of the weight."""
    x, weight, grad = (tensor.to("neuron") for tensor in random((5, 1100), (1100,), (5, 1100)))
    grad[1, 3] = value
    with ont.nki.simulation():
        (gradient,) = torch.autograd.grad(rms_norm(x, weight.requires_grad_()), weight, grad)
    assert (~gradient.cpu().isfinite()).nonzero().tolist() == [[3]]


def test_a_frozen_weight_has_no_gradient():
    x, weight = random((3, 24), (24,))
    x = x.to("neuron").requires_grad_()
    with ont.nki.simulation() as runs:
        rms_norm(x, weight.to("neuron")).sum().backward()
    assert x.grad is not None and "tensor" not in runs[-1].instructions


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_bits_are_those_of_transformers_modules(dtype):
    x, weight = random((2, 7, 64), (64,), dtype=dtype)
    for module, options in (
        (LlamaRMSNorm(64, EPS), {}),
        (T5LayerNorm(64, EPS), {}),
        (Gemma3RMSNorm(64, EPS), {"offset": 1.0}),
    ):
        module.weight.data = weight
        for device in ("cpu", "neuron"):
            found = rms_norm(x.to(device), weight.to(device), EPS, **options)
            assert torch.equal(found.cpu(), module(x))


@pytest.mark.parametrize("weight_dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("kind, options", [(LlamaRMSNorm, {}), (Gemma3RMSNorm, {"offset": 1.0})])
def test_gradients_are_those_of_transformers_modules(kind, options, weight_dtype):
    """Of bfloat16 rows, also where the weight is float32, and so is what Llama's module gives."""
    x, weight = random((2, 7, 64), (64,))
    module = kind(64, EPS)
    module.weight.data = weight.to(weight_dtype)
    ours, theirs = (x.bfloat16().requires_grad_() for _ in range(2))
    own_weight = module.weight.detach().clone().requires_grad_()
    output, expected = rms_norm(ours, own_weight, EPS, **options), module(theirs)
    assert output.dtype == expected.dtype
    grad = random(x.shape, dtype=output.dtype, seed=1)[0]
    output.backward(grad)
    expected.backward(grad)
    for one, other in ((ours.grad, theirs.grad), (own_weight.grad, module.weight.grad)):
        torch.testing.assert_close(one, other, rtol=1e-2, atol=1e-2)


def test_compiled_calls_are_one_node():
    x, weight = random((2, 5, 24), (24,))
    kernels = ["rms_norm_kernel", "rms_norm_backward_kernel"]
    compare_compiled(lambda x, weight: rms_norm(x, weight, EPS), [x, weight], "rms_norm", kernels)
    residual = random((2, 5, 24), seed=1)[0]
    kernels[0] = "add_rms_norm_kernel"
    compare_compiled(lambda *t: add_rms_norm(*t, EPS), [x, residual, weight], "add_rms_norm", kernels)


@pytest.mark.parametrize(
    "x, weight, options",
    [
        (torch.zeros(0, 8), torch.ones(8), {}),
        (torch.ones(2, 8, dtype=torch.float64), None, {}),
        (torch.ones(2, 8, dtype=torch.bfloat16), torch.ones(8), {}),
        (torch.ones(1, 8193), None, {}),
        (torch.zeros(2, 8), None, {"eps": 0.0}),
    ],
    ids=["no rows", "float64", "float32 weight of bfloat16 rows", "too wide", "no eps"],
)
def test_what_no_kernel_takes_is_computed_with_torch(x, weight, options):
    moved = None if weight is None else weight.to("neuron")
    with ont.nki.simulation() as runs:
        found = rms_norm(x.to("neuron"), moved, **options).cpu()
    assert runs == [] and torch.equal(found.nan_to_num(7), rms_norm(x, weight, **options).nan_to_num(7))


def test_rows_that_are_not_contiguous():
    compare(
        lambda x, weight: rms_norm(x.transpose(0, 1), weight, EPS),
        lambda x, weight: definition(x.transpose(0, 1), weight),
        random((4, 3, 24), (24,)),
        ["rms_norm_kernel", "rms_norm_backward_kernel"],
    )


def test_shapes_that_do_not_fit_are_named():
    x = torch.zeros(2, 8)
    with pytest.raises(ValueError, match=r"weight has the shape \(7,\), expected \(8,\)"):
        rms_norm(x, torch.ones(7))
    with pytest.raises(ValueError, match=r"\(2, 8\), and residual \(1, 8\)"):
        add_rms_norm(x, x[:1])
    with pytest.raises(ValueError, match="torch.int64, expected floating point"):
        rms_norm(x.long())


def test_the_ops_keep_torchs_rules_for_custom_ops():
    x, residual, weight = random((2, 3, 8), (2, 3, 8), (8,))
    x, weight = x.requires_grad_(), weight.requires_grad_()
    torch.library.opcheck(ops.rms_norm_torch, (x, weight, EPS, 0.0, False))
    torch.library.opcheck(ops.add_rms_norm_torch, (x, residual, weight, EPS, 1.0, True))
    with ont.nki.simulation():
        torch.library.opcheck(ops.rms_norm_kernel, (x, weight, EPS, 0.0, False))
        torch.library.opcheck(ops.add_rms_norm_kernel, (x, residual, weight, EPS, 1.0, True))
