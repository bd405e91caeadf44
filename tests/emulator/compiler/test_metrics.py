"""The records of compiled graphs."""

import torch
import torch_neuronx


def test_records_have_the_native_fields_and_ours():
    torch_neuronx.neuron_dynamo_backend.set_model_name("tiny")
    linear = torch.nn.Linear(4, 4).to("neuron")
    counted = torch._dynamo.utils.counters["neuron"]["compiled_graphs"]
    torch.compile(linear, backend="neuron", options={"executor": "aten"})(
        torch.randn(2, 4, device="neuron")
    ).sum().backward()
    forward, backward = torch_neuronx.neuron_dynamo_backend.get_dynamo_metrics()
    assert forward["graph_name"].startswith("tiny_") and "_forward_" in forward["graph_name"]
    assert "_backward_" in backward["graph_name"]
    assert forward["model_name"] == "tiny"
    assert len(forward["graph_id"]) == 64 and forward["graph_id"] != backward["graph_id"]
    assert forward["graph_node_count"] > 0 and not forward["has_collectives"]
    for phase in ("trace", "fx_passes", "lower"):
        assert forward[f"torch_neuronx_{phase}_us"] > 0
    assert not forward["cached"] and forward["executor"] == "aten" and forward["lowering"] == "checked"
    assert torch._dynamo.utils.counters["neuron"]["compiled_graphs"] == counted + 2
    torch_neuronx.neuron_dynamo_backend.reset_dynamo_metrics()
    assert torch_neuronx.neuron_dynamo_backend.get_dynamo_metrics() == []


def test_operators_inside_a_graph_are_no_eager_signatures():
    x = torch.randn(5, 7, device="neuron")
    compiled = torch.compile(lambda x: (x.sin() @ x.t()).cos(), backend="neuron", options={"executor": "aten"})
    compiled(x)
    before = torch_neuronx.metrics.get_counter_value("eager_signatures")
    compiled(x)
    assert torch_neuronx.metrics.get_counter_value("eager_signatures") == before


def test_cpu_tensors_that_enter_a_graph_are_counted():
    def count():
        return torch_neuronx.metrics.get_counter_value("cpu_autocopies")

    compiled = torch.compile(lambda x, y, z: x + y.sum() * z, backend="neuron", options={"executor": "aten"})
    x, y, z = torch.ones(2, device="neuron"), torch.ones(3, device="neuron"), torch.tensor(2.0)
    before = count()
    for _ in range(3):
        assert compiled(x, y, z).tolist() == [7, 7]
    assert count() == before + 3
    assert torch_neuronx.neuron_dynamo_backend.get_dynamo_metrics()[0]["cpu_inputs"] == 1
    torch_neuronx.metrics.clear_counters()
    assert count() == 0
