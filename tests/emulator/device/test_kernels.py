"""Kernels of the device's own, where PyTorch gives accelerators other operations or dtypes than the CPU; and what the
device refuses."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from optimum_neuron_torch.emulator import device


def run(module: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    """Results and gradients, on the CPU."""
    x = x.detach().requires_grad_()
    result, _ = module(x)
    (result * torch.linspace(-1, 1, result.numel(), device=x.device).view_as(result)).sum().backward()
    gradients = [parameter.grad for parameter in module.parameters()]
    module.zero_grad()
    return [tensor.detach().cpu().clone() for tensor in (result, x.grad, *gradients)]


@pytest.mark.parametrize("cell", [nn.LSTM, nn.GRU])
@pytest.mark.parametrize("bias", [True, False])
def test_recurrent_networks(neuron, cell, bias):
    """PyTorch fuses their cells on accelerators; the CPU composes them."""
    torch.manual_seed(0)
    module, x = cell(5, 7, num_layers=2, bias=bias, bidirectional=True), torch.randn(4, 3, 5)
    expected = run(module, x)
    for actual, reference in zip(run(module.to(neuron), x.to(neuron)), expected, strict=True):
        torch.testing.assert_close(actual, reference, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("cell", [nn.LSTM, nn.GRU])
def test_recurrent_networks_in_bfloat16(neuron, cell):
    torch.manual_seed(0)
    module, x = cell(5, 7), torch.randn(4, 3, 5)
    expected = module(x)[0]
    actual = module.bfloat16().to(neuron)(x.to(neuron, torch.bfloat16))[0]
    assert actual.dtype == torch.bfloat16
    torch.testing.assert_close(actual.float().cpu(), expected, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("cell", [nn.LSTMCell, nn.GRUCell])
def test_gradient_of_one_state_only(neuron, cell):
    torch.manual_seed(0)
    module, x = cell(3, 4), torch.randn(2, 3)
    expected = torch.autograd.grad(module(x)[-1].sum(), list(module.parameters()))
    module.to(neuron)
    actual = torch.autograd.grad(module(x.to(neuron))[-1].sum(), list(module.parameters()))
    for one, other in zip(actual, expected, strict=True):
        torch.testing.assert_close(one.cpu(), other, rtol=1e-5, atol=1e-6)


# The CPU lacks these in one or both of the half precisions, which accelerators have.
IN_HALF_PRECISION = {
    "bilinear": lambda x: F.interpolate(x, size=(4, 5), mode="bilinear", antialias=True),
    "bicubic": lambda x: F.interpolate(x, scale_factor=0.7, mode="bicubic", antialias=True),
    "avg_pool3d": lambda x: F.avg_pool3d(x, 2),
    "multi_margin_loss": lambda x: F.multi_margin_loss(x[0, 0], torch.arange(8, device=x.device)),
    "multilabel_margin_loss": lambda x: F.multilabel_margin_loss(x[0, 0], torch.zeros_like(x[0, 0]).long()),
    "polygamma": lambda x: torch.polygamma(1, x.abs() + 1),
    "round to decimals": lambda x: torch.round(x, decimals=1),
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("compute", IN_HALF_PRECISION.values(), ids=IN_HALF_PRECISION)
def test_half_precision(neuron, compute, dtype):
    """The float32 result of the CPU, rounded; so for gradients."""
    x = torch.randn(2, 3, 8, 10, generator=torch.Generator().manual_seed(0)).to(dtype)
    y = x.to(neuron).requires_grad_()
    x = x.float().requires_grad_()
    expected, actual = compute(x), compute(y)
    assert actual.dtype == dtype and actual.device == neuron
    torch.testing.assert_close(actual.cpu(), expected.to(dtype), rtol=1e-2, atol=1e-2)
    expected.sum().backward()
    actual.sum().backward()
    torch.testing.assert_close(y.grad.cpu(), x.grad.to(dtype), rtol=2e-2, atol=1e-2)


def test_half_precision_into_a_result(neuron):
    x = torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    out = torch.empty(0, dtype=torch.float16, device=neuron)
    result = torch.round(x.to(neuron, torch.float16), decimals=1, out=out)
    assert result is out
    assert torch.equal(out.cpu(), torch.round(x.half().float(), decimals=1).half())


def test_half_precision_is_counted_as_what_it_is(neuron):
    """One operation at its own dtype, no casts."""
    x = torch.ones(1, 3, 4, 4, 4, dtype=torch.bfloat16, device=neuron)
    device.clear_counters()
    F.avg_pool3d(x, 2)
    assert device.counters()["operations"] == {"aten::avg_pool3d": (1, 1)}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_grouped_products_of_experts(neuron, dtype):
    """The product that mixture-of-experts models are made of, forward and backward."""
    generator = torch.Generator().manual_seed(0)
    tokens, weights, seed = (
        torch.randn(size, generator=generator).to(dtype) for size in ((12, 16), (3, 16, 8), (12, 8))
    )
    ends = torch.tensor([4, 4, 12], dtype=torch.int32)
    answers = []
    for where in ("cpu", neuron):
        x, w = (tensor.clone().to(where).requires_grad_() for tensor in (tokens, weights))
        result = F.grouped_mm(x, w, offs=ends.to(where))
        result.backward(seed.to(where))
        answers.append([tensor.detach().cpu() for tensor in (result, x.grad, w.grad)])
    assert all(torch.equal(one, other) for one, other in zip(*answers, strict=True))


@pytest.mark.parametrize("gradients", [True, False])
def test_transformer_encoder_in_evaluation_with_padding(neuron, gradients):
    """The CPU's fast path cuts the padding away by a nested tensor; the real positions are the same without."""
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2).eval()
    inputs = torch.randn(3, 4, 8)
    padding = torch.tensor([[False] * 4, [False] * 3 + [True], [False, True, True, True]])
    with torch.set_grad_enabled(gradients):
        expected = encoder(inputs, src_key_padding_mask=padding)
        actual = encoder.to(neuron)(inputs.to(neuron), src_key_padding_mask=padding.to(neuron)).cpu()
    torch.testing.assert_close(actual[~padding], expected[~padding], rtol=1e-5, atol=1e-6)


