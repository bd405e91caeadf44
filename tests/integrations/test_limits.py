"""What the device limits: memory, float64; and what is left when a limit is hit."""

import os
import subprocess
import sys

import torch
from transformers import AutoModelForCausalLM

import optimum_neuron_torch as ont


def run(code: str, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=240, env={**os.environ, **environment}
    )


def test_a_model_too_large_for_hbm_is_out_of_memory_and_leaves_nothing(tmp_path):
    code = f"""
import gc, time, torch, optimum_neuron_torch
from transformers import AutoModel, BertConfig, BertModel
config = BertConfig(vocab_size=30000, hidden_size=256, num_hidden_layers=1, num_attention_heads=4)
BertModel(config).save_pretrained({str(tmp_path)!r})
try:
    AutoModel.from_pretrained({str(tmp_path)!r}, device_map="neuron")
except torch.OutOfMemoryError as error:
    print(error)
for _ in range(100):  # the loading threads end in their own time
    gc.collect()
    if torch.accelerator.memory_allocated() == 0:
        break
    time.sleep(0.1)
print("left", torch.accelerator.memory_allocated())
"""
    result = run(code, NEURON_EMULATOR_HBM="16MiB")
    assert "NEURON_EMULATOR_HBM" in result.stdout and "16" in result.stdout, result.stderr
    assert result.stdout.strip().endswith("left 0")


def test_float64_gives_the_cpus_tokens_and_is_an_error_in_strict_mode(tiny_llama, ids, mask):
    plain = AutoModelForCausalLM.from_pretrained(tiny_llama, dtype=torch.float64)
    config = ont.NeuronConfig(options={"executor": "aten", "lowering": "off"})
    model = AutoModelForCausalLM.from_pretrained(
        tiny_llama, dtype=torch.float64, device_map="neuron", neuron_config=config
    )
    arguments = {"attention_mask": mask, "max_new_tokens": 5, "do_sample": False}
    assert torch.equal(model.generate(ids, **arguments), plain.generate(ids, **arguments))
    result = run(
        "import torch, optimum_neuron_torch as ont\n"
        "x = torch.ones(2, dtype=torch.float64, device='neuron')\n"
        "try:\n"
        "    with ont.strict('float64'):\n"
        "        x + 1\n"
        "except RuntimeError as error:\n"
        "    print(error)\n"
    )
    assert "float64" in result.stdout and "add" in result.stdout, result.stdout + result.stderr
