"""The table of entries: applied in either import order, taken back whole."""

import subprocess
import sys

import pytest
import torch

import optimum_neuron_torch as ont
from optimum_neuron_torch.wiring import ENTRIES, wired


def test_every_entry_says_what_would_remove_it():
    assert len({entry.name for entry in ENTRIES}) == len(ENTRIES)
    assert all(len(entry.upstream) > 20 for entry in ENTRIES)


def test_unwiring_puts_everything_back():
    import importlib

    modules = {entry.module: importlib.import_module(entry.module) for entry in ENTRIES}
    assert set(wired()) == {entry.name for entry in ENTRIES}
    import transformers

    ont.unwire()
    try:
        assert wired() == [] and modules
        assert not hasattr(transformers.PreTrainedModel.from_pretrained, "__wrapped__")
        assert "nki" not in transformers.AttentionInterface._global_mapping
    finally:
        ont.wire()
    assert set(wired()) == {entry.name for entry in ENTRIES}
    ont.wire()
    assert transformers.PreTrainedModel.from_pretrained.__wrapped__.__qualname__ == "PreTrainedModel.from_pretrained"


@pytest.mark.parametrize("order", ["optimum_neuron_torch, transformers", "transformers, optimum_neuron_torch"])
def test_either_import_order(tiny_llama, order):
    code = f"""
import torch, {order}
import optimum_neuron_torch as ont
model = transformers.AutoModelForCausalLM.from_pretrained({tiny_llama!r}, device_map="neuron")
print(model.device, model.config._attn_implementation, "_neuron_prepared" in vars(model))
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert result.stdout.strip() == "neuron:0 nki True", result.stderr


def test_the_first_call_of_a_compiled_model_may_ask_for_hidden_states(tiny_bert, ids):
    """Stock Transformers installs the hooks under a lock, on which tracing the whole graph stops."""
    from transformers import BertModel

    model = BertModel.from_pretrained(tiny_bert).eval()
    with torch.no_grad():
        compiled = torch.compile(model, backend="eager", fullgraph=True)(ids, output_hidden_states=True)
        expected = model(ids, output_hidden_states=True)
    assert len(compiled.hidden_states) == 3
    torch.testing.assert_close(compiled.hidden_states, expected.hidden_states)