def _ragged() -> list[torch.Tensor]:
    return [torch.ones(2, 3, device="neuron"), torch.ones(1, 3, device="neuron")]


def _embed_sparsely() -> None:
    embedding = nn.Embedding(4, 2, sparse=True, device="neuron")
    embedding(torch.tensor([1], device="neuron")).sum().backward()


ROW, COLUMN = torch.tensor([0, 1, 2]), torch.tensor([0, 1])
# What makes or takes a tensor that the device does not have, and the operation that says so.
REFUSED = {
    "coo": (lambda: torch.sparse_coo_tensor(COLUMN[None], torch.ones(2), (2,), device="neuron"), "sparse_coo_tensor"),
    "coo moved": (lambda: torch.eye(2).to_sparse().to("neuron"), "sparse_coo_tensor"),
    "csr": (lambda: torch.sparse_csr_tensor(ROW, COLUMN, torch.ones(2), (2, 2), device="neuron"), "sparse_c"),
    "csr moved": (lambda: torch.eye(2).to_sparse_csr().to("neuron") @ torch.eye(2, device="neuron"), "sparse"),
    "to_sparse": (lambda: torch.eye(2, device="neuron").to_sparse(), "_to_sparse"),
    "to_sparse_csr": (lambda: torch.eye(2, device="neuron").to_sparse_csr(), "_to_sparse_csr"),
    "empty sparse": (lambda: torch.empty(2, 2, layout=torch.sparse_coo, device="neuron"), "empty"),
    "sparse product": (lambda: torch.sparse.mm(torch.eye(2).to_sparse(), torch.eye(2, device="neuron")), "addmm"),
    "sparse gradient": (_embed_sparsely, "sparse_coo_tensor"),
    "quantize": (lambda: torch.quantize_per_tensor(_ragged()[0], 0.1, 0, torch.qint8), "quantize_per_tensor"),
    "quantized moved": (lambda: torch.quantize_per_tensor(ROW.float(), 0.1, 0, torch.qint8).to("neuron"), "quantized"),
    "empty quantized": (lambda: torch.empty(2, dtype=torch.qint8, device="neuron"), "empty"),
    "nested": (lambda: torch.nested.nested_tensor(_ragged()), "nested_tensor"),
    "nested made there and used": (
        lambda: torch.nested.nested_tensor([x.cpu() for x in _ragged()], device="neuron") + 1,
        "add",
    ),
    "nested from a mask": (
        lambda: torch._nested_tensor_from_mask(
            torch.ones(1, 2, 3, device="neuron"), torch.ones(1, 2, dtype=torch.bool, device="neuron"), False
        ),
        "_nested_tensor_from_mask",
    ),
    "mkldnn": (lambda: torch.ones(2, device="neuron").to_mkldnn(), "to_mkldnn"),
}


@pytest.mark.parametrize(("make", "operation"), REFUSED.values(), ids=REFUSED)
def test_storage_that_the_device_lacks_is_refused(neuron, make, operation):
    with pytest.raises(NotImplementedError, match=rf"(?s){operation}.*(?i:use|on the CPU|enable_nested_tensor=False)"):
        make()


def test_results_that_are_left_to_be_conjugated(neuron):
    """The CPU's kernel only marks its result as conjugated."""
    a, b = (torch.randn(3, 3, dtype=torch.complex64, generator=torch.Generator().manual_seed(i)) for i in range(2))
    factors, pivots = torch.linalg.lu_factor(a)
    expected = torch.linalg.lu_solve(factors, pivots, b, left=False)
    out = torch.empty(0, dtype=torch.complex64, device=neuron)
    torch.linalg.lu_solve(factors.to(neuron), pivots.to(neuron), b.to(neuron), left=False, out=out)
    torch.testing.assert_close(out.cpu(), expected)


def test_jagged_tensors(neuron):
    """Nested tensors of this layout are dense tensors with offsets."""
    rows = [torch.randn(length, 4, generator=torch.Generator().manual_seed(length)) for length in (2, 5, 1)]
    nested = torch.nested.nested_tensor(rows, layout=torch.jagged, device=neuron)
    weight = torch.randn(3, 4, generator=torch.Generator().manual_seed(9))
    for actual, row in zip(F.linear(nested, weight.to(neuron)).unbind(), rows, strict=True):
        torch.testing.assert_close(actual.cpu(), F.linear(row, weight))
    padded = torch.nested.to_padded_tensor(nested, 0.0)
    assert torch.equal(padded.cpu(), nn.utils.rnn.pad_sequence(rows, batch_first=True))


@pytest.mark.parametrize(
    ("compute", "argument"),
    [
        (lambda x: F.conv1d(x, x.cpu()), "weight in method aten::convolution"),
        (lambda x: F.conv1d(x, x, bias=torch.ones(2)), "bias in method aten::convolution"),
        (lambda x: torch.polygamma(1, x.half(), out=x.half().cpu()), "out in method aten::polygamma.out"),
        (lambda x: torch.mm(x[0], x[0].cpu()), "mat2 in method aten::mm"),
    ],
)
def test_errors_of_mixed_devices_name_the_argument(neuron, compute, argument):
    with pytest.raises(RuntimeError, match=f"when checking argument for argument {argument}"):
        compute(torch.ones(2, 2, 2, device=neuron))
