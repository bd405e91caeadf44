"""Compiled results against plain PyTorch on the CPU, per model and executor."""

import copy

import pytest
import torch

from .models import CASES, llama, on_neuron


ORACLE = ("mlp", "convolutional", "llama", "mixtral")


def _compile(module, **options):
    return torch.compile(module, backend="neuron", dynamic=False, options=options)


@pytest.mark.parametrize(
    ("name", "executor"), [*((name, "aten") for name in CASES), *((name, "xla") for name in ORACLE)]
)
def test_inference_equals_cpu(name, executor, records):
    case = CASES[name]
    host = case.make().eval()
    inputs = case.inputs()
    device = copy.deepcopy(host).to("neuron")
    with torch.no_grad():
        expected = case.result(host(**inputs) if name not in ("mlp", "convolutional") else host(inputs["input"]))
        compiled = _compile(device, executor=executor)
        given = on_neuron(inputs)
        result = case.result(compiled(**given) if name not in ("mlp", "convolutional") else compiled(given["input"]))
    assert result.device.type == "neuron"
    assert result.stride() == expected.stride()
    torch.testing.assert_close(result.cpu(), expected, atol=1e-5, rtol=1e-4)
    assert {record["lowering"] for record in records()} == {"checked"}
    assert {record["executor"] for record in records()} == {executor}


