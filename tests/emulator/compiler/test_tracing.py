"""A device graph, traced again on the host: no device, no literal and no device operator is left in it."""

import pytest
import torch
import torch.nn.functional as F

from optimum_neuron_torch.emulator.compiler import backend
from optimum_neuron_torch.emulator.compiler.passes.constants import lift_constants
from optimum_neuron_torch.emulator.compiler.tracing import trace_on_host


@pytest.fixture
def traced(monkeypatch, tmp_path):
    """The device graphs that a test compiles, and what became of each on the host, neither from the cache."""
    monkeypatch.setenv("OPTIMUM_NEURON_CACHE", str(tmp_path))
    pairs = []

    def recording(gm, inputs, *args, **kwargs):
        host = trace_on_host(gm, inputs, *args, **kwargs)
        pairs.append((gm, host))
        return host

    monkeypatch.setattr(backend, "trace_on_host", recording)
    return pairs


def _run(function, *arguments):
    compiled = torch.compile(
        function, backend="neuron", dynamic=False, fullgraph=True, options={"executor": "aten", "lowering": "off"}
    )
    found = compiled(
        *[argument.detach().to("neuron").requires_grad_(argument.requires_grad) for argument in arguments]
    )
    torch.testing.assert_close(found.cpu(), function(*arguments), atol=1e-5, rtol=1e-5)
    return found


def _attend(x):
    return F.scaled_dot_product_attention(x, x, x, is_causal=True)


FUNCTIONS = {
    "a literal": lambda x: x * torch.tensor([1.0, 2.0, 3.0, 4.0], device=x.device),
    "two literals": lambda x: x * torch.tensor(2.0, device=x.device) + torch.tensor([1, 2, 3, 4]).to(x.device),
    "a range": lambda x: x + torch.arange(4, device=x.device, dtype=x.dtype),
    "new memory": lambda x: torch.cat([x, torch.zeros(2, 3, 1, 4, device=x.device), x.new_ones(2, 3, 1, 4)], 2),
    "a copy to the device it is on": lambda x: x.to(x.device, torch.float64).to(torch.float32),
    "fused attention": _attend,
    "fused attention, one query": lambda x: F.scaled_dot_product_attention(x[:, :, :1], x, x),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_nothing_of_the_device_is_left(name, traced):
    _run(FUNCTIONS[name], torch.randn(2, 3, 5, 4))
    ((device_graph, host),) = traced
    assert "neuron" in str([node.meta["val"].device for node in device_graph.graph.find_nodes(op="placeholder")])
    for node in host.module.graph.nodes:
        assert node.op != "get_attr", node
        assert "overrideable" not in str(node.target)
        for leaf in torch.utils._pytree.tree_leaves((node.args, node.kwargs, node.meta.get("val"))):
            if isinstance(leaf, (torch.device, torch.Tensor)):
                assert torch.device(getattr(leaf, "device", leaf)).type == "cpu", node.format_node()


def test_literals_become_the_last_inputs(traced):
    _run(FUNCTIONS["two literals"], torch.randn(2, 3, 5, 4))
    ((device_graph, host),) = traced
    assert len(device_graph.graph.find_nodes(op="get_attr")) == 2
    placeholders = host.module.graph.find_nodes(op="placeholder")
    assert [node.name for node in placeholders[1:]] == [node.name for node in placeholders[-2:]]
    assert [constant.tolist() for constant in host.constants] == [2.0, [1, 2, 3, 4]]
    assert all(constant.device.type == "cpu" for constant in host.constants)


def test_the_graph_that_is_lifted_keeps_its_own():
    graph = torch.fx.Graph()
    graph.output((graph.get_attr("literal"),))
    gm = torch.fx.GraphModule({"literal": torch.arange(3)}, graph)
    lifted, constants = lift_constants(gm)
    assert len(gm.graph.find_nodes(op="get_attr")) == 1
    assert not lifted.graph.find_nodes(op="get_attr")
    assert torch.equal(lifted(constants[0])[0], gm()[0])


def test_backward_graphs_are_the_hosts_too(traced):
    x = torch.randn(2, 3, 5, 4, requires_grad=True)
    _run(lambda x: _attend(x).square().mean(), x).backward()
    assert [host.kind for _, host in traced] == ["forward", "backward"]
    (backward, host) = traced[1]
    assert any("fused_attention_overrideable_backward" in str(node.target) for node in backward.graph.nodes)
    assert not any("overrideable" in str(node.target) for node in host.module.graph.nodes)


def test_user_lines_survive(monkeypatch, tmp_path):
    monkeypatch.setenv("OPTIMUM_NEURON_CACHE", str(tmp_path))
    lines = []

    def recording(*args, **kwargs):
        host = trace_on_host(*args, **kwargs)
        lines.extend(node.stack_trace or "" for node in host.calls)  # executors drop them
        return host

    monkeypatch.setattr(backend, "trace_on_host", recording)
    _run(FUNCTIONS["a range"], torch.randn(2, 3, 5, 4))
    assert len(lines) == 2 and all("test_tracing.py" in line for line in lines)
