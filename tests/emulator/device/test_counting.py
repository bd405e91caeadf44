"""Counters: what a signature is, and what a copy is."""

import pytest
import torch

from optimum_neuron_torch.emulator import device


def signatures(function) -> int:
    before = device.counters()["eager_signatures"]
    function()
    return device.counters()["eager_signatures"] - before


def copies(function) -> int:
    before = device.counters()["copies"]
    function()
    return device.counters()["copies"] - before


def test_a_signature_is_an_operation_with_shapes_dtypes_and_constants(neuron):
    x, y = torch.ones(4, device=neuron), torch.ones(6, device=neuron)
    assert signatures(lambda: x + x) == 1
    assert signatures(lambda: x + x) == 0
    assert signatures(lambda: y + y) == 1
    assert signatures(lambda: x * x) == 1
    assert signatures(lambda: x + 2) == 1
    assert signatures(lambda: x + 3) == 1
    assert signatures(lambda: x.softmax(0)) == 1
    assert signatures(lambda: torch.topk(x, 2)) == 1
    assert signatures(lambda: torch.topk(x, 3)) == 1


def test_calls_are_counted_by_operation_and_dtype(neuron):
    x = torch.ones(4, device=neuron)
    half = x.bfloat16()
    for _ in range(3):
        x + x
    half + half
    torch.arange(3, device=neuron)
    counters = device.counters()
    assert counters["calls_by_dtype"]["aten::add.Tensor"] == {"float32": 3, "bfloat16": 1}
    assert counters["operations"]["aten::add.Tensor"] == (4, 2)
    assert sum(sum(counts.values()) for counts in counters["calls_by_dtype"].values()) == counters["eager_calls"]
    device.clear_counters()
    assert device.counters()["calls_by_dtype"] == {}


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.view(2, 2).t()[0],
        lambda x: x.expand(3, 4).unsqueeze(0).permute(2, 0, 1),
        lambda x: torch.empty(7, device=x.device),
        lambda x: torch.empty_like(x),
        lambda x: x.detach().requires_grad_(),
        lambda x: x.to("cpu"),
        lambda x: torch.randn(9).to(x.device),
        lambda x: x.to("neuron:1"),
        lambda x: x[0].item(),
    ],
)
def test_views_empty_and_plain_copies_are_no_signatures(neuron, function):
    x = torch.ones(4, device=neuron)
    assert signatures(lambda: function(x)) == 0


def test_copies_are_counted_by_shape(neuron):
    host = torch.ones(3, 5)
    assert copies(lambda: host.to(neuron)) == 1
    assert copies(lambda: host.to(neuron).cpu()) == 2
    assert device.counters()["copies_by_shape"][("host_to_device", (3, 5))] == 2


@pytest.mark.parametrize(
    "function",
    [
        lambda: torch.ones(4).to("neuron", torch.bfloat16),
        lambda: torch.empty(3, 2, device="neuron").copy_(torch.ones(2, 3).t()),
        lambda: torch.ones(4).to("neuron").clone(),
    ],
    ids=["dtype", "layout", "on the device"],
)
def test_other_copies_are_signatures(neuron, function):
    assert signatures(function) >= 1


def test_lists_of_operations(neuron):
    x = torch.eye(3, device=neuron)
    torch.linalg.qr(x)
    assert {"aten::eye.m_out", "aten::linalg_qr"} & set(device.executed_ops())
    assert device.fallback_ops() == ["aten::linalg_qr"]
    device.clear_counters()
    assert device.executed_ops() == [] and device.counters()["eager_signatures"] == 0