def test_inductor_equals_cpu_with_a_cache_written_in_place(records):
    """Prefill and decode over a static cache, which Inductor's kernels write."""
    from transformers import StaticCache

    host = llama().eval()
    device = copy.deepcopy(host).to("neuron")
    ids = torch.randint(5, 90, (2, 8))
    caches = [StaticCache(host.config, max_cache_len=16) for _ in range(2)]
    compiled = _compile(device, executor="inductor")
    with torch.no_grad():
        for step_ids in (ids, ids[:, :1]):
            expected = host(step_ids, cache=caches[0]).logits
            result = compiled(step_ids.to("neuron"), cache=caches[1]).logits
            torch.testing.assert_close(result.cpu(), expected, atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(caches[1].layers[0].keys.cpu(), caches[0].layers[0].keys, atol=1e-5, rtol=1e-4)
    assert [record["executor"] for record in records()] == ["inductor"] * len(records())


@pytest.mark.parametrize("executor", ["aten", "xla"])
def test_cache_is_written_in_place(executor):
    class Cache(torch.nn.Module):
        def forward(self, keys, index, new):
            keys.index_copy_(1, index, new)
            return keys.sum()

    keys = torch.zeros(2, 6, 3)
    device_keys = keys.to("neuron")
    address = device_keys.data_ptr()
    index, new = torch.tensor([4]), torch.randn(2, 1, 3)
    with torch.no_grad():
        total = _compile(Cache(), executor=executor)(device_keys, index.to("neuron"), new.to("neuron"))
    keys.index_copy_(1, index, new)
    torch.testing.assert_close(device_keys.cpu(), keys)
    torch.testing.assert_close(total.cpu(), keys.sum())
    assert device_keys.data_ptr() == address


@pytest.mark.parametrize("name", ["mlp", "convolutional", "llama", "bert"])
def test_gradients_equal_cpu(name):
    case = CASES[name]
    host = case.make().train()
    inputs = case.inputs()
    device = copy.deepcopy(host).to("neuron")
    positional = name in ("mlp", "convolutional")
    expected = case.result(host(inputs["input"]) if positional else host(**inputs))
    given = on_neuron(inputs)
    compiled = _compile(device, executor="aten")
    result = case.result(compiled(given["input"]) if positional else compiled(**given))
    expected.square().sum().backward()
    result.square().sum().backward()
    torch.testing.assert_close(result.cpu(), expected, atol=1e-5, rtol=1e-4)
    for (parameter, mine), theirs in zip(device.named_parameters(), host.parameters(), strict=True):
        if theirs.grad is None:  # AOTAutograd gives zeros to parameters that only unused outputs depend on
            assert mine.grad is None or not mine.grad.any(), parameter
        else:
            torch.testing.assert_close(mine.grad.cpu(), theirs.grad, atol=1e-4, rtol=1e-3)
    for mine, theirs in zip(device.buffers(), host.buffers(), strict=True):
        torch.testing.assert_close(mine.cpu(), theirs)


def test_xla_gradients_equal_cpu():
    host = llama().train()
    ids = torch.randint(5, 90, (2, 8))
    device = copy.deepcopy(host).to("neuron")
    host(ids, labels=ids, use_cache=False).loss.backward()
    _compile(device, executor="xla")(ids.to("neuron"), labels=ids.to("neuron"), use_cache=False).loss.backward()
    for mine, theirs in zip(device.parameters(), host.parameters(), strict=True):
        torch.testing.assert_close(mine.grad.cpu(), theirs.grad, atol=1e-4, rtol=1e-3)


def test_autocast_computes_in_bfloat16():
    host = torch.nn.Linear(8, 4)
    device = copy.deepcopy(host).to("neuron")
    x = torch.randn(3, 8)
    compiled = _compile(device, executor="aten")
    with torch.autocast("neuron", dtype=torch.bfloat16):
        result = compiled(x.to("neuron"))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        expected = host(x)
    assert result.dtype == torch.bfloat16
    torch.testing.assert_close(result.cpu(), expected)
    result.float().sum().backward()
    expected.float().sum().backward()
    torch.testing.assert_close(device.weight.grad.cpu(), host.weight.grad)


def test_dropout_drops_the_asked_share():
    compiled = _compile(torch.nn.Dropout(0.25), executor="aten")
    result = compiled(torch.ones(64, 64, device="neuron", requires_grad=True)).detach().cpu()
    assert 0.2 < (result == 0).float().mean() < 0.3
    assert result.max() == pytest.approx(1 / 0.75)


def test_device_literals_and_factories():
    def function(x):
        table = torch.tensor([1.0, 2.0, 3.0], device=x.device)
        return x * table + torch.arange(3, device=x.device, dtype=x.dtype) + torch.zeros(3, device="neuron")

    x = torch.randn(2, 3)
    result = _compile(function, executor="aten")(x.to("neuron"))
    torch.testing.assert_close(result.cpu(), function_on_host(x))


def function_on_host(x):
    return x * torch.tensor([1.0, 2.0, 3.0]) + torch.arange(3, dtype=x.dtype)


def test_graphs_without_neuron_tensors_run_on_the_cpu():
    x = torch.randn(4)
    result = _compile(lambda x: x.sin() + 1, executor="aten")(x)
    assert result.device.type == "cpu"
    torch.testing.assert_close(result, x.sin() + 1)


def test_a_cpu_scalar_may_enter_a_graph(monkeypatch):
    scale = torch.tensor(2.0)
    x = torch.randn(4)
    result = _compile(lambda x, scale: x * scale, executor="aten")(x.to("neuron"), scale)
    torch.testing.assert_close(result.cpu(), x * 2)
    monkeypatch.setenv("TORCH_NEURONX_DYNAMO_DISABLE_CPU_AUTOCOPY", "1")
    with pytest.raises(Exception, match="CPU tensor enters a compiled neuron graph"):
        _compile(lambda x, scale: x - scale, executor="aten")(x.to("neuron"), scale)


@pytest.mark.parametrize("shape", ["transposed", "expanded"])
def test_outputs_have_eager_strides(shape):
    function = {"transposed": lambda x: (x + 1).t(), "expanded": lambda x: (x + 1)[:1].expand(5, 3)}[shape]
    x = torch.randn(4, 3, device="neuron")
    result = _compile(function, executor="aten")(x)
    assert result.stride() == function(x).stride()
    torch.testing.assert_close(result.cpu(), function(x.cpu()))


def test_a_literal_on_the_host_meets_device_tensors():
    def scaled(x: torch.Tensor) -> torch.Tensor:
        return x / torch.sqrt(torch.tensor(8, dtype=torch.float))

    x = torch.randn(3, 4)
    compiled = torch.compile(scaled, backend="neuron", dynamic=False, options={"executor": "aten"})
    torch.testing.assert_close(compiled(x.to("neuron")).cpu(), scaled(x))
