"""The report against the device's own counters, and across processes."""

import json
import os
import subprocess
import sys

import torch
import torch_neuronx
from transformers import AutoModelForCausalLM

import optimum_neuron_torch as ont


def test_it_agrees_with_the_backends_records(tiny_llama, ids, mask):
    config = ont.NeuronConfig(buckets=ont.Buckets(batch=[4], sequence=[16], cache=[32]), options={"executor": "aten"})
    model = AutoModelForCausalLM.from_pretrained(tiny_llama, device_map="neuron", neuron_config=config)
    model.generate(ids, attention_mask=mask, max_new_tokens=4, num_beams=1, do_sample=False)
    report = ont.report(model)
    records = [r for r in torch_neuronx.neuron_dynamo_backend.get_dynamo_metrics() if r["model_name"] == report.name]
    assert len(records) == report.graphs + report.cached == len(report.buckets) == 2
    assert [record["graph_name"] for record in records] == report.graph_names
    assert report.lowering == {"checked": 2}
    assert report.times["trace"] == sum(record["torch_neuronx_trace_us"] for record in records) / 1e6 > 0
    assert report.eager_signatures == torch_neuronx.metrics.get_counter_value("eager_signatures")
    assert json.loads(json.dumps(report.to_dict()))["buckets"][0]["bucket"] == {
        "batch": 4, "block": 1, "cache": 32, "keep": 1,
    }  # fmt: skip
    whole = ont.report()
    assert whole.graphs + whole.cached == len(torch_neuronx.neuron_dynamo_backend.get_dynamo_metrics())
    for figure in (f"{report.graphs}", "prefill", "decode", "batch 4", "padded share"):
        assert figure in str(report)


def test_it_names_ops_on_the_cpu_and_ops_of_unknown_support():
    torch_neuronx.clear_op_tracking()
    x = torch.rand(4, 4).to("neuron")
    torch.linalg.qr(x + x)
    x.lgamma()
    report = ont.report()
    assert report.fallbacks == ["aten::linalg_qr"] and report.unknown_ops == ["aten::lgamma"]
    assert report.unknown_ops == report.to_dict()["unknown_ops"] == torch_neuronx.get_unknown_ops()
    assert torch_neuronx.metrics.get_counter_value("unknown_calls") == 1
    assert "aten::linalg_qr" in str(report) and "aten::lgamma" in str(report)


CODE = """
import json, sys, torch, optimum_neuron_torch as ont
from transformers import AutoModelForCausalLM
buckets = ont.Buckets(batch=[1], sequence=[16], cache=[32])
config = ont.NeuronConfig(buckets=buckets, options={"executor": "aten"})
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], device_map="neuron", neuron_config=config)
tokens = model.generate(torch.arange(5, 12)[None], max_new_tokens=5, do_sample=False)
report = ont.report(model)
print(json.dumps({"tokens": tokens.tolist(), "graphs": report.graphs, "cached": report.cached}))
"""


def run_process(model: str, cache: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", CODE, model],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OPTIMUM_NEURON_CACHE": cache},
    )


def result_of(process: subprocess.Popen) -> dict:
    output, errors = process.communicate(timeout=240)
    assert process.returncode == 0, errors
    return json.loads(output.splitlines()[-1])


def test_a_second_process_compiles_nothing(tiny_llama, tmp_path):
    """Also where two processes filled the cache at once."""
    first, rival = (run_process(tiny_llama, str(tmp_path)) for _ in range(2))
    first, rival = result_of(first), result_of(rival)
    second = result_of(run_process(tiny_llama, str(tmp_path)))
    assert (second["graphs"], second["cached"]) == (0, 2)
    assert first["graphs"] + first["cached"] == 2
    expected = AutoModelForCausalLM.from_pretrained(tiny_llama).generate(
        torch.arange(5, 12)[None], max_new_tokens=5, do_sample=False
    )
    assert first["tokens"] == rival["tokens"] == second["tokens"] == expected.tolist()


def test_a_corrupted_cache_gives_the_right_tokens(tiny_llama, tmp_path):
    first = result_of(run_process(tiny_llama, str(tmp_path)))
    files = [path for path in tmp_path.rglob("*") if path.is_file() and path.stat().st_size > 100]
    assert files
    for index, path in enumerate(files):
        content = path.read_bytes()
        path.write_bytes(content[: len(content) // 2] if index % 2 else b"\x00" * 64 + content[64:])
    again = result_of(run_process(tiny_llama, str(tmp_path)))
    assert again["tokens"] == first["tokens"] and again["graphs"] == 2


def test_it_says_why_graphs_were_compiled_again_and_where_code_left_them():
    torch._dynamo.reset()
    torch_neuronx.neuron_dynamo_backend.reset_dynamo_metrics()

    def branching(x):
        y = x * 2
        return y + 1 if y.sum() > 0 else y - 1

    compiled = torch.compile(branching, backend="neuron", options={"executor": "aten"})
    for size in (3, 5):
        assert compiled(torch.ones(size, device="neuron")).tolist() == [3.0] * size
    report = ont.report()
    assert [row["reason"] for row in report.recompiles][0] == "`x` axis 0: 3 -> 5"
    assert report.recompiles[0]["graph"] in report.graph_names
    assert "y + 1 if y.sum() > 0" in report.graph_breaks[0]["location"]
    assert "compiled again" in str(report) and "outside of graphs" in str(report)
