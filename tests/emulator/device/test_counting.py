"""Counters and strict mode: what a signature is, what a copy is, what each strict kind refuses."""

import pytest
import torch
from torch.autograd import forward_ad

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


@pytest.mark.parametrize(
    ("kind", "function"),
    [
        ("fallback", lambda: torch.linalg.qr(torch.ones(2, 2, device="neuron"))),
        ("unknown", lambda: torch.ones(2, device="neuron").lgamma()),
        ("float64", lambda: torch.zeros(2, dtype=torch.float64, device="neuron")),
        ("float64", lambda: torch.ones(2, dtype=torch.float64).to("neuron")),
        ("int64", lambda: torch.full((2,), 2**31, device="neuron")),
        ("int64", lambda: torch.tensor([2**40]).to("neuron")),
        ("complex", lambda: torch.fft.fft(torch.ones(4, device="neuron"))),
        ("channels_last", lambda: torch.ones(1, 3, 4, 4, device="neuron").to(memory_format=torch.channels_last) + 1),
        ("multicore", lambda: (torch.ones(1, device="neuron:0"), torch.ones(1, device="neuron:1"))),
    ],
)
def test_strict_kinds(neuron, kind, function):
    """Allowed without it; with it, the error names the kind and this file's line."""
    function()
    with device.strict(kind):
        assert device.strict_kinds() == {kind}
        with pytest.raises(RuntimeError, match=rf"strict mode \({kind}\): .*test_counting\.py:\d+ in <lambda>"):
            function()
    assert device.strict_kinds() == frozenset()
    function()


def test_strict_error_names_operation_dtype_and_shapes(neuron):
    x = torch.ones(2, 3, dtype=torch.float64).to(neuron)
    with device.strict("float64"), pytest.raises(RuntimeError, match=r"aten::exp with Double\[2, 3\]"):
        x.exp()


def test_strict_int64_allows_small_values(neuron):
    with device.strict("int64"):
        assert (torch.arange(5, device=neuron) + 1).sum().item() == 15


def test_strict_forward_ad(neuron):
    def dual() -> None:
        with forward_ad.dual_level():
            forward_ad.make_dual(torch.ones(2, device=neuron), torch.ones(2, device=neuron)) * 2

    dual()
    with device.strict("forward_ad"), pytest.raises(RuntimeError, match="forward_ad"):
        dual()


def test_strict_recompile_starts_after_warm_up(neuron):
    x, y = torch.ones(8, device=neuron), torch.ones(9, device=neuron)
    with device.strict("recompile"):
        x + x
        device.mark_warm()
        try:
            x + x
            with pytest.raises(RuntimeError, match=r"recompile.*Float\[9\]"):
                y + y
        finally:
            device.mark_warm(False)
        y + y


def test_strict_all_and_unknown_names():
    with device.strict(), device.strict("all"):
        assert len(device.strict_kinds()) == 10
    with pytest.raises(ValueError, match="unknown strict kind speed.*float64"), device.strict("speed"):
        pass
