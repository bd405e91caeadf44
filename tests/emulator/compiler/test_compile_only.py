"""Compile-only mode fills the cache: nothing runs, everything gets through, a normal process then compiles nothing."""

import os
import subprocess
import sys

import pytest


TRAINING = """
import torch
from optimum_neuron_torch.emulator.compiler import metrics
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 2)).to("neuron")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
compiled = torch.compile(model, options={"executor": "aten"})
before = [parameter.detach().cpu().clone() for parameter in model.parameters()]
for _ in range(2):
    logits = compiled(torch.randn(6, 4, device="neuron"))
    loss = torch.nn.functional.cross_entropy(logits, torch.ones(6, dtype=torch.long, device="neuron"))
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
records = metrics.get_dynamo_metrics()
cached = sum(record["cached"] for record in records)
print("compiled", len(records) - cached, "loaded", cached)
print("zeros", bool((logits == 0).all()), logits.device.type, tuple(logits.shape), logits.dtype)
print("finite", bool(torch.isfinite(norm)))
print("running mean", model[1].running_mean.abs().sum().item() == 0)
"""

LAYOUTS = """
import torch
torch.manual_seed(0)

def many(x, on_host):
    return x.t() * 2, x > 0, x.sum().long(), x[:0] + 1, (x + 1).expand(2, 3, 4), on_host + 1, None, 7, x.cfloat()

x = torch.randn(3, 4, device="neuron")
got = torch.compile(many, options={"executor": "aten", "lowering": "off"})(x, torch.ones(2))
want = many(x, torch.ones(2))
for one, other in zip(got, want, strict=True):
    if not isinstance(other, torch.Tensor):
        assert one == other
        continue
    assert (one.shape, one.stride(), one.dtype, one.device) == (other.shape, other.stride(), other.dtype, other.device)
    assert not one.cpu().any()
print("same layouts")
"""

GENERATION = """
import torch
from transformers import LlamaConfig, LlamaForCausalLM
import optimum_neuron_torch as ont
torch.manual_seed(0)
model = LlamaForCausalLM(LlamaConfig(
    vocab_size=96, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=64, eos_token_id=0, pad_token_id=0,
)).to("neuron").eval()
ont.prepare(model, ont.NeuronConfig(options={"executor": "aten"}))
ids = torch.randint(5, 90, (1, 7))
tokens = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=12, min_new_tokens=3, do_sample=False)
report = ont.report(model)
print("compiled", report.graphs, "loaded", report.cached, "tokens", tokens.shape[1] - 7)
"""


@pytest.fixture
def run(tmp_path):
    """Runs a program in a process of its own, over one cache."""

    def run_one(program, **environment):
        result = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", program],
            env={**os.environ, "OPTIMUM_NEURON_CACHE": str(tmp_path / "cache"), **environment},
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert result.returncode == 0, result.stderr
        return result

    return run_one


def test_a_training_step_gets_through_and_is_compiled_for_the_next_process(run):
    first = run(TRAINING, TORCH_NEURONX_COMPILE_ONLY="1", TORCH_LOGS="neuron")
    assert "compiled 2 loaded 0" in first.stdout
    assert "zeros True neuron (6, 2) torch.float32" in first.stdout
    assert "finite True" in first.stdout and "running mean True" in first.stdout
    assert first.stderr.count("graphs are compiled and kept, not run") == 1
    second = run(TRAINING)
    assert "compiled 0 loaded 2" in second.stdout
    assert "zeros False neuron (6, 2)" in second.stdout and "running mean False" in second.stdout


def test_results_are_zeros_of_eagers_shapes_strides_dtypes_and_devices(run):
    assert "same layouts" in run(LAYOUTS, TORCH_NEURONX_COMPILE_ONLY="1").stdout


@pytest.mark.slow
def test_generation_compiles_all_it_needs_although_token_0_ends_a_text(run):
    first = run(GENERATION, TORCH_NEURONX_COMPILE_ONLY="1")
    assert "compiled 2 loaded 0 tokens 12" in first.stdout
    assert "compiled 0 loaded 2" in run(GENERATION).stdout


@pytest.mark.slow
def test_the_fast_programs_of_tiered_graphs_are_kept_too(run):
    program = """
import torch
torch.compile(lambda x: (x @ x).tanh(), options={"model_name": "mine"})(torch.randn(8, 8, device="neuron"))
from optimum_neuron_torch.emulator.compiler import metrics
print(metrics.get_dynamo_metrics()[0]["executor"], metrics.get_dynamo_metrics()[0]["cached"])
"""
    run(program, TORCH_NEURONX_COMPILE_ONLY="1")
    assert "inductor True" in run(program).stdout
